/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Challenges to the senders of queries over UDP, which a rule asks for. src/policy/udp.rs describes them. Global functions
 * as in stages.h.
 *
 *	query -> verified source, or cookie? -> a fresh answer? with a cookie, it is sent; else: challenge
 *	         |                              `-- none: go on
 *	         `-- neither: rate to the destination -> go on | challenge
 *
 * No challenge is longer than its query.
 */
#ifndef SCRUB_UDP_CHALLENGE_H
#define SCRUB_UDP_CHALLENGE_H

#include "cached_answer.h"
#include "tcp_stage.h"
#include "udp_answer.h"

#define A2S_INFO "Source Engine Query"	/* with its zero */
#define A2S_INFO_BYTES (5 + sizeof(A2S_INFO))
#define A2S_MIN (5 + sizeof(__u32))
#define A2S_NO_CHALLENGE 0xffffffff	/* of a query that has none, and of one that asks for it */
#define A2S_NO_QUERY (~0ULL)

#define DNS_RESPONSE 0x8000
#define DNS_OPCODE 0x7800
#define DNS_TRUNCATED 0x0200
#define DNS_RECURSION_DESIRED 0x0100
#define DNS_NAME_MAX 255
#define DNS_LABEL_MAX 63
#define DNS_QUESTION_MASK 0x1ff	/* a question has at most 259 bytes */

struct a2s_challenge {
	__be32 head;
	__u8 kind;
	__be32 number;
} __attribute__((packed));

struct dns_header {
	__be16 id, flags;
	__be16 questions, answers, authorities, additionals;
};

/* Returns true if the text of A2S_INFO is here. */
static __always_inline int has_info_text(const __u8 *at)
{
	const __u8 text[] = A2S_INFO;

#pragma unroll
	for (int i = 0; i < sizeof(text); i++) {
		if (at[i] != text[i])
			return 0;
	}
	return 1;
}

/* Returns the challenge in an A2S query; A2S_NO_QUERY for other packets. */
static __always_inline __u64 a2s_challenge_of(const struct scrub_packet *packet, void *start, void *end)
{
	struct a2s_challenge *query = start + (packet->payload & PAYLOAD_MASK);
	__be32 *number = (void *)query + A2S_INFO_BYTES;

	if (packet->payload_length < A2S_MIN || (void *)(query + 1) > end || query->head != ~0U)
		return A2S_NO_QUERY;
	if (query->kind == 'U' || query->kind == 'V')
		return bpf_ntohl(query->number);
	if (query->kind != 'T' || packet->payload_length < A2S_INFO_BYTES || (void *)number > end ||
	    !has_info_text((void *)&query->number))
		return A2S_NO_QUERY;
	if (packet->payload_length < A2S_INFO_BYTES + sizeof(*number) || (void *)(number + 1) > end)
		return A2S_NO_CHALLENGE;
	return bpf_ntohl(*number);
}

/*
 * Returns the bytes of a DNS query's question, and above 32 bits the sum of its words; 0 if the packet is no query that can
 * be answered.
 */
__noinline __u64 scrub_dns_question(struct xdp_md *ctx, struct scrub_packet *packet)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 sum = 0, left = 0, i;
	struct dns_header *header;
	__u8 *at;

	if (!packet)
		return 0;
	header = start + (packet->payload & PAYLOAD_MASK);
	at = (void *)(header + 1);
	if ((void *)at > end || header->flags & bpf_htons(DNS_RESPONSE | DNS_OPCODE) ||
	    header->questions != bpf_htons(1))
		return 0;
	for (i = 0; i < DNS_NAME_MAX; i++, at++) {
		__u32 byte;

		if ((void *)(at + 1) > end)
			return 0;
		byte = *at;
		sum += i & 1 ? byte : byte << 8;
		if (left) {
			left--;
			continue;
		}
		if (byte > DNS_LABEL_MAX)
			return 0;
		if (!byte)
			goto found;
		left = byte;
	}
	return 0;

found:
	/* Type and class. */
	if ((void *)(at + 5) > end || sizeof(*header) + i + 5 > packet->payload_length)
		return 0;
#pragma unroll
	for (int k = 1; k < 5; k++)
		sum += (i + k) & 1 ? at[k] : at[k] << 8;
	return (__u64)sum << 32 | (i + 5);
}

/* Counts a query to its destination. Returns true while there are more than `above` in a second. */
__noinline int scrub_measure_queries(struct scrub_packet *packet, __u32 kind, __u32 above)
{
	__u32 below = above / 4 ?: 1;
	struct scrub_tcp rates = { .above = { above, above }, .below = { below, below } };
	struct scrub_meter *meter;

	if (!packet)
		return 0;
	meter = meter_of(packet, SCRUB_METER_QUERIES, (__u64)kind << 32 | above, control.secrets);
	return meter && measure(meter, &rates, SCRUB_LEVEL_RETRANSMIT, now_of(packet) / SECOND);
}

/* Returns true for the cookie of this epoch or the last one. */
static __always_inline int is_cookie(struct scrub_packet *packet, __u32 number)
{
	__u64 epoch = now_of(packet) >> EPOCH_BITS;

	return number == (__u32)scrub_cookie(packet, epoch) || number == (__u32)scrub_cookie(packet, epoch - 1);
}

/*
 * Decides on a packet that a rule with a challenge matched; `tcp` is of the destination's profile. Returns the cause if
 * it is answered; 0 if it goes on.
 */
__noinline __u32 scrub_challenge_udp(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side, __u32 rule,
				     struct scrub_tcp *tcp)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct scrub_params *params = params_of(side);
	const struct scrub_action *action;
	__u64 number = A2S_NO_CHALLENGE;
	struct scrub_line *line;
	int is_a2s, is_verified, has_cookie;

	if (!packet || !params || !tcp || !is_plain_udp(packet))
		return 0;
	line = line_at(side, params->actions + (rule >> 2));
	if (!line)
		return 0;
	action = (void *)&line->entries[(rule & 3) * 2];
	is_a2s = action->kind == SCRUB_RULE_CHALLENGE_A2S;
	if (is_a2s)
		number = a2s_challenge_of(packet, start, end);
	else if (!scrub_dns_question(ctx, packet))
		return 0;
	if (number == A2S_NO_QUERY)
		return 0;
	is_verified = proof_of(packet) == SCRUB_PROOF_STRONG;
	has_cookie = is_a2s && is_cookie(packet, number);
	if (has_cookie && !is_verified)
		scrub_verify(packet, tcp->verified_for, 0);
	if (has_cookie || is_verified)
		return is_a2s ? scrub_find_cached_answer(ctx, packet, action->cache_ms, has_cookie) : 0;
	if (action->above && !scrub_measure_queries(packet, action->kind, action->above))
		return 0;
	return is_a2s ? SCRUB_COUNT_CHALLENGE_A2S : SCRUB_COUNT_CHALLENGE_DNS;
}

/* Returns the payload of a packet in the frame. */
static __always_inline void *payload_of(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	return (void *)(long)ctx->data + (packet->payload & PAYLOAD_MASK);
}

/* Turns an A2S query's frame into the answer: a challenge. Returns XDP_DROP if it cannot be sent. */
__noinline int scrub_answer_a2s(struct xdp_md *ctx, struct scrub_packet *packet)
{
	struct a2s_challenge *answer;
	__u32 cookie;
	__u64 sum;

	if (!packet)
		return XDP_DROP;
	cookie = scrub_cookie(packet, now_of(packet) >> EPOCH_BITS);
	/* The number is at an odd offset. */
	sum = 2 * 0xffff + ('A' << 8 | cookie >> 24) + (cookie >> 8 & 0xffff) + (cookie << 8 & 0xff00);
	if (!scrub_begin_udp_answer(ctx, packet, sizeof(*answer), sum))
		return XDP_DROP;
	answer = payload_of(ctx, packet);
	if ((void *)(answer + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	answer->head = ~0U;
	answer->kind = 'A';
	answer->number = bpf_htonl(cookie);
	return XDP_TX;
}

/*
 * Turns a DNS query's frame into the answer: truncated, to make the client use TCP. Returns XDP_DROP if it cannot be
 * sent.
 */
__noinline int scrub_answer_dns(struct xdp_md *ctx, struct scrub_packet *packet)
{
	struct dns_header *header;
	__u64 question;
	__u32 bytes;
	__u16 flags;

	if (!packet)
		return XDP_DROP;
	header = payload_of(ctx, packet);
	if ((void *)(header + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	question = scrub_dns_question(ctx, packet);
	bytes = question & DNS_QUESTION_MASK;
	flags = (bpf_ntohs(header->flags) & DNS_RECURSION_DESIRED) | DNS_RESPONSE | DNS_TRUNCATED;
	if (!scrub_begin_udp_answer(ctx, packet, sizeof(*header) + bytes,
				    (question >> 32) + bpf_ntohs(header->id) + flags + 1))
		return XDP_DROP;
	header = payload_of(ctx, packet);
	if ((void *)(header + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	header->flags = bpf_htons(flags);
	header->answers = header->authorities = header->additionals = 0;
	return XDP_TX;
}

#endif
