/* take PATH COUNT: receives a port from the program that listens at PATH, and COUNT numbered frames from the port. */
#include "share.h"

int main(int argc, char **argv) {
    if (argc != 3) errx(2, "take PATH COUNT");
    uint32_t count = count_of(argv[2]), received = 0;
    struct sockaddr_un address = address_of(argv[1]);
    int peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(peer, (struct sockaddr *)&address, sizeof address)) err(1, "connect");
    struct port port = {0};
    union files files;
    struct iovec data = {&port.registration, sizeof port.registration};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &files, .msg_controllen = sizeof files};
    if (recvmsg(peer, &message, 0) < 0) err(1, "recvmsg");
    if (!message.msg_controllen) errx(1, "no descriptor");
    memcpy(&port.fd, CMSG_DATA(&files.header), sizeof port.fd);
    /* The other program ends. */
    char byte;
    if (read(peer, &byte, 1) != 0) err(1, "read");
    map_port(&port);
    puts("ready");
    fflush(stdout);
    struct pollfd events = {.fd = port.fd, .events = POLLIN};
    while (received < count) {
        wait_for(&events, 1);
        for (struct ring *ring = rx_ring(&port, 0); ring->head != ring->tail; advance(ring)) {
            struct slot *slot = &ring->slot[ring->head];
            if (frame_number(buffer(ring, slot), slot->len) != received++) errx(1, "frame %u is wrong", received - 1);
        }
    }
    /* A pipe returns slots to its sender only now. */
    if (ioctl(port.fd, NIOCRXSYNC, NULL)) err(1, "sync");
    printf("received %u\n", received);
    return 0;
}
