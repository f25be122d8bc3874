// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Fills the cache of answers (answer_cache.h), at tc's egress: with what sockets of this host answer to A2S queries. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Functions of rules. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "answer_cache.h"

#define TC_NEXT -1

struct scrub_control control SEC(SCRUB_CONTROL);

/* The start of a datagram with an answer that is not split. */
struct answer_start {
	struct udphdr udp;
	__be32 head;
	__u8 kind;
} __attribute__((packed));

/* An answer in a packet. */
struct sent_answer {
	__u64 key;
	__u32 at;		/* offset of its payload */
	__u32 length;
};

/* Returns the kind of query that an answer belongs to; 0 for all others. */
static __always_inline __u32 query_of(__u8 kind)
{
	switch (kind) {
	case 'I':
		return 'T';
	case 'D':
		return 'U';
	case 'E':
		return 'V';
	default:
		return 0;
	}
}

/* Reads the addresses of a packet. Returns the offset of its UDP header; 0 if it has none. */
static __always_inline __u32 read_source(struct __sk_buff *skb, __u64 *high, __u64 *low, __u32 *version)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	__be32 *word = ip.v6.saddr.in6_u.u6_addr32;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip.v4, sizeof(ip.v4)) ||
		    ip.v4.protocol != IPPROTO_UDP || ip.v4.ihl * 4 != sizeof(ip.v4) ||
		    ip.v4.frag_off & bpf_htons(IP_MF | IP_OFFSET))
			return 0;
		*high = (__u64)bpf_ntohl(ip.v4.saddr) << 32;
		*low = 0;
		*version = 4;
		return sizeof(struct ethhdr) + sizeof(ip.v4);
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip.v6, sizeof(ip.v6)) || ip.v6.nexthdr != IPPROTO_UDP)
		return 0;
	*high = (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
	*low = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	*version = 6;
	return sizeof(struct ethhdr) + sizeof(ip.v6);
}

/* Reads a packet that may have an answer. Returns false if it has none that is kept. */
static __always_inline int read_answer(struct __sk_buff *skb, struct sent_answer *sent)
{
	__u32 version, at, length, query;
	struct answer_start start;
	__u64 high, low;

	at = read_source(skb, &high, &low, &version);
	if (!at || bpf_skb_load_bytes(skb, at, &start, sizeof(start)) || start.head != ~0U)
		return 0;
	query = query_of(start.kind);
	length = bpf_ntohs(start.udp.len) - sizeof(start.udp);
	if (!query || length < CACHED_MIN || length > CACHED_MAX)
		return 0;
	sent->key = answer_key(high, low, version, bpf_ntohs(start.udp.source), query, control.secrets);
	sent->at = at + sizeof(start.udp);
	sent->length = length;
	return 1;
}

/* Copies an answer to its entry. Returns false if it cannot be read. */
static __always_inline int copy_answer(struct __sk_buff *skb, struct cached_answer *answer, const struct sent_answer *sent)
{
	__u32 length = checked_length(sent->length), sum = 0;

	if (!length)
		return 0;
	/* The bytes behind the answer count in its sum. */
	answer->payload[length / 4] = 0;
	if (bpf_skb_load_bytes(skb, sent->at, answer->payload, length))
		return 0;
	for (__u32 i = 0; i < CACHED_WORDS && i * 4 < length; i++) {
		__u32 word = bpf_ntohl(answer->payload[i]);

		sum += (word >> 16) + (word & 0xffff);
	}
	answer->length = length;
	answer->sum = sum;
	return 1;
}

SEC("tc")
int scrub_learn(struct __sk_buff *skb)
{
	__u64 until = *(volatile __u64 *)&answer_cache.until, now;
	struct cached_answer *answer;
	struct sent_answer sent;

	/* The source of a forwarded packet may be forged. A bridge leaves its socket. */
	if (!until || !skb->sk || skb->ingress_ifindex || skb->gso_size)
		return TC_NEXT;
	now = *(volatile __u64 *)&control.now ?: bpf_ktime_get_coarse_ns();
	if (until <= now || !read_answer(skb, &sent))
		return TC_NEXT;
	answer = find_answer(sent.key);
	if (!answer || now - *(volatile __u64 *)&answer->time < CACHE_REFRESH_TIME || !begin_write(answer))
		return TC_NEXT;
	if (answer->key == sent.key) {
		answer->time = 0;
		if (copy_answer(skb, answer, &sent)) {
			answer->until = now + CACHE_HOLD_TIME;
			answer->time = now;
		}
	}
	end_write(answer);
	return TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
