/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hand-over: a SYN to a listener of this host is answered by a SYN cookie, whose connection the kernel completes. Other
 * SYNs get the challenge of answer.h.
 */
#ifndef SCRUB_HANDOVER_H
#define SCRUB_HANDOVER_H

#include "answer.h"
#include "chain.h"
#include "handover_settings.h"
#include "kernel_cookie.h"
#include "maps.h"
#include "syncookie.h"
#include "tcp.h"

#define LOCAL_MAX 4096
/* The time in which clients can return a cookie: of two epochs. */
#define COOKIE_TIME (2ULL << EPOCH_BITS)
#define TCP_WORDS 5		/* of a header */
#define OPTION_WORDS 5		/* with timestamps */

/* An address of this host; IPv4 as of struct scrub_packet. */
struct scrub_local_address {
	__u64 high, low;
	__u64 version;
};

/* Addresses of this host. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCAL_MAX);
	__type(key, struct scrub_local_address);
	__type(value, __u8);
} scrub_local SEC(".maps");

/* The options of a SYN, spared from the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tcp_options);
} scrub_options SEC(".maps");

/* enum scrub_cookies. The verifier skips the other cookies' helpers, which older kernels lack. */
const volatile __u32 cookies SEC(".rodata.handover") = SCRUB_COOKIES_NONE;

static __always_inline int is_local(const struct scrub_packet *packet)
{
	struct scrub_local_address address = {
		.high = packet->dst_high,
		.low = packet->dst_low,
		.version = packet->version,
	};

	return bpf_map_lookup_elem(&scrub_local, &address) != 0;
}

/* Returns true if a listener waits for a SYN. An MPTCP listener cannot complete the connections of our cookies. */
static __always_inline int has_listener(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	struct bpf_sock *socket = socket_of(ctx, packet);
	int found;

	if (!socket)
		return 0;
	found = socket->state == BPF_TCP_LISTEN && !bpf_skc_to_mptcp_sock(socket);
	bpf_sk_release(socket);
	return found;
}

/* Returns the options of a SYN; NULL if there are more than a header has. */
static __always_inline struct tcp_options *syn_options(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	__u32 zero = 0, at = tcp_offset(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	struct tcp_options *options = bpf_map_lookup_elem(&scrub_options, &zero);

	if (!options || !at)
		return 0;
	at += sizeof(struct tcphdr);
	return READ_OPTIONS(bpf_xdp_load_bytes, ctx, at, packet->payload - at, options) ? options : 0;
}

/* Returns the place of the largest size that a client's is not below; MSS_COUNT if none. */
static __always_inline __u32 mss_at(const struct scrub_packet *packet, __u32 mss)
{
	__u32 min = packet->version == 4 ? mss_sizes[0] : MIN_MSS_V6;

	if (!mss)
		mss = min;
	if (mss < min)
		return MSS_COUNT;
#pragma unroll
	for (__u32 at = MSS_COUNT - 1; at > 0; at--) {
		if (mss >= mss_sizes[at])
			return at;
	}
	return 0;
}

/* Returns the MSS that this host accepts. */
static __always_inline __u32 own_mss(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	__u32 headers = sizeof(struct tcphdr) +
			(packet->version == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u32 mtu = 0;

	/* The length of this packet, which is checked too, does not matter. */
	bpf_check_mtu(ctx, 0, &mtu, 0, 0);
	return mtu > headers + mss_sizes[0] && mtu < 65536 ? mtu - headers : mss_sizes[0];
}

/* Writes the header and the options of an answer as words of the host. Returns their number. */
static __always_inline __u32 fill_words(__u32 *words, const struct scrub_packet *packet,
					const struct tcp_options *options, __u64 hash, __u32 number, __u32 mss)
{
	__u32 count = TCP_WORDS + 1, settings = handover.settings, timestamp, flags = SYN_ACK;

	words[0] = (__u32)packet->dport << 16 | packet->sport;
	words[1] = number;
	words[2] = packet->seq + 1;
	words[4] = 0;
	words[5] = OPTION_MSS << 24 | OPTION_MSS_BYTES << 16 | mss;
	words[6] = words[7] = words[8] = words[9] = 0;
	if (cookies == SCRUB_COOKIES_OWN && options->has_timestamps && settings & HANDOVER_TIMESTAMPS) {
		count = TCP_WORDS + OPTION_WORDS;
		timestamp = ((__u32)hash & TIMESTAMP_MASK) | NO_SCALE;
		words[6] = OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMPS << 8 | 10;
		words[9] = OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_NOP << 8 | OPTION_NOP;
		if (options->has_sack && settings & HANDOVER_SACK) {
			timestamp |= TIMESTAMP_SACK;
			words[6] = OPTION_SACK << 24 | 2 << 16 | OPTION_TIMESTAMPS << 8 | 10;
		}
		if (options->has_scale && settings & HANDOVER_SCALE) {
			timestamp ^= NO_SCALE ^ options->scale;
			words[9] = OPTION_NOP << 24 | OPTION_SCALE << 16 | 3 << 8 |
				   (settings >> HANDOVER_SCALE_SHIFT & 15);
		}
		if ((packet->tcp_flags & TCP_ECN) == TCP_ECN && settings & HANDOVER_ECN) {
			timestamp |= TIMESTAMP_ECN;
			flags |= TCP_ECE;
		}
		words[7] = timestamp;
		words[8] = options->tsval;
	}
	words[3] = count << 28 | flags << 16 | ANSWER_WINDOW;
	return count;
}

/* Returns the checksum of a TCP header of these words. */
static __always_inline __u32 words_check(const __u32 *words, __u32 count, const struct scrub_packet *packet)
{
	__u64 sum = sum_words(packet->src_high) + sum_words(packet->src_low) + sum_words(packet->dst_high) +
		    sum_words(packet->dst_low) + IPPROTO_TCP + count * 4;

#pragma unroll
	for (int i = 0; i < TCP_WORDS + OPTION_WORDS; i++)
		sum += sum_words(words[i]);
	return bpf_ntohs(checksum(sum));
}

/* Writes the header and, if there are some, the options of timestamps. */
static __always_inline int write_words(__be32 *to, const void *end, const __u32 *words, __u32 count)
{
	if ((void *)(to + TCP_WORDS + 1) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < TCP_WORDS + 1; i++)
		to[i] = bpf_htonl(words[i]);
	if (count <= TCP_WORDS + 1)
		return 1;
	if ((void *)(to + TCP_WORDS + OPTION_WORDS) > end)
		return 0;
#pragma unroll
	for (int i = TCP_WORDS + 1; i < TCP_WORDS + OPTION_WORDS; i++)
		to[i] = bpf_htonl(words[i]);
	return 1;
}

/* Turns a SYN's frame into an answer with these words. Returns false if the frame cannot be changed. */
static __always_inline int write_syncookie(struct xdp_md *ctx, const struct scrub_packet *packet, const __u32 *words,
					   __u32 count)
{
	__u32 is_v4 = packet->version == 4, network = is_v4 ? sizeof(struct answer_v4) : sizeof(struct answer_v6);
	struct answer_place place = begin_answer(ctx, packet, frame_bytes(ctx), network + count * 4);
	void *at = place.at, *end = place.end;

	if (!at || at + sizeof(struct answer_v6) > end)
		return 0;
	if (is_v4)
		write_v4(at, packet, IPPROTO_TCP, count * 4);
	else
		write_v6(at, packet, IPPROTO_TCP, count * 4);
	return write_words(at + network, end, words, count);
}

/* Extends the time in which cookies may come back, a second at a time. */
static __always_inline void extend_cookie_deadline(__u64 now)
{
	__u64 until = now + COOKIE_TIME + SECOND;

	if (*(volatile __u64 *)&handover.until < until - SECOND)
		*(volatile __u64 *)&handover.until = until;
}

/*
 * Turns a SYN's frame into an answer with a SYN cookie, if the kernel will complete the connection. Returns false, and
 * leaves the frame, if not.
 */
__noinline int scrub_answer_by_cookie(struct xdp_md *ctx, struct scrub_packet *packet)
{
	__u32 words[TCP_WORDS + OPTION_WORDS], at, count, number;
	struct tcp_options *options;
	__u64 now, epoch, hash = 0;

	if (!cookies || !packet)
		return 0;
	if (!packet->handover || !(handover.settings & 1 << (packet->handover & 3)) || packet->tags > 1 ||
	    !is_alive(SLUICE_SCRUB) || !is_local(packet))
		return 0;
	if (cookies == SCRUB_COOKIES_OWN && !has_listener(ctx, packet))
		return 0;
	options = syn_options(ctx, packet);
	if (!options || options->has_signature)
		return 0;
	now = now_of(packet);
	epoch = now >> EPOCH_BITS;
	at = mss_at(packet, options->mss);
	if (at >= MSS_COUNT)
		return 0;
	if (cookies == SCRUB_COOKIES_OWN) {
		hash = syncookie_hash(packet, epoch, packet->seq, control.cookie_key);
		number = syncookie_number(hash, epoch, at);
	} else if (!kernel_cookie(ctx, packet, options->mss, &number)) {
		return 0;
	}
	count = fill_words(words, packet, options, hash, number, own_mss(ctx, packet));
	words[4] = words_check(words, count, packet) << 16;
	if (!write_syncookie(ctx, packet, words, count))
		return 0;
	extend_cookie_deadline(now);
	return 1;
}

/* What a packet has of a SYN cookie. */
enum scrub_acknowledged {
	SCRUB_ACKNOWLEDGED_NOTHING,
	SCRUB_ACKNOWLEDGED_NUMBER,
	SCRUB_ACKNOWLEDGED_TIMESTAMP,	/* and the number */
};

/*
 * Returns what a packet acknowledges of a SYN cookie. Clients put the echoed timestamp at the end of their header
 * (RFC 7323, A), which is not parsed: the bits prove the same elsewhere.
 */
__noinline int scrub_acknowledged_cookie(struct xdp_md *ctx, struct scrub_packet *packet)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be32 *echoed;
	__u64 hash;

	if (!packet)
		return SCRUB_ACKNOWLEDGED_NOTHING;
	if (cookies == SCRUB_COOKIES_KERNEL)
		return acknowledged_kernel_cookie(ctx, packet) ? SCRUB_ACKNOWLEDGED_NUMBER : SCRUB_ACKNOWLEDGED_NOTHING;
	hash = acknowledged_hash(packet, now_of(packet) >> EPOCH_BITS, control.cookie_key);
	if (!hash)
		return SCRUB_ACKNOWLEDGED_NOTHING;
	echoed = start + ((packet->payload - sizeof(*echoed)) & PAYLOAD_MASK);
	if ((void *)(echoed + 1) > end || (bpf_ntohl(*echoed) ^ (__u32)hash) & TIMESTAMP_MASK)
		return SCRUB_ACKNOWLEDGED_NUMBER;
	return SCRUB_ACKNOWLEDGED_TIMESTAMP;
}

#endif
