/*
 * send PORT COUNT LENGTH CREDITS: sends numbered frames over all transmit rings, and waits until all were
 * sent. CREDITS is a FIFO into which the receiver writes a byte for every BURST frames, because a full ring
 * of the receiver loses frames.
 */
#include "port.h"

/* Waits until the receiver has the last burst. */
static void take_credit(int credits) {
    char credit;
    if (read(credits, &credit, 1) != 1) errx(1, "the receiver has ended");
}

static int pending(const struct port *port) {
    for (uint32_t i = 0; i < tx_rings(port); i++) {
        struct ring *ring = tx_ring(port, i);
        if (ring && (ring->tail + 1) % ring->num_slots != ring->head) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) errx(2, "send PORT COUNT LENGTH CREDITS");
    uint32_t count = count_of(argv[2]), length = count_of(argv[3]), sent = 0;
    struct port port = open_port(argv[1]);
    struct pollfd events = {.fd = port.fd, .events = POLLOUT};
    int credits = open(argv[4], O_RDONLY);
    if (credits < 0) err(1, "open %s", argv[4]);
    for (uint32_t limit = BURST; sent < count;) {
        wait_for(&events, 1);
        for (uint32_t i = 0; i < tx_rings(&port); i++) {
            struct ring *ring = tx_ring(&port, i);
            while (ring && sent < count && sent < limit && ring->head != ring->tail) {
                struct slot *slot = &ring->slot[ring->head];
                if (length > ring->nr_buf_size) errx(2, "a buffer has %u bytes", ring->nr_buf_size);
                write_frame(buffer(ring, slot), sent++, length);
                slot->len = (uint16_t)length;
                slot->flags = 0;
                advance(ring);
            }
        }
        if (sent == limit && sent < count) {
            if (ioctl(port.fd, NIOCTXSYNC, NULL)) err(1, "sync");
            take_credit(credits);
            limit += BURST;
        }
    }
    for (int waited = 0; ; waited++) {
        if (ioctl(port.fd, NIOCTXSYNC, NULL)) err(1, "sync");
        if (!pending(&port)) break;
        if (waited >= LIMIT) errx(1, "frames are still pending after %d ms", LIMIT);
        usleep(1000);
    }
    printf("sent %u\n", sent);
    return 0;
}
