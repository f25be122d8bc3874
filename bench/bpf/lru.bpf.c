// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Drops all packets, behind a limit for each source (GCRA) in an LRU hash: 1000 packets a second, bursts of 100 ms.
 * The clock is that of the scrubber's limits.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define INTERVAL 1000000ULL
#define BURST 100000000ULL

/* The time at which the next packet of a source conforms. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __be32);
	__type(value, __u64);
} sources SEC(".maps");

/* Packets: those that conform, then those above the limit. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} dropped SEC(".maps");

static __always_inline int exceeds(__be32 source)
{
	__u64 now = bpf_ktime_get_coarse_ns(), first = now + INTERVAL;
	__u64 *next = bpf_map_lookup_elem(&sources, &source);

	if (!next) {
		bpf_map_update_elem(&sources, &source, &first, BPF_ANY);
		return 0;
	}
	if (*next > now + BURST)
		return 1;
	*next = (*next > now ? *next : now) + INTERVAL;
	return 0;
}

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	struct iphdr *ip = (void *)(ethernet + 1);
	__u32 at = 0;
	__u64 *count;

	if ((void *)(ip + 1) <= end && ethernet->h_proto == bpf_htons(ETH_P_IP))
		at = exceeds(ip->saddr);
	count = bpf_map_lookup_elem(&dropped, &at);
	if (count)
		*count += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
