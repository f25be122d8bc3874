// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Drops all packets, behind a look-up of their source in an LPM trie: the kernel's map for lists of networks. */
#include "drop.h"

struct network {
	__u32 bits;
	__be32 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct network);
	__type(value, __u8);
} networks SEC(".maps");

/* Returns true if a source is in one of the networks. */
static __always_inline int is_listed(__be32 source)
{
	struct network key = { .bits = 32, .address = source };

	return bpf_map_lookup_elem(&networks, &key) != 0;
}

/* Drops a packet. Kind 1 is from one of the networks, kind 0 is not. */
SEC("xdp")
int drop(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);

	return count_drop(ip && is_listed(ip->saddr));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
