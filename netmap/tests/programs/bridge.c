/* bridge PORT PORT COUNT: passes frames in both directions until it has passed COUNT numbered ones. */
#include "port.h"

static int shares_memory;

/* Moves one frame: by exchange of buffers if both ports are in one region, otherwise by a copy. */
static void move(struct ring *from, struct ring *to) {
    struct slot *in = &from->slot[from->head], *out = &to->slot[to->head];
    if (shares_memory) {
        uint32_t buffer = out->buf_idx;
        out->buf_idx = in->buf_idx;
        in->buf_idx = buffer;
        out->flags = in->flags = BUF_CHANGED;
    } else {
        memcpy(buffer(to, out), buffer(from, in), in->len);
        out->flags = 0;
    }
    out->len = in->len;
    advance(from);
    advance(to);
}

/* Passes on what has been received while there is room. Returns the numbered frames. */
static uint32_t pass(const struct port *from, const struct port *to) {
    uint32_t numbered = 0, out = 0;
    for (uint32_t in = 0; in < rx_rings(from); in++) {
        struct ring *rx = rx_ring(from, in);
        while (rx && rx->head != rx->tail && out < tx_rings(to)) {
            struct ring *tx = tx_ring(to, out);
            if (!tx || tx->head == tx->tail) {
                out++;
                continue;
            }
            struct slot *slot = &rx->slot[rx->head];
            numbered += frame_number(buffer(rx, slot), slot->len) >= 0;
            move(rx, tx);
        }
    }
    return numbered;
}

/* Returns true if received frames are waiting. */
static int has_received(const struct port *port) {
    for (uint32_t i = 0; i < rx_rings(port); i++) {
        struct ring *ring = rx_ring(port, i);
        if (ring && ring->head != ring->tail) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) errx(2, "bridge PORT PORT COUNT");
    uint32_t count = count_of(argv[3]), passed = 0;
    struct port one = open_port(argv[1]), two = open_port(argv[2]);
    shares_memory = one.registration.mem_id == two.registration.mem_id;
    if (shares_memory) {
        two.memory = one.memory;
        two.interface = (struct interface *)(one.memory + two.registration.offset);
    }
    puts("ready");
    fflush(stdout);
    while (passed < count) {
        struct pollfd events[2] = {
            {.fd = one.fd, .events = has_received(&two) ? POLLOUT : POLLIN},
            {.fd = two.fd, .events = has_received(&one) ? POLLOUT : POLLIN},
        };
        wait_for(events, 2);
        passed += pass(&one, &two) + pass(&two, &one);
    }
    for (int waited = 0; waited < 2; waited++)
        if (ioctl(one.fd, NIOCTXSYNC, NULL) || ioctl(two.fd, NIOCTXSYNC, NULL)) err(1, "sync");
    printf("passed %u, %s\n", passed, shares_memory ? "buffers exchanged" : "copied");
    return 0;
}
