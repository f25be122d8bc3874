/* cancel PORT COUNT: cancels COUNT threads that sync and wait, at any moment; then the port still works. */
#include <pthread.h>

#include "port.h"

static struct port port;

static void *use_port(void *unused) {
    (void)unused;
    struct pollfd events = {.fd = port.fd, .events = POLLIN};
    for (;;) {
        if (ioctl(port.fd, NIOCRXSYNC, NULL)) err(1, "sync");
        poll(&events, 1, 1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) errx(2, "cancel PORT COUNT");
    uint32_t count = count_of(argv[2]);
    port = open_port(argv[1]);
    for (uint32_t number = 0; number < count; number++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, use_port, NULL)) errx(1, "no thread");
        for (volatile uint32_t turns = number * 997 % 20000 * 100; turns > 0; turns--) {}
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) errx(1, "a thread ended by itself");
    }
    if (ioctl(port.fd, NIOCTXSYNC, NULL) || ioctl(port.fd, NIOCRXSYNC, NULL)) err(1, "sync");
    printf("cancelled %u\n", count);
    return 0;
}
