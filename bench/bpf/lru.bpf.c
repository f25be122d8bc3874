// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Drops all packets, behind a limit for each source (GCRA) in an LRU hash: 1000 packets a second, bursts of 100 ms.
 * The clock is that of the scrubber's limits.
 */
#include "drop.h"

#define INTERVAL 1000000ULL
#define BURST 100000000ULL

/* The time at which the next packet of a source conforms. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __be32);
	__type(value, __u64);
} sources SEC(".maps");

/* Returns true if a packet exceeds its source's limit; charges it if not. */
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

/* Drops a packet. Kind 0 conforms, kind 1 exceeds the limit. */
SEC("xdp")
int drop(struct xdp_md *ctx)
{
	struct iphdr *ip = ipv4_of(ctx);

	return count_drop(ip && exceeds(ip->saddr));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
