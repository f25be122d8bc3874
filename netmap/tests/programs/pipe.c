/* pipe PARENT COUNT: passes numbered frames through both directions of a pipe, slots and all. */
#include "port.h"

/* Sends a frame from one end to the other, and checks what arrives. Returns true if the buffer has changed hands. */
static int pass(const struct port *from, const struct port *to, uint32_t number) {
    struct ring *tx = tx_ring(from, 0), *rx = rx_ring(to, 0);
    if (tx->head == tx->tail) errx(1, "frame %u: no room", number);
    struct slot *slot = &tx->slot[tx->head];
    uint32_t sent = slot->buf_idx;
    write_frame(buffer(tx, slot), number, MIN_FRAME);
    slot->len = MIN_FRAME;
    slot->ptr = 0;
    advance(tx);
    if (ioctl(from->fd, NIOCTXSYNC, NULL) || ioctl(to->fd, NIOCRXSYNC, NULL)) err(1, "sync");
    if (rx->head == rx->tail) errx(1, "frame %u: not received", number);
    slot = &rx->slot[rx->head];
    if (frame_number(buffer(rx, slot), slot->len) != number) errx(1, "frame %u: wrong bytes", number);
    int same = slot->buf_idx == sent;
    advance(rx);
    if (rx->head != rx->tail) errx(1, "frame %u: another one follows", number);
    if (ioctl(to->fd, NIOCRXSYNC, NULL) || ioctl(from->fd, NIOCTXSYNC, NULL)) err(1, "sync");
    return same;
}

int main(int argc, char **argv) {
    if (argc != 3) errx(2, "pipe PARENT COUNT");
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s{p", argv[1]);
    struct port master = open_port(name);
    snprintf(name, sizeof name, "%s}p", argv[1]);
    struct port slave = open_port(name);
    if (master.registration.mem_id != slave.registration.mem_id) errx(1, "the ends have two regions");
    slave.interface = (struct interface *)(master.memory + slave.registration.offset);
    uint32_t count = count_of(argv[2]), same = 0;
    for (uint32_t number = 0; number < count; number++) {
        same += pass(&master, &slave, number);
        same += pass(&slave, &master, number);
    }
    printf("passed %u, buffers %u\n", 2 * count, same);
    return 0;
}
