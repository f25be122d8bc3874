/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Answers to A2S queries with a valid cookie, from the cache (answer_cache.h). Global functions as in stages.h. */
#ifndef SCRUB_CACHED_ANSWER_H
#define SCRUB_CACHED_ANSWER_H

#include "answer.h"
#include "answer_cache.h"
#include "maps.h"
#include "udp_answer.h"

/* The program at tc is loaded: the kernel has all helpers of this file (Linux 6.6). */
const volatile __u32 has_answer_cache SEC(".rodata.cache") = 0;

/* Returns the key of the answer to an A2S query, whose payload begins with 4 bytes and its kind; 0 if it is cut off. */
static __always_inline __u64 key_of_query(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *kind = start + (packet->payload & PAYLOAD_MASK) + sizeof(__be32);

	if ((void *)(kind + 1) > end)
		return 0;
	return answer_key(packet->dst_high, packet->dst_low, packet->version, packet->dport, *kind, control.secrets);
}

/* Takes a free entry for a key, for the time that its answer may take. */
static __always_inline void take_entry(__u64 key, __u64 now)
{
	for (__u32 number = 0; number < CACHE_TRIES; number++) {
		struct cached_answer *answer = answer_at(key, number);
		int is_free;

		if (!answer || *(volatile __u64 *)&answer->until > now || !begin_write(answer))
			continue;
		is_free = *(volatile __u64 *)&answer->until <= now;
		if (is_free) {
			answer->key = key;
			answer->time = 0;
			answer->length = 0;
			answer->until = now + CACHE_WAIT_TIME;
		}
		end_write(answer);
		if (is_free)
			return;
	}
}

/* Makes the program at tc keep the answer to a query that goes on. */
static __always_inline void expect_answer(struct cached_answer *answer, __u64 key, __u64 now)
{
	__u64 until = now + CACHE_WAIT_TIME, old;

	if (!answer) {
		take_entry(key, now);
	} else {
		old = *(volatile __u64 *)&answer->until;
		/* A time that another CPU sets meanwhile is as good or later. Pairs with itself and with scrub_learn(). */
		if (old < until)
			__sync_val_compare_and_swap(&answer->until, old, until);
	}
	/* In steps, because all CPUs read it. */
	if (*(volatile __u64 *)&answer_cache.until < until)
		*(volatile __u64 *)&answer_cache.until = until + CACHE_WAIT_TIME;
}

/* Makes room in a query's frame for its answer. Returns false if the interface or its driver has none. */
static __always_inline int make_room(struct xdp_md *ctx, const struct scrub_packet *packet, __u32 length)
{
	__u32 bytes = packet->payload + length, frame = frame_bytes(ctx), mtu = 0;

	/* The length of this packet, which is checked too, does not matter. */
	bpf_check_mtu(ctx, 0, &mtu, 0, 0);
	if (bytes > link_bytes(packet) + mtu)
		return 0;
	return control.monitor || bytes <= frame || !bpf_xdp_adjust_tail(ctx, (int)(bytes - frame));
}

/*
 * Decides on an A2S query of a proven source: the rule uses answers for this time. Returns the cause if there is one; 0 if
 * the query goes on. The frame of one that is answered may be longer afterwards. A query without a valid cookie is
 * challenged: its source was verified, but may be forged, and the answer is longer than the query.
 */
__noinline __u32 scrub_find_cached_answer(struct xdp_md *ctx, struct scrub_packet *packet, __u32 cache_ms,
					  int has_cookie)
{
	struct cached_answer *answer;
	__u64 now, time, key;

	if (!has_answer_cache || !packet || !cache_ms)
		return 0;
	now = now_of(packet);
	key = key_of_query(ctx, packet);
	if (!key)
		return 0;
	answer = find_answer(key);
	if (answer) {
		time = *(volatile __u64 *)&answer->time;
		if (time && now - time < cache_ms * MS) {
			if (!has_cookie)
				return SCRUB_COUNT_CHALLENGE_A2S;
			if (make_room(ctx, packet, *(volatile __u32 *)&answer->length))
				return SCRUB_COUNT_CACHED_A2S;
		}
	}
	expect_answer(answer, key, now);
	return 0;
}

/*
 * Turns an A2S query's frame into the answer from the cache. Returns XDP_DROP if the answer is just being replaced: the
 * client repeats its query.
 */
__noinline int scrub_answer_from_cache(struct xdp_md *ctx, struct scrub_packet *packet)
{
	struct cached_answer *answer;
	__u32 version, length;
	__u64 key;

	if (!has_answer_cache || !packet)
		return XDP_DROP;
	key = key_of_query(ctx, packet);
	answer = find_answer(key);
	if (!answer)
		return XDP_DROP;
	version = read_version(answer);
	length = checked_length(*(volatile __u32 *)&answer->length);
	/* Another key may have taken the entry, or the last copy failed. */
	if (version & 1 || *(volatile __u64 *)&answer->key != key || !*(volatile __u64 *)&answer->time || !length ||
	    !scrub_begin_udp_answer(ctx, packet, length, *(volatile __u32 *)&answer->sum) ||
	    bpf_xdp_store_bytes(ctx, packet->payload & PAYLOAD_MASK, answer->payload, length))
		return XDP_DROP;
	return read_version(answer) == version ? XDP_TX : XDP_DROP;
}

#endif
