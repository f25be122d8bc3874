// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Drops packets from a network, or to one, and nothing else: the least that a filter of floods does. */
#include "drop.h"

/* Set when it is loaded. */
const volatile struct {
	__u32 address, mask;
	__u32 is_destination;
} network SEC(".rodata.network") = {};

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);

	if (!ip || (bpf_ntohl(network.is_destination ? ip->daddr : ip->saddr) & network.mask) != network.address)
		return XDP_PASS;
	return count_drop(0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
