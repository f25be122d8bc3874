/* allocations: sends a socket to itself, and prints how often sendmsg and recvmsg allocate memory. */
#include "share.h"

static int allocations;

void *__libc_malloc(size_t bytes);

/* libc and the libraries call this one. */
void *malloc(size_t bytes) {
    allocations++;
    return __libc_malloc(bytes);
}

int main(void) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets)) err(1, "socketpair");
    /* With a file of netmap's, sendmsg looks for it in the message. */
    open_device();
    for (int round = 0; round < 2; round++) {
        /* Functions are looked up in the first round. */
        allocations = 0;
        union files files = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
        memcpy(CMSG_DATA(&files.header), &sockets[0], sizeof sockets[0]);
        char byte = 0;
        struct iovec data = {&byte, 1};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &files};
        message.msg_controllen = sizeof files;
        if (sendmsg(sockets[0], &message, 0) != 1) err(1, "sendmsg");
        if (recvmsg(sockets[1], &message, 0) != 1) err(1, "recvmsg");
        if (message.msg_controllen == 0) errx(1, "no descriptor");
    }
    int counted = allocations;
    /* The count works. */
    free(malloc(1));
    printf("allocations %d of %d\n", counted, allocations);
    return 0;
}
