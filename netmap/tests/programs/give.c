/* give PORT PATH: registers a port, sends it to the program that connects to PATH, and exits. */
#include "share.h"

int main(int argc, char **argv) {
    if (argc != 3) errx(2, "give PORT PATH");
    struct port port = open_port(argv[1]);
    struct sockaddr_un address = address_of(argv[2]);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) err(1, "listen");
    puts("ready");
    fflush(stdout);
    int peer = accept(listener, NULL, NULL);
    if (peer < 0) err(1, "accept");
    union files files = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&files.header), &port.fd, sizeof port.fd);
    struct iovec data = {&port.registration, sizeof port.registration};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &files, .msg_controllen = sizeof files};
    if (sendmsg(peer, &message, 0) < 0) err(1, "sendmsg");
    return 0;
}
