/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Later fragments follow the first one: they have no ports, so the first one's verdict is kept for them.
 * src/policy/mod.rs describes it. Slots as in tcp.h, with these bits below their times.
 */
#ifndef SCRUB_FRAGMENTS_H
#define SCRUB_FRAGMENTS_H

#include "tcp.h"

#define FRAGMENT_LINES (1 << 14)	/* 65,536 packets */
#define FRAGMENT_TIME (2 * SECOND)
#define FRAGMENT_BITS 0xffffffULL	/* of a time: 17 ms */
#define FRAGMENT_DROPPED 2		/* the first one was dropped; bit 0 is that of weak times */
#define FRAGMENT_END_SHIFT 2		/* 14 bits: the end of what is contiguous, in units of 8 bytes */
#define FRAGMENT_END_MASK 0x3fff
#define FRAGMENT_SUM_SHIFT 16		/* 8 bits: the sum of later fragments, in units of 512 bytes, rounded up each */
#define FRAGMENT_SUM_MAX 255		/* of 576 bytes, the longest packet has 238 */
#define SALT_FRAGMENT 0x667261676d656e74ULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, FRAGMENT_LINES);
	__type(key, __u32);
	__type(value, struct slot_line);
} scrub_fragments SEC(".maps");

enum scrub_first {
	SCRUB_FIRST_UNKNOWN,
	SCRUB_FIRST_PASSED,
	SCRUB_FIRST_DROPPED,
	SCRUB_FIRST_CONTRADICTED, /* it overlaps earlier ones, or they are longer than a packet */
};

static __always_inline __u64 fragment_key(const struct scrub_packet *packet, const __u64 *secrets)
{
	/* Of IPv6, the protocol is not a part (RFC 8200, 4.5): first ones may have further extension headers. */
	__u64 id = (__u64)packet->fragment_id << 8 | (packet->version == 4 ? packet->protocol : 0);
	__u64 src = slot_key(packet->src_high, packet->src_low, SALT_FRAGMENT ^ id, secrets);

	return slot_key(packet->dst_high ^ packet->version, packet->dst_low, src, secrets);
}

static __always_inline __u32 fragment_end(const struct scrub_packet *packet)
{
	return packet->fragment_offset + (packet->fragment_bytes + 7) / 8;
}

/* Remembers the verdict on a first fragment. */
static __always_inline void remember_first(const struct scrub_packet *packet, int dropped, __u64 now,
					   const __u64 *secrets)
{
	__u64 end = fragment_end(packet) & FRAGMENT_END_MASK;
	__u64 bits = (dropped ? FRAGMENT_DROPPED : 0) | end << FRAGMENT_END_SHIFT;

	insert_slot(&scrub_fragments, fragment_key(packet, secrets), FRAGMENT_LINES - 1, now,
		    ((now + FRAGMENT_TIME) & ~FRAGMENT_BITS) | bits);
}

/* Returns what is known of a later fragment's first one. */
static __always_inline enum scrub_first follow_first(const struct scrub_packet *packet, __u64 now,
						     const __u64 *secrets)
{
	struct slot *slot = living_slot(&scrub_fragments, fragment_key(packet, secrets),
					      FRAGMENT_LINES - 1, now);
	__u64 time, bits, next;
	__u32 end, sum;

	if (!slot)
		return SCRUB_FIRST_UNKNOWN;
	time = slot->time;
	if ((time & ~FRAGMENT_BITS) <= now)
		return SCRUB_FIRST_UNKNOWN;
	bits = time & FRAGMENT_BITS;
	end = bits >> FRAGMENT_END_SHIFT & FRAGMENT_END_MASK;
	sum = (bits >> FRAGMENT_SUM_SHIFT) + (packet->fragment_bytes + 511) / 512;
	if (packet->fragment_offset < end || sum > FRAGMENT_SUM_MAX)
		return SCRUB_FIRST_CONTRADICTED;
	if (packet->fragment_offset == end)
		end = fragment_end(packet) & FRAGMENT_END_MASK;
	next = (time & ~FRAGMENT_BITS) | (bits & FRAGMENT_DROPPED) | (__u64)end << FRAGMENT_END_SHIFT |
	       (__u64)sum << FRAGMENT_SUM_SHIFT;
	/* Unless another packet has the slot by now. Pairs with itself and with insert_slot(). */
	__sync_val_compare_and_swap(&slot->time, time, next);
	return bits & FRAGMENT_DROPPED ? SCRUB_FIRST_DROPPED : SCRUB_FIRST_PASSED;
}

#endif
