/*
 * The structures of netmap's interface to programs, API 14, 64-bit, by their public offsets. No package of the
 * common distributions has netmap's headers, and these programs do not share the library's view. A test compares
 * them with netmap's header (abi.c).
 */
#ifndef NETMAP_ABI_H
#define NETMAP_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>

#define NIOCCTRL 0xC0586997UL
#define NIOCTXSYNC 0x6994UL
#define NIOCRXSYNC 0x6995UL

enum { API_VERSION = 14, NAME_BYTES = 64 };

enum request_type {
    REGISTER = 1,
    PORT_INFO_GET,
    VALE_ATTACH,
    VALE_DETACH,
    VALE_LIST,
    PORT_HDR_SET,
    PORT_HDR_GET,
    VALE_NEWIF,
    VALE_DELIF,
};

enum mode { ALL_NIC = 1, SW = 2, NIC_SW = 3 };

enum slot_flags { BUF_CHANGED = 1 };

struct slot {
    uint32_t buf_idx;
    uint16_t len;
    uint16_t flags;
    uint64_t ptr;
};

struct ring {
    int64_t buf_ofs;
    uint32_t num_slots;
    uint32_t nr_buf_size;
    uint16_t ringid;
    uint16_t dir;
    uint32_t head;
    uint32_t cur;
    uint32_t tail;
    uint32_t flags;
    uint32_t pad;
    struct timeval ts;
    uint64_t offset_mask;
    uint64_t buf_align;
    uint8_t pad2[56];
    uint8_t sem[128];
    struct slot slot[];
};

struct interface {
    char ni_name[16];
    uint32_t ni_version;
    uint32_t ni_flags;
    uint32_t ni_tx_rings;
    uint32_t ni_rx_rings;
    uint32_t ni_bufs_head;
    uint32_t ni_host_tx_rings;
    uint32_t ni_host_rx_rings;
    uint32_t spare[3];
    int64_t ring_ofs[];
};

struct header {
    uint16_t version;
    uint16_t reqtype;
    uint32_t reserved;
    char name[NAME_BYTES];
    uint64_t options;
    uint64_t body;
};

struct registration {
    uint64_t offset;
    uint64_t memsize;
    uint32_t tx_slots;
    uint32_t rx_slots;
    uint16_t tx_rings;
    uint16_t rx_rings;
    uint16_t host_tx_rings;
    uint16_t host_rx_rings;
    uint16_t mem_id;
    uint16_t ringid;
    uint32_t mode;
    uint32_t extra_bufs;
    uint64_t flags;
};

struct vale_attach {
    struct registration registration;
    uint32_t port_index;
    uint32_t pad;
};

struct vale_detach {
    uint32_t port_index;
    uint32_t pad;
};

struct vale_list {
    uint16_t bridge_index;
    uint16_t pad;
    uint32_t port_index;
};

struct vale_newif {
    uint32_t tx_slots;
    uint32_t rx_slots;
    uint16_t tx_rings;
    uint16_t rx_rings;
    uint16_t mem_id;
    uint16_t pad;
};

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

AT(slot, len, 4);
AT(slot, flags, 6);
AT(slot, ptr, 8);
SIZE(slot, 16);
AT(ring, num_slots, 8);
AT(ring, nr_buf_size, 12);
AT(ring, ringid, 16);
AT(ring, dir, 18);
AT(ring, head, 20);
AT(ring, cur, 24);
AT(ring, tail, 28);
AT(ring, flags, 32);
AT(ring, ts, 40);
AT(ring, offset_mask, 56);
AT(ring, buf_align, 64);
AT(ring, sem, 128);
AT(ring, slot, 256);
AT(interface, ni_version, 16);
AT(interface, ni_tx_rings, 24);
AT(interface, ni_rx_rings, 28);
AT(interface, ni_bufs_head, 32);
AT(interface, ni_host_tx_rings, 36);
AT(interface, ni_host_rx_rings, 40);
AT(interface, ring_ofs, 56);
AT(header, name, 8);
AT(header, options, 72);
AT(header, body, 80);
SIZE(header, 88);
AT(registration, tx_rings, 24);
AT(registration, mem_id, 32);
AT(registration, mode, 36);
AT(registration, extra_bufs, 40);
AT(registration, flags, 48);
SIZE(registration, 56);
AT(vale_attach, port_index, 56);
SIZE(vale_attach, 64);
AT(vale_list, port_index, 4);
AT(vale_newif, mem_id, 12);
SIZE(vale_newif, 16);

#endif
