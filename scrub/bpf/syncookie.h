/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SYN cookies: an answer to a SYN with all that the server needs later to complete the connection, so that it stores
 * nothing until the client has answered.
 *
 *	SYN -> XDP: SYN-ACK with a cookie, as handover.h describes
 *	ACK -> XDP: valid cookie? -> the flow is known -> tc: the listener gets the connection (handover.bpf.c)
 *
 *	sequence number	| hash: 28 bits | MSS: 3 | epoch: 1 |
 *	timestamp	| hash: 26 bits | ECN: 1 | SACK: 1 | window scale: 4, 15 without |
 *
 * The hash is of addresses, ports, the client's sequence number and the epoch. Without timestamps, a connection has no
 * options but the MSS. The 28 bits of the sequence number alone are guessed within seconds at millions of packets a
 * second: only with the 26 bits of the timestamp, an acknowledgement verifies its source.
 */
#ifndef SCRUB_SYNCOOKIE_H
#define SCRUB_SYNCOOKIE_H

#include "cookie.h"
#include "tcp_options.h"

#define COOKIE_MASK 0xfffffff0
#define TIMESTAMP_MASK 0xffffffc0
#define TIMESTAMP_ECN 0x20
#define TIMESTAMP_SACK 0x10
#define NO_SCALE 15
#define MAX_SCALE 14
#define MIN_MSS_V6 1220		/* of an MTU of 1280 */
#define MSS_COUNT 8

#define TCP_ECE 0x40
#define TCP_ECN 0xc0		/* ECE and CWR */

/* The options of a TCP header. */
struct tcp_options {
	__u8 bytes[64];		/* the first OPTIONS_MAX are used */
	__u32 length;
	__u32 at;
	__u32 tsval, tsecr;
	__u16 mss;		/* 0 without, as the others */
	__u8 has_timestamps, has_scale, has_sack;
	__u8 scale;
	__u8 has_signature;
	__u8 reserved;
};

/*
 * Sizes that clients use: those of MTUs of 576, 1260, 1340, 1400, 1440, 1480, 1500 and 8980 bytes over IPv4. The section
 * is named because clang merges 16 bytes of constants into one that libbpf does not find.
 */
static const __u16 mss_sizes[MSS_COUNT] SEC(".rodata") = { 536, 1220, 1300, 1360, 1400, 1440, 1460, 8940 };

static __always_inline __u64 syncookie_hash(const struct scrub_packet *packet, __u64 epoch, __u32 client_number,
					    const __u64 *key)
{
	return packet_hash(packet, epoch, 1, client_number, key[0], key[1]);
}

static __always_inline __u32 syncookie_number(__u64 hash, __u64 epoch, __u32 mss_at)
{
	return ((__u32)(hash >> 32) & COOKIE_MASK) | mss_at << 1 | (epoch & 1);
}

/*
 * Returns the hash of the cookie that a packet acknowledges; 0 if it is none, of this epoch or the last one. The packet is
 * the first one behind the client's SYN.
 */
static __always_inline __u64 acknowledged_hash(const struct scrub_packet *packet, __u64 epoch, const __u64 *key)
{
	__u32 cookie = packet->ack - 1;
	__u64 hash;

	hash = syncookie_hash(packet, epoch - ((epoch ^ cookie) & 1), packet->seq - 1, key);
	return ((__u32)(hash >> 32) ^ cookie) & COOKIE_MASK ? 0 : hash;
}

static __always_inline __u32 word_at(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

static __always_inline void parse_option(struct tcp_options *options, const __u8 *option, __u32 length)
{
	if (*option == OPTION_MSS && length == 4) {
		options->mss = option[2] << 8 | option[3];
	} else if (*option == OPTION_SCALE && length == 3) {
		options->has_scale = 1;
		options->scale = option[2] > MAX_SCALE ? MAX_SCALE : option[2];
	} else if (*option == OPTION_SACK && length == 2) {
		options->has_sack = 1;
	} else if (*option == OPTION_TIMESTAMPS && length == 10) {
		options->has_timestamps = 1;
		options->tsval = word_at(option + 2);
		options->tsecr = word_at(option + 6);
	} else if (*option == OPTION_MD5 || *option == OPTION_AUTHENTICATION) {
		options->has_signature = 1;
	}
}

/* Parses the options in `bytes`. */
static __always_inline void parse_options(struct tcp_options *options)
{
	options->at = options->tsval = options->tsecr = options->mss = 0;
	options->has_timestamps = options->has_scale = options->has_sack = options->has_signature = 0;
	for (int i = 0; i < OPTIONS_MAX; i++) {
		/* From memory: the verifier need not tell the ways to the same place apart. */
		__u32 at = *(volatile __u32 *)&options->at, length = 1;
		const __u8 *option;

		if (at >= OPTIONS_MAX || at >= options->length)
			return;
		option = &options->bytes[at];
		if (*option == OPTION_END)
			return;
		if (*option != OPTION_NOP) {
			length = option[1];
			if (length < 2 || at + length > options->length)
				return;
			parse_option(options, option, length);
		}
		*(volatile __u32 *)&options->at = at + length;
	}
}

/*
 * Reads the options of a TCP header, `size` bytes at `at`, by a helper of the program's type. False if there are more than
 * a header has. The verifier must see the comparisons of the register that is used.
 */
#define READ_OPTIONS(load, ctx, at, size, options) ({					\
	__u32 bytes = (size), last = bytes - 1;						\
	int valid = !bytes;								\
											\
	/* The verifier of Linux 7.2 knows that last + 1 is not 0. */			\
	asm volatile("" : "+r"(last));							\
	(options)->length = 0;								\
	if (!valid && last < OPTIONS_MAX)						\
		valid = !load(ctx, at, (options)->bytes, last + 1);			\
	if (valid) {									\
		(options)->length = bytes;						\
		parse_options(options);							\
	}										\
	valid;										\
})

/* Returns the socket that gets a packet; the caller releases it. */
static __always_inline struct bpf_sock *socket_of(void *ctx, const struct scrub_packet *packet)
{
	struct bpf_sock_tuple tuple = {};

	if (packet->version == 4) {
		tuple.ipv4.saddr = bpf_htonl(packet->src_high >> 32);
		tuple.ipv4.daddr = bpf_htonl(packet->dst_high >> 32);
		tuple.ipv4.sport = bpf_htons(packet->sport);
		tuple.ipv4.dport = bpf_htons(packet->dport);
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	write_address(tuple.ipv6.saddr, packet->src_high, packet->src_low);
	write_address(tuple.ipv6.daddr, packet->dst_high, packet->dst_low);
	tuple.ipv6.sport = bpf_htons(packet->sport);
	tuple.ipv6.dport = bpf_htons(packet->dport);
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

#endif
