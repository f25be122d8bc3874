/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Answers over UDP: a datagram's frame gets the headers of the answer to it. Global functions as in stages.h. */
#ifndef SCRUB_UDP_ANSWER_H
#define SCRUB_UDP_ANSWER_H

#include "answer.h"
#include "maps.h"

struct answer_udp {
	__be16 sport, dport, length, check;
};

/* Returns true for a whole datagram behind an IP header without options, extension headers or a tunnel. */
static __always_inline int is_plain_udp(const struct scrub_packet *packet)
{
	__u32 ip = packet->version == 4 ? sizeof(struct answer_v4) : sizeof(struct answer_v6);

	return packet->transport == IPPROTO_UDP && !packet->tunnel && !(packet->fragment & SCRUB_FIRST_FRAGMENT) &&
	       packet->payload == link_bytes(packet) + ip + sizeof(struct answer_udp);
}

/* Writes the UDP header in front of a payload of `bytes`, whose words have this sum. */
static __always_inline void write_udp(struct answer_udp *udp, const struct scrub_packet *packet, __u32 bytes,
				      __u64 sum)
{
	__u32 length = sizeof(*udp) + bytes;

	sum += sum_words(packet->src_high) + sum_words(packet->src_low) + sum_words(packet->dst_high) +
	       sum_words(packet->dst_low) + IPPROTO_UDP + 2 * length + packet->sport + packet->dport;
	udp->sport = bpf_htons(packet->dport);
	udp->dport = bpf_htons(packet->sport);
	udp->length = bpf_htons(length);
	/* 0 is no checksum. */
	udp->check = checksum(sum) ?: 0xffff;
}

/*
 * Begins the answer to a plain datagram: headers for a payload of `bytes`, whose words have this sum. The payload is where
 * the datagram's was. Returns false if the frame cannot be changed.
 */
__noinline int scrub_begin_udp_answer(struct xdp_md *ctx, struct scrub_packet *packet, __u32 bytes, __u64 sum)
{
	struct answer_place place;
	__u32 datagram, ip;

	if (!packet)
		return 0;
	datagram = sizeof(struct answer_udp) + (bytes & 0xffff);
	ip = packet->version == 4 ? sizeof(struct answer_v4) : sizeof(struct answer_v6);
	place = begin_answer(ctx, packet, frame_bytes(ctx), ip + datagram);
	if (!place.at)
		return 0;
	if (packet->version == 4) {
		struct { struct answer_v4 ip; struct answer_udp udp; } *headers = place.at;

		if ((void *)(headers + 1) > place.end)
			return 0;
		write_v4(&headers->ip, packet, IPPROTO_UDP, datagram);
		write_udp(&headers->udp, packet, bytes, sum);
	} else {
		struct { struct answer_v6 ip; struct answer_udp udp; } *headers = place.at;

		if ((void *)(headers + 1) > place.end)
			return 0;
		write_v6(&headers->ip, packet, IPPROTO_UDP, datagram);
		write_udp(&headers->udp, packet, bytes, sum);
	}
	return 1;
}

#endif
