/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Answers: a packet's frame becomes the answer to its sender, by XDP_TX. */
#ifndef SCRUB_ANSWER_H
#define SCRUB_ANSWER_H

#include "cookie.h"

/* The headers of an answer, in the order of the wire. */
struct answer_v4 {
	__u8 version_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__be16 check;
	__be32 src, dst;
};

struct answer_v6 {
	__be32 version;
	__be16 length;
	__u8 protocol, hops;
	__be32 src[4], dst[4];
};

struct answer_tcp {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window, check, urgent;
};

#define ANSWER_TTL 64
#define ANSWER_WINDOW 0xffff
#define FRAME_MIN 60
#define PADDING_MAX 12		/* behind the shortest answer of A2S */
#define SYN_ACK (TCP_SYN | TCP_ACK)

static __always_inline __u64 sum_words(__u64 word)
{
	return (word >> 48) + (word >> 32 & 0xffff) + (word >> 16 & 0xffff) + (word & 0xffff);
}

/* Returns the Internet checksum of a sum of 16-bit words in host order. */
static __always_inline __be16 checksum(__u64 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return bpf_htons((__u16)~(sum + (sum >> 16)));
}

/* Writes the TCP header. Of the pseudo-header, the order of the addresses does not matter. */
static __always_inline void write_tcp(struct answer_tcp *tcp, const struct scrub_packet *packet, __u64 hash)
{
	__u32 seq = hash >> 32, ack = acknowledgement(packet, hash);
	__u64 sum = sum_words(packet->src_high) + sum_words(packet->src_low) + sum_words(packet->dst_high) +
		    sum_words(packet->dst_low) + IPPROTO_TCP + sizeof(*tcp) + packet->sport + packet->dport +
		    sum_words((__u64)seq << 32 | ack) + (sizeof(*tcp) / 4 << 12 | SYN_ACK) + ANSWER_WINDOW;

	tcp->sport = bpf_htons(packet->dport);
	tcp->dport = bpf_htons(packet->sport);
	tcp->seq = bpf_htonl(seq);
	tcp->ack = bpf_htonl(ack);
	tcp->offset = sizeof(*tcp) / 4 << 4;
	tcp->flags = SYN_ACK;
	tcp->window = bpf_htons(ANSWER_WINDOW);
	tcp->check = checksum(sum);
	tcp->urgent = 0;
}

/* Writes the IPv4 header in front of `bytes`. */
static __always_inline void write_v4(struct answer_v4 *ip, const struct scrub_packet *packet, __u8 protocol,
				     __u32 bytes)
{
	__u32 length = sizeof(*ip) + bytes;
	__u64 sum = 0x4500 + length + IP_DF + (ANSWER_TTL << 8 | protocol) + sum_words(packet->src_high) +
		    sum_words(packet->dst_high);

	ip->version_length = 0x45;
	ip->tos = 0;
	ip->length = bpf_htons(length);
	ip->id = 0;
	ip->fragment = bpf_htons(IP_DF);
	ip->ttl = ANSWER_TTL;
	ip->protocol = protocol;
	ip->check = checksum(sum);
	ip->src = bpf_htonl(packet->dst_high >> 32);
	ip->dst = bpf_htonl(packet->src_high >> 32);
}

static __always_inline void write_v6(struct answer_v6 *ip, const struct scrub_packet *packet, __u8 protocol,
				     __u32 bytes)
{
	ip->version = bpf_htonl(6 << 28);
	ip->length = bpf_htons(bytes);
	ip->protocol = protocol;
	ip->hops = ANSWER_TTL;
	write_address(ip->src, packet->dst_high, packet->dst_low);
	write_address(ip->dst, packet->src_high, packet->src_low);
}

/* Returns the bytes in front of a packet's IP header. */
static __always_inline __u32 link_bytes(const struct scrub_packet *packet)
{
	return sizeof(struct ethhdr) + (packet->tags & 3) * sizeof(struct vlan_tag);
}

/* Where an answer is written; without `at` it cannot be. */
struct answer_place {
	void *at;		/* its IP header */
	void *end;		/* of the frame */
};

static __always_inline void exchange_macs(struct ethhdr *ethernet)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, mac, ETH_ALEN);
}

/* Clears the bytes behind an answer that is shorter than the shortest frame: `headers` are the bytes before. */
static __always_inline void clear_padding(__u8 *frame, void *end, __u32 headers)
{
#pragma unroll
	for (__u32 i = FRAME_MIN - PADDING_MAX; i < FRAME_MIN; i++) {
		if ((void *)(frame + i + 1) > end)
			return;
		if (i >= headers)
			frame[i] = 0;
	}
}

/*
 * Makes a frame of `bytes` one for an IP packet of `length`. What is before the IP header stays, with the addresses
 * exchanged; padding is 0.
 */
static __always_inline struct answer_place begin_answer(struct xdp_md *ctx, const struct scrub_packet *packet,
							__u32 bytes, __u32 length)
{
	struct answer_place place = {};
	struct ethhdr *ethernet;
	__u32 headers = link_bytes(packet) + length;

	length = headers < FRAME_MIN ? FRAME_MIN : headers;
	/* A driver without room behind a frame cannot lengthen it: then the interface pads it. */
	if (bytes != length && bpf_xdp_adjust_tail(ctx, (int)(length - bytes)) && (bytes > length || bytes < headers))
		return place;
	ethernet = (void *)(long)ctx->data;
	place.end = (void *)(long)ctx->data_end;
	if ((void *)(ethernet + 1) > place.end)
		return place;
	exchange_macs(ethernet);
	clear_padding((__u8 *)ethernet, place.end, headers);
	place.at = (void *)ethernet + link_bytes(packet);
	return place;
}

/*
 * Turns a SYN's frame into its answer. Options, extension headers and data are cut off. Returns false if the frame
 * cannot be changed.
 */
static __always_inline int write_answer(struct xdp_md *ctx, const struct scrub_packet *packet, __u32 bytes,
					__u64 hash)
{
	__u32 is_v4 = packet->version == 4;
	__u32 headers = (is_v4 ? sizeof(struct answer_v4) : sizeof(struct answer_v6)) + sizeof(struct answer_tcp);
	struct answer_place place = begin_answer(ctx, packet, bytes, headers);
	void *at = place.at, *end = place.end;

	if (!at)
		return 0;
	if (is_v4) {
		struct { struct answer_v4 ip; struct answer_tcp tcp; } *answer = at;

		if ((void *)(answer + 1) > end)
			return 0;
		write_v4(&answer->ip, packet, IPPROTO_TCP, sizeof(answer->tcp));
		write_tcp(&answer->tcp, packet, hash);
	} else {
		struct { struct answer_v6 ip; struct answer_tcp tcp; } *answer = at;

		if ((void *)(answer + 1) > end)
			return 0;
		write_v6(&answer->ip, packet, IPPROTO_TCP, sizeof(answer->tcp));
		write_tcp(&answer->tcp, packet, hash);
	}
	return 1;
}

#endif
