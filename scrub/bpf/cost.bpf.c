// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The scrubber's stages on packets with random addresses, and a base that only makes these: for measurements. The answer
 * to a SYN becomes the next packet: it has room for its headers.
 */
#include "scrub.bpf.c"

/* Bits of the addresses that are random; the others are the packet's. */
const volatile __u32 random_source SEC(".rodata.random") = 0xffffffff;
const volatile __u32 random_destination SEC(".rodata.random") = 0;

/* IPv4 packets to draw from, if there are some; their number is a power of two. */
struct drawn_packet {
	__be32 src, dst;
	__be16 sport, dport;
	__u8 protocol;
	__u8 tcp_flags;
	__u16 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drawn_packet);
} cost_packets SEC(".maps");

const volatile __u32 drawn_packets SEC(".rodata.random") = 0;

/* Replaces a TCP packet's addresses, ports, protocol and flags by those of one that is drawn. */
static __always_inline int draw(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 at = bpf_get_prandom_u32() & (drawn_packets - 1);
	struct drawn_packet *drawn = bpf_map_lookup_elem(&cost_packets, &at);
	struct iphdr *ip = start + sizeof(struct ethhdr);
	struct tcphdr *tcp = (void *)(ip + 1);

	if (!drawn || (void *)(tcp + 1) > end)
		return 0;
	ip->saddr = drawn->src;
	ip->daddr = drawn->dst;
	ip->protocol = drawn->protocol;
	tcp->source = drawn->sport;
	tcp->dest = drawn->dport;
	if (drawn->protocol == IPPROTO_UDP)
		tcp->seq = bpf_htonl(30 << 16);
	((__u8 *)tcp)[12] = sizeof(*tcp) / 4 << 4;
	((__u8 *)tcp)[13] = drawn->tcp_flags;
	return 1;
}

/* Changes the addresses of an untagged packet. */
static __always_inline int random_addresses(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = start;
	__u32 source = bpf_get_prandom_u32(), destination = bpf_get_prandom_u32();

	if (start + sizeof(*ethernet) + sizeof(struct ipv6hdr) > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = start + sizeof(*ethernet);

		ip->saddr = (ip->saddr & ~random_source) | (source & random_source);
		ip->daddr = (ip->daddr & ~random_destination) | (destination & random_destination);
	} else {
		struct ipv6hdr *ip = start + sizeof(*ethernet);
		__u32 *word = ip->saddr.in6_u.u6_addr32;

		/* In 2000::/3. */
		word[0] = (source & bpf_htonl(0x1fffffff)) | bpf_htonl(0x20000000);
		word[1] = destination;
	}
	return 1;
}

static __always_inline int randomize(struct xdp_md *ctx)
{
	return drawn_packets ? draw(ctx) : random_addresses(ctx);
}

SEC("xdp")
int cost_base(struct xdp_md *ctx)
{
	return randomize(ctx) ? XDP_DROP : XDP_ABORTED;
}

SEC("xdp")
int cost_stages(struct xdp_md *ctx)
{
	struct decision it = {};
	int verdict;

	if (!randomize(ctx) || !begin(&it, ctx))
		return XDP_ABORTED;
	verdict = decide(&it);
	count_at(it.side, it.counter, it.bytes);
	return verdict == XDP_TX ? answer(&it) : verdict;
}
