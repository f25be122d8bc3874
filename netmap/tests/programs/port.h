/* A registered port and its rings, for the programs beside this file. */
#ifndef PORT_H
#define PORT_H

#include <err.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netmap_abi.h"

/* Only a broken port needs so long, in milliseconds. */
enum { LIMIT = 30000 };
/* Numbered frames that may be on the way: a ring of any port holds more. */
enum { BURST = 128 };
/* Frames of the ethertype for local experiments: a number and bytes that follow from it. */
enum { ETHERTYPE = 0x88B5, NUMBER_AT = 14, MIN_FRAME = 60 };

struct port {
    int fd;
    struct registration registration;
    char *memory;
    struct interface *interface;
};

/* Performs a request of the device. Returns 0, or -1 with errno. */
static inline int control(int fd, uint16_t reqtype, char name[NAME_BYTES], void *body) {
    struct header header = {.version = API_VERSION, .reqtype = reqtype, .body = (uintptr_t)body};
    memcpy(header.name, name, NAME_BYTES);
    int result = ioctl(fd, NIOCCTRL, &header);
    memcpy(name, header.name, NAME_BYTES);
    return result;
}

static inline int open_device(void) {
    int fd = open("/dev/netmap", O_RDWR);
    if (fd < 0) err(1, "open /dev/netmap");
    return fd;
}

/* Maps a registered port's memory. */
static inline void map_port(struct port *port) {
    size_t bytes = port->registration.memsize;
    port->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, port->fd, 0);
    if (port->memory == MAP_FAILED) err(1, "mmap");
    port->interface = (struct interface *)(port->memory + port->registration.offset);
}

/* Registers a port: NAME, NAME^ for the host's rings, NAME* for the rings of card and host. */
static inline struct port open_port(const char *text) {
    struct port port = {.fd = open_device(), .registration = {.mode = ALL_NIC}};
    char name[NAME_BYTES] = {0};
    strncpy(name, text, NAME_BYTES - 1);
    char *last = name + strlen(name) - 1;
    if (last > name && (*last == '^' || *last == '*')) {
        port.registration.mode = *last == '^' ? SW : NIC_SW;
        *last = 0;
    }
    if (control(port.fd, REGISTER, name, &port.registration)) err(1, "register %s", text);
    map_port(&port);
    return port;
}

static inline struct ring *ring_at(const struct port *port, uint32_t index) {
    int64_t offset = port->interface->ring_ofs[index];
    return offset ? (struct ring *)((char *)port->interface + offset) : NULL;
}

static inline uint32_t tx_rings(const struct port *port) {
    return port->interface->ni_tx_rings + port->interface->ni_host_tx_rings;
}

static inline uint32_t rx_rings(const struct port *port) {
    return port->interface->ni_rx_rings + port->interface->ni_host_rx_rings;
}

/* Returns a ring, or NULL if the port is not bound to it. */
static inline struct ring *tx_ring(const struct port *port, uint32_t index) {
    return ring_at(port, index);
}

static inline struct ring *rx_ring(const struct port *port, uint32_t index) {
    return ring_at(port, tx_rings(port) + index);
}

static inline char *buffer(const struct ring *ring, const struct slot *slot) {
    return (char *)ring + ring->buf_ofs + (size_t)slot->buf_idx * ring->nr_buf_size;
}

/* Gives the slot at head back. */
static inline void advance(struct ring *ring) {
    uint32_t next = ring->head + 1 == ring->num_slots ? 0 : ring->head + 1;
    ring->cur = next;
    ring->head = next;
}

/* Waits for events of ports. */
static inline void wait_for(struct pollfd *ports, nfds_t count) {
    int ready = poll(ports, count, LIMIT);
    if (ready < 0) err(1, "poll");
    if (ready == 0) errx(1, "no event within %d ms", LIMIT);
    for (nfds_t i = 0; i < count; i++)
        if (ports[i].revents & POLLERR) errx(1, "poll: a ring was reset");
}

/* Writes a frame of a number. */
static inline void write_frame(char *bytes, uint32_t number, size_t length) {
    static const unsigned char addresses[12] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1};
    memcpy(bytes, addresses, sizeof addresses);
    bytes[12] = (char)(ETHERTYPE >> 8);
    bytes[13] = (char)(ETHERTYPE & 0xFF);
    memcpy(bytes + NUMBER_AT, &number, sizeof number);
    for (size_t i = NUMBER_AT + sizeof number; i < length; i++) bytes[i] = (char)(number + i);
}

/* Returns the number of a frame: -1 for another program's, -2 for one with wrong bytes. */
static inline int64_t frame_number(const char *bytes, size_t length) {
    char expected[2048];
    uint32_t number;
    if (length < MIN_FRAME || length > sizeof expected) return -1;
    if ((unsigned char)bytes[12] != ETHERTYPE >> 8 || (unsigned char)bytes[13] != (ETHERTYPE & 0xFF))
        return -1;
    memcpy(&number, bytes + NUMBER_AT, sizeof number);
    write_frame(expected, number, length);
    return memcmp(bytes, expected, length) ? -2 : (int64_t)number;
}

static inline uint32_t count_of(const char *text) {
    unsigned long count = strtoul(text, NULL, 10);
    if (count == 0 || count > 10000000) errx(2, "a count is 1 to 10000000: %s", text);
    return (uint32_t)count;
}

#endif
