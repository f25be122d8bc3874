/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Limits: for each key, the time at which its next packet conforms (GCRA, ITU-T I.371).
 *
 *	key --hash--> front: [ slot | slot | slot | until ]	2 MiB, which caches hold
 *	        |--> table: two lines (slots.h)			for keys that find no slot in the front
 *	        `--> shared times				for those that find none in the table
 *
 * A slot whose time has passed is free: most keys of a flood need one for the time of a packet, so they find it in the
 * front. The table is read only while a key of this front line may still last there. Nothing is evicted, so a flood of
 * forged sources cannot reset the limit of another source. A packet without a slot counts against its source's network,
 * in one of two rows of shared times each. Limits have groups of these: a slow limit that is flooded does not charge a
 * fast one.
 */
#ifndef SCRUB_LIMITS_H
#define SCRUB_LIMITS_H

#include "packet.h"
#include "slots.h"

#define SHARED_ROWS 2
#define SHARED_GROUPS 64	/* by the limit's number */
#define SHARED_LINES (1 << 9)	/* of a group in a row: 4,096 times */

enum scrub_limit_key {
	SCRUB_BY_SOURCE,
	SCRUB_BY_SOURCE_NETWORK,
	SCRUB_BY_DESTINATION,
	SCRUB_BY_NOTHING,
};

/* A limit, two in a line. Times are in 1/16 ns. */
struct scrub_limit {
	__u64 salt;		/* of the limit's name: it goes on in the next policy */
	__u64 cost;		/* of a packet; by bytes: of a byte, in 2^-24 */
	__u64 tolerance;
	__u8 by;		/* enum scrub_limit_key */
	__u8 by_bytes;
	__u16 counter;
	__u32 reserved;
};

#define FRONT_LINES (1 << 15)	/* by the upper 15 bits of a key */
#define FRONT_SLOTS 3

struct front_line {
	struct slot slots[FRONT_SLOTS];
	__u64 until;		/* when the last of the line's keys that are in the table ends, or later */
	__u64 reserved;
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, FRONT_LINES);
	__type(key, __u32);
	__type(value, struct front_line);
} scrub_limit_front SEC(".maps");

/* The table. Resized when loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct slot_line);
} scrub_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, SHARED_GROUPS * SHARED_ROWS * SHARED_LINES);
	__type(key, __u32);
	__type(value, struct scrub_line);
} scrub_shared_limits SEC(".maps");

/* Returns the time that a packet takes. */
static __always_inline __u64 cost_of(const struct scrub_limit *limit, __u32 bytes)
{
	return (limit->by_bytes ? bytes * limit->cost >> 24 : limit->cost) ?: 1;
}

/* Returns true, and charges, if a packet of this cost conforms. */
static __always_inline int conforms(__u64 *time, __u64 now, __u64 cost, __u64 tolerance)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__u64 old = *(volatile __u64 *)time, from = old > now ? old : now;

		if (from - now > tolerance)
			return 0;
		/* Pairs with itself on other CPUs. */
		if (__sync_val_compare_and_swap(time, old, from + cost) == old)
			return 1;
	}
	/* Two other CPUs were faster, so the time is at least now: it conformed, and is charged without another look. */
	__sync_fetch_and_add(time, cost);
	return 1;
}

static __always_inline struct front_line *front_line(__u64 key)
{
	__u32 at = key >> 49;

	return bpf_map_lookup_elem(&scrub_limit_front, &at);
}

/* Returns the slot of a key in the table. If there is none, inserts one if asked to; NULL if both lines are full. */
static __always_inline struct slot *table_slot(__u64 key, __u32 mask, __u64 now, int insert)
{
	__u32 at[2] = { (__u32)key >> 1 & mask, (__u32)(key >> 32) & mask };
	struct slot *free = 0;
	__u64 tag = 0;
	int best = 0;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		struct slot_line *line = bpf_map_lookup_elem(&scrub_limits, &at[i]);
		__u64 found_tag = 0, unused = 0;
		struct slot *found = 0;
		int count = 0;

		if (!line)
			return 0;
#pragma unroll
		for (int slot = 0; slot < SLOTS; slot++) {
			__u64 other = *(volatile __u64 *)&line->slots[slot].tag;

			if (other == key)
				return &line->slots[slot];
			unused |= is_zero(other);
			if (line->slots[slot].time > now)
				continue;
			if (!found_tag) {
				found = &line->slots[slot];
				found_tag = other;
			}
			count++;
		}
		if (count > best) {
			best = count;
			free = found;
			tag = found_tag;
		}
		if (unused)
			break;
	}
	if (!insert)
		return 0;
	/* Of two keys that are inserted at once, the slower one shares the slot once. Pairs with itself on other CPUs. */
	if (free)
		__sync_val_compare_and_swap(&free->tag, tag, key);
	return free;
}

/* The first two are results of conforms(). */
enum scrub_charge {
	SCRUB_EXCEEDS,
	SCRUB_CONFORMS,
	SCRUB_NO_SLOT,
};

/* Charges a packet in the table. Returns enum scrub_charge. */
static __always_inline int charge_in_table(__u64 key, __u64 now, __u64 cost, __u64 tolerance, __u32 mask, int insert)
{
	struct slot *slot = table_slot(key, mask, now, insert);
	struct front_line *line = front_line(key);
	int conforming;
	__u64 until;

	if (!slot || !line)
		return SCRUB_NO_SLOT;
	conforming = conforms(&slot->time, now, cost, tolerance);
	/* If two other CPUs were faster with earlier times, the key may get another burst. */
#pragma unroll
	for (int i = 0; i < 2; i++) {
		until = *(volatile __u64 *)&line->until;
		/* Pairs with itself, and with charge_key(), on other CPUs. */
		if (until >= slot->time || __sync_val_compare_and_swap(&line->until, until, slot->time) == until)
			break;
	}
	return conforming;
}

/* Charges a packet without a slot. */
static __always_inline int shared_conforms(__u64 key, __u32 group, __u64 now, __u64 cost, __u64 tolerance)
{
	__u32 first = group % SHARED_GROUPS * SHARED_ROWS * SHARED_LINES;
	int ok = 0;

#pragma unroll
	for (int row = 0; row < SHARED_ROWS; row++) {
		__u32 at = (__u32)(key >> (row * 32)) >> 4 & (SHARED_LINES * 8 - 1);
		__u32 line_number = first + row * SHARED_LINES + (at >> 3);
		struct scrub_line *line = bpf_map_lookup_elem(&scrub_shared_limits, &line_number);

		/* Other keys charge these times, too: one that conforms is enough. */
		ok |= line && conforms(&line->entries[at & 7], now, cost, tolerance);
	}
	return ok;
}

static __always_inline __u64 key_of(const struct scrub_limit *limit,
				    const struct scrub_packet *packet, __u8 by, const __u64 *secrets)
{
	__u64 v4 = packet->version == 4;

	switch (by) {
	case SCRUB_BY_SOURCE:
		return slot_key(packet->src_high, packet->version, limit->salt, secrets);
	case SCRUB_BY_SOURCE_NETWORK:
		return slot_key(packet->src_high & (v4 ? ~0ULL << 40 : ~0ULL << 16),
				 packet->version, limit->salt, secrets);
	case SCRUB_BY_DESTINATION:
		return slot_key(packet->dst_high, packet->dst_low, limit->salt ^ packet->version, secrets);
	default:
		return slot_key(0, 0, limit->salt, secrets);
	}
}

#endif
