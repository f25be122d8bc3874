/*
 * valectl: creates a persistent port, attaches it to a switch, lists it, detaches and deletes it, and
 * prints each answer. All in one process, so that it needs no server.
 */
#include <errno.h>

#include "port.h"

static int fd;

/* Performs a request and prints its result. */
static int request(const char *what, uint16_t reqtype, char name[NAME_BYTES], void *body) {
    int failed = control(fd, reqtype, name, body);
    printf("%s %s: %s\n", what, name, failed ? strerror(errno) : "ok");
    return failed;
}

static void list(void) {
    struct vale_list place = {0};
    for (;;) {
        char name[NAME_BYTES] = {0};
        if (control(fd, VALE_LIST, name, &place)) break;
        printf("port %u of switch %u: %s\n", place.port_index, place.bridge_index, name);
        place.port_index++;
    }
    printf("end of list: %s\n", strerror(errno));
}

int main(void) {
    char port[NAME_BYTES] = "v1", attached[NAME_BYTES] = "vale3:v1", missing[NAME_BYTES] = "vale3:v2";
    struct vale_newif new = {.tx_slots = 64, .rx_slots = 128};
    struct vale_attach attach = {.registration = {.mode = ALL_NIC}};
    struct vale_detach detach = {0};
    fd = open_device();
    request("create", VALE_NEWIF, port, &new);
    printf("slots %u %u\n", new.tx_slots, new.rx_slots);
    request("create", VALE_NEWIF, port, &new);
    request("attach", VALE_ATTACH, attached, &attach);
    request("attach", VALE_ATTACH, attached, &attach);
    list();
    request("delete", VALE_DELIF, port, NULL);
    request("detach", VALE_DETACH, missing, &detach);
    request("detach", VALE_DETACH, attached, &detach);
    list();
    request("delete", VALE_DELIF, port, NULL);
    request("delete", VALE_DELIF, port, NULL);
    return 0;
}
