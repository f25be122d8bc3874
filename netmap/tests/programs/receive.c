/*
 * receive PORT COUNT CREDITS: waits for numbered frames until it has COUNT different ones, and checks their
 * bytes. CREDITS is the FIFO of `send`.
 */
#include "port.h"

int main(int argc, char **argv) {
    if (argc != 4) errx(2, "receive PORT COUNT CREDITS");
    uint32_t count = count_of(argv[2]), different = 0, repeated = 0, wrong = 0;
    char *seen = calloc(count, 1);
    struct port port = open_port(argv[1]);
    struct pollfd events = {.fd = port.fd, .events = POLLIN};
    puts("ready");
    fflush(stdout);
    int credits = open(argv[3], O_WRONLY);
    if (credits < 0) err(1, "open %s", argv[3]);
    while (different < count && !wrong) {
        wait_for(&events, 1);
        for (uint32_t i = 0; i < rx_rings(&port); i++) {
            struct ring *ring = rx_ring(&port, i);
            for (; ring && ring->head != ring->tail; advance(ring)) {
                struct slot *slot = &ring->slot[ring->head];
                int64_t number = frame_number(buffer(ring, slot), slot->len);
                if (number == -1) continue;
                if (number < 0 || number >= count) wrong++;
                else if (seen[number]++) repeated++;
                else if (++different % BURST == 0 && write(credits, "+", 1) != 1) err(1, "write a credit");
            }
        }
    }
    /* A pipe returns slots to its sender only now. */
    if (ioctl(port.fd, NIOCRXSYNC, NULL)) err(1, "sync");
    printf("received %u, repeated %u, wrong %u\n", different, repeated, wrong);
    return wrong != 0;
}
