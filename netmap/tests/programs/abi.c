/* abi: prints the structures and numbers of netmap's interface: of netmap_abi.h, or of netmap's own header. */
#ifdef NETMAP_HEADERS
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <net/netmap.h>

#define FIELD(type, field, own_type, own_field) PRINT(type, field, struct own_type, own_field)
#define NUMBER(name, own_name) printf("%s %lu\n", #name, (unsigned long)own_name)
#define BYTES(type, own_type) printf("%s %zu\n", #type, sizeof(struct own_type))
#else
#include <stdio.h>

#include "netmap_abi.h"

#define FIELD(type, field, own_type, own_field) PRINT(type, field, struct type, field)
#define NUMBER(name, own_name) printf("%s %lu\n", #name, (unsigned long)name)
#define BYTES(type, own_type) printf("%s %zu\n", #type, sizeof(struct type))
#endif

#define PRINT(type, field, real_type, real_field) \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(real_type, real_field), sizeof(((real_type *)0)->real_field))

int main(void) {
    NUMBER(NIOCCTRL, NIOCCTRL);
    NUMBER(NIOCTXSYNC, NIOCTXSYNC);
    NUMBER(NIOCRXSYNC, NIOCRXSYNC);
    NUMBER(API_VERSION, NETMAP_API);
    NUMBER(NAME_BYTES, NETMAP_REQ_IFNAMSIZ);
    NUMBER(REGISTER, NETMAP_REQ_REGISTER);
    NUMBER(VALE_ATTACH, NETMAP_REQ_VALE_ATTACH);
    NUMBER(VALE_DETACH, NETMAP_REQ_VALE_DETACH);
    NUMBER(VALE_LIST, NETMAP_REQ_VALE_LIST);
    NUMBER(VALE_NEWIF, NETMAP_REQ_VALE_NEWIF);
    NUMBER(VALE_DELIF, NETMAP_REQ_VALE_DELIF);
    NUMBER(ALL_NIC, NR_REG_ALL_NIC);
    NUMBER(SW, NR_REG_SW);
    NUMBER(NIC_SW, NR_REG_NIC_SW);
    NUMBER(BUF_CHANGED, NS_BUF_CHANGED);
    FIELD(slot, buf_idx, netmap_slot, buf_idx);
    FIELD(slot, len, netmap_slot, len);
    FIELD(slot, flags, netmap_slot, flags);
    FIELD(slot, ptr, netmap_slot, ptr);
    BYTES(slot, netmap_slot);
    FIELD(ring, buf_ofs, netmap_ring, buf_ofs);
    FIELD(ring, num_slots, netmap_ring, num_slots);
    FIELD(ring, nr_buf_size, netmap_ring, nr_buf_size);
    FIELD(ring, ringid, netmap_ring, ringid);
    FIELD(ring, dir, netmap_ring, dir);
    FIELD(ring, head, netmap_ring, head);
    FIELD(ring, cur, netmap_ring, cur);
    FIELD(ring, tail, netmap_ring, tail);
    FIELD(ring, flags, netmap_ring, flags);
    FIELD(ring, ts, netmap_ring, ts);
    BYTES(ring, netmap_ring);
    FIELD(interface, ni_name, netmap_if, ni_name);
    FIELD(interface, ni_version, netmap_if, ni_version);
    FIELD(interface, ni_flags, netmap_if, ni_flags);
    FIELD(interface, ni_tx_rings, netmap_if, ni_tx_rings);
    FIELD(interface, ni_rx_rings, netmap_if, ni_rx_rings);
    FIELD(interface, ni_bufs_head, netmap_if, ni_bufs_head);
    FIELD(interface, ni_host_tx_rings, netmap_if, ni_host_tx_rings);
    FIELD(interface, ni_host_rx_rings, netmap_if, ni_host_rx_rings);
    BYTES(interface, netmap_if);
    FIELD(header, version, nmreq_header, nr_version);
    FIELD(header, reqtype, nmreq_header, nr_reqtype);
    FIELD(header, name, nmreq_header, nr_name);
    FIELD(header, options, nmreq_header, nr_options);
    FIELD(header, body, nmreq_header, nr_body);
    BYTES(header, nmreq_header);
    FIELD(registration, offset, nmreq_register, nr_offset);
    FIELD(registration, memsize, nmreq_register, nr_memsize);
    FIELD(registration, tx_slots, nmreq_register, nr_tx_slots);
    FIELD(registration, rx_slots, nmreq_register, nr_rx_slots);
    FIELD(registration, tx_rings, nmreq_register, nr_tx_rings);
    FIELD(registration, rx_rings, nmreq_register, nr_rx_rings);
    FIELD(registration, host_tx_rings, nmreq_register, nr_host_tx_rings);
    FIELD(registration, host_rx_rings, nmreq_register, nr_host_rx_rings);
    FIELD(registration, mem_id, nmreq_register, nr_mem_id);
    FIELD(registration, ringid, nmreq_register, nr_ringid);
    FIELD(registration, mode, nmreq_register, nr_mode);
    FIELD(registration, extra_bufs, nmreq_register, nr_extra_bufs);
    FIELD(registration, flags, nmreq_register, nr_flags);
    BYTES(registration, nmreq_register);
    FIELD(vale_attach, port_index, nmreq_vale_attach, port_index);
    BYTES(vale_attach, nmreq_vale_attach);
    BYTES(vale_detach, nmreq_vale_detach);
    FIELD(vale_list, bridge_index, nmreq_vale_list, nr_bridge_idx);
    FIELD(vale_list, port_index, nmreq_vale_list, nr_port_idx);
    BYTES(vale_list, nmreq_vale_list);
    FIELD(vale_newif, tx_slots, nmreq_vale_newif, nr_tx_slots);
    FIELD(vale_newif, rx_slots, nmreq_vale_newif, nr_rx_slots);
    FIELD(vale_newif, tx_rings, nmreq_vale_newif, nr_tx_rings);
    FIELD(vale_newif, rx_rings, nmreq_vale_newif, nr_rx_rings);
    FIELD(vale_newif, mem_id, nmreq_vale_newif, nr_mem_id);
    BYTES(vale_newif, nmreq_vale_newif);
    return 0;
}
