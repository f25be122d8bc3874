// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Drops packets from a network, or to one, and nothing else: the least that a filter of floods does. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Set when it is loaded. */
const volatile struct {
	__u32 address, mask;
	__u32 is_destination;
} network SEC(".rodata.network") = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct iphdr *ip = (void *)(ethernet + 1);
	__u32 at = 0;
	__u64 *count;

	if ((void *)(ip + 1) > end || ethernet->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	if ((bpf_ntohl(network.is_destination ? ip->daddr : ip->saddr) & network.mask) != network.address)
		return XDP_PASS;
	count = bpf_map_lookup_elem(&dropped, &at);
	if (count)
		*count += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
