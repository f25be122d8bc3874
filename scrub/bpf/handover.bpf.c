// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Completes the connections of SYN cookies (syncookie.h), at tc's ingress: the listener gets the client's first packet
 * behind the SYN, with the options of the SYN that the cookie encodes. Needs Linux 6.9.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Functions of rules. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "handover_settings.h"
#include "scrub.h"
#include "syncookie.h"

#define TC_NEXT -1
#define TC_DROP 2
#define FLAG_BYTE 13		/* of a TCP header */

/* Of the kernel (include/net/tcp.h). */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

/* Of the kernel (include/net/sock.h); libbpf finds the offsets of these fields. */
struct sock {
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
} __attribute__((preserve_access_index));

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *s, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;

struct scrub_control control SEC(SCRUB_CONTROL);
struct scrub_handover handover SEC(".data.handover");

/* A packet, and connections that this CPU has just handed over. */
#define RECENT 256
#define RECENT_US 1000

struct recent_flow {
	__u32 tag;
	__u32 us;
};

struct scratch {
	struct scrub_packet packet;
	struct tcp_options options;
	__u32 options_size;
	struct recent_flow recent[RECENT];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} handover_scratch SEC(".maps");

/* Reads the addresses of a packet. Returns the offset of its TCP header; 0 if it has none. */
static __always_inline __u32 read_v4(struct __sk_buff *skb, struct scrub_packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP ||
	    ip.frag_off & bpf_htons(IP_MF | IP_OFFSET))
		return 0;
	packet->version = 4;
	packet->src_high = (__u64)bpf_ntohl(ip.saddr) << 32;
	packet->dst_high = (__u64)bpf_ntohl(ip.daddr) << 32;
	packet->src_low = packet->dst_low = 0;
	return sizeof(struct ethhdr) + ip.ihl * 4;
}

static __always_inline __u32 read_v6(struct __sk_buff *skb, struct scrub_packet *packet)
{
	struct ipv6hdr ip;
	__be32 *word;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
		return 0;
	packet->version = 6;
	word = ip.saddr.in6_u.u6_addr32;
	packet->src_high = (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
	packet->src_low = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	word = ip.daddr.in6_u.u6_addr32;
	packet->dst_high = (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
	packet->dst_low = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	return sizeof(struct ethhdr) + sizeof(ip);
}

/* Reads a packet that may acknowledge a cookie. Returns the offset of its TCP header; 0 if it does not. */
static __always_inline __u32 read_acknowledgement(struct __sk_buff *skb, struct scratch *scratch)
{
	struct scrub_packet *packet = &scratch->packet;
	struct tcphdr tcp;
	__u32 at = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		at = read_v4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		at = read_v6(skb, packet);
	if (!at || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return 0;
	packet->tcp_flags = ((__u8 *)&tcp)[FLAG_BYTE];
	if ((packet->tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return 0;
	packet->sport = bpf_ntohs(tcp.source);
	packet->dport = bpf_ntohs(tcp.dest);
	packet->seq = bpf_ntohl(tcp.seq);
	packet->ack = bpf_ntohl(tcp.ack_seq);
	scratch->options_size = tcp.doff * 4 - sizeof(tcp);
	return at;
}

/* Sets the attributes that the cookie and the timestamp encode. Returns false if the timestamp is not that of the answer. */
static __always_inline int fill_attributes(struct bpf_tcp_req_attrs *attributes, const struct scrub_packet *packet,
					   const struct tcp_options *options, __u64 hash)
{
	__u32 echoed = options->tsecr;

	attributes->mss = mss_sizes[(packet->ack - 1) >> 1 & (MSS_COUNT - 1)];
	if (!options->has_timestamps)
		return 1;
	if ((echoed ^ (__u32)hash) & TIMESTAMP_MASK)
		return 0;
	attributes->tstamp_ok = 1;
	attributes->rcv_tsval = options->tsval;
	attributes->rcv_tsecr = echoed;
	attributes->sack_ok = !!(echoed & TIMESTAMP_SACK);
	attributes->ecn_ok = !!(echoed & TIMESTAMP_ECN);
	if ((echoed & NO_SCALE) != NO_SCALE) {
		attributes->wscale_ok = 1;
		attributes->snd_wscale = echoed & NO_SCALE;
		attributes->rcv_wscale = handover.settings >> HANDOVER_SCALE_SHIFT & 15;
	}
	return 1;
}

/*
 * Returns true if the connection has just been handed over. The kernel takes several packets through tc before it goes on
 * with the first: a client's data may come here before the connection exists, and finds it later.
 */
static __always_inline int is_handed_over(struct scratch *scratch, __u64 hash)
{
	struct recent_flow *recent = &scratch->recent[hash >> 40 & (RECENT - 1)];
	__u32 us = bpf_ktime_get_ns() / 1000;

	if (recent->tag == (__u32)hash && us - recent->us < RECENT_US)
		return 1;
	recent->tag = hash;
	recent->us = us;
	return 0;
}

/* Assigns a request to a packet, by which its listener gets the connection. Returns the verdict. */
static __always_inline int assign_request(struct __sk_buff *skb, struct scratch *scratch, struct sock *listener, __u64 hash)
{
	struct bpf_tcp_req_attrs attributes = {};

	/*
	 * The listener has no room for the connection. A client that speaks first sends its data again, and gets the
	 * connection then. A client of a server that speaks first waits until its own timeout.
	 */
	if (listener->sk_ack_backlog > listener->sk_max_ack_backlog)
		return TC_DROP;
	if (!fill_attributes(&attributes, &scratch->packet, &scratch->options, hash) ||
	    is_handed_over(scratch, hash) ||
	    bpf_sk_assign_tcp_reqsk(skb, listener, &attributes, sizeof(attributes)))
		return TC_NEXT;
	__sync_fetch_and_add(&handover.connections, 1);
	return TC_NEXT;
}

SEC("tc")
int scrub_complete(struct __sk_buff *skb)
{
	__u64 now = *(volatile __u64 *)&control.now ?: bpf_ktime_get_coarse_ns(), hash;
	__u32 zero = 0, at;
	struct scratch *scratch;
	struct bpf_sock *socket;
	int verdict = TC_NEXT;
	struct sock *listener;

	if (*(volatile __u64 *)&handover.until <= now)
		return TC_NEXT;
	scratch = bpf_map_lookup_elem(&handover_scratch, &zero);
	if (!scratch)
		return TC_NEXT;
	at = read_acknowledgement(skb, scratch);
	if (!at)
		return TC_NEXT;
	hash = acknowledged_hash(&scratch->packet, now >> EPOCH_BITS, control.cookie_key);
	if (!hash || !READ_OPTIONS(bpf_skb_load_bytes, skb, at + sizeof(struct tcphdr), scratch->options_size,
				   &scratch->options))
		return TC_NEXT;
	socket = socket_of(skb, &scratch->packet);
	if (!socket)
		return TC_NEXT;
	if (socket->state == BPF_TCP_LISTEN) {
		listener = (struct sock *)bpf_skc_to_tcp_sock(socket);
		if (listener)
			verdict = assign_request(skb, scratch, listener, hash);
	}
	bpf_sk_release(socket);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
