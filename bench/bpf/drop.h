/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Parts of all programs that drop: the IPv4 header of a frame, and counters. */
#ifndef BENCH_DROP_H
#define BENCH_DROP_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Dropped packets. A program gives its kinds a meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

/* Returns the IPv4 header of an untagged frame; NULL if it has none. */
static __always_inline struct iphdr *ipv4_of(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct iphdr *ip = (void *)(ethernet + 1);

	return (void *)(ip + 1) <= end && ethernet->h_proto == bpf_htons(ETH_P_IP) ? ip : 0;
}

/* Counts a packet of a kind. Returns XDP_DROP. */
static __always_inline int count_drop(__u32 kind)
{
	__u64 *count = bpf_map_lookup_elem(&dropped, &kind);

	if (count)
		*count += 1;
	return XDP_DROP;
}

#endif
