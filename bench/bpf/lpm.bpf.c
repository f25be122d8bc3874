// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Drops all packets, behind a look-up of their source in an LPM trie: the kernel's map for lists of networks. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

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

/* Packets: others, then those of the networks. */
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

	if ((void *)(ip + 1) <= end && ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct network source = { .bits = 32, .address = ip->saddr };

		at = bpf_map_lookup_elem(&networks, &source) != 0;
	}
	count = bpf_map_lookup_elem(&dropped, &at);
	if (count)
		*count += 1;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
