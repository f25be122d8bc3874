/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tables of slots: what is remembered of a key until a time.
 *
 *	key --hash--> line a: [ tag time | tag time | tag time | tag time ]
 *	        `---> line b: the same; if line a was ever full, the emptier one gets a new key
 *
 * A slot whose time has passed is free: its key is as if never seen. New keys take such slots before unused ones. A line
 * with an unused slot was never full, so no key went from it to line b, which need not be read then. With half of the
 * slots in use, 1 of 150 keys finds both lines full.
 */
#ifndef SCRUB_SLOTS_H
#define SCRUB_SLOTS_H

#include "line.h"

#define SLOTS 4
/* The tag of a slot that is being written; keys are odd. */
#define SLOT_BUSY 2

/* Flags in the lowest bits of times. */
#define WEAK 1			/* gives way to others */
#define TIME_FLAGS 3ULL

struct slot {
	__u64 tag;
	__u64 time;
};

struct slot_line {
	struct slot slots[SLOTS];
} __attribute__((aligned(64)));

/* Words that a key is hashed with, all of them secret. */
#define KEY_WORDS 3

/*
 * Returns the hash of a key's parts; never 0. Whatever parts a sender chooses, two keys collide with a probability of
 * 2^-32 over the secrets.
 */
static __always_inline __u64 slot_key(__u64 high, __u64 low, __u64 salt, const __u64 *secrets)
{
	__u64 mixed = nh(high, secrets[0]) + nh(low, secrets[1]) + nh(salt, secrets[2]);

	mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93ULL;
	mixed = (mixed ^ mixed >> 29) * 0x9e3779b97f4a7c15ULL;
	return (mixed ^ mixed >> 32) | 1;
}

/* Returns the living slot of a key; NULL if none. */
static __always_inline struct slot *living_slot(void *map, __u64 key, __u32 mask, __u64 now)
{
	__u32 at[2] = { (__u32)key >> 1 & mask, (__u32)(key >> 32) & mask };

#pragma unroll
	for (int i = 0; i < 2; i++) {
		struct slot_line *line = bpf_map_lookup_elem(map, &at[i]);
		__u64 unused = 0;

		if (!line)
			return 0;
#pragma unroll
		for (int slot = 0; slot < SLOTS; slot++) {
			/* Pairs with insert_slot(). */
			__u64 tag = *(volatile __u64 *)&line->slots[slot].tag;

			if (tag == key)
				return (line->slots[slot].time & ~TIME_FLAGS) > now ? &line->slots[slot] : 0;
			unused |= is_zero(tag);
		}
		if (unused)
			return 0;
	}
	return 0;
}

/*
 * Inserts a key until a time. If both lines are full, it takes the slot of the entry that ends first; weak entries first.
 */
static __always_inline void insert_slot(void *map, __u64 key, __u32 mask, __u64 now, __u64 time)
{
	__u32 at[2] = { (__u32)key >> 1 & mask, (__u32)(key >> 32) & mask };
	__u64 tag = 0, oldest_tag = 0, end = ~0ULL;
	struct slot *free = 0, *oldest = 0;
	int best = 0;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		struct slot_line *line = bpf_map_lookup_elem(map, &at[i]);
		__u64 found_tag = 0, unused = 0;
		struct slot *found = 0;
		int count = 0;

		if (!line)
			return;
#pragma unroll
		for (int slot = 0; slot < SLOTS; slot++) {
			__u64 other = *(volatile __u64 *)&line->slots[slot].tag;
			__u64 until = line->slots[slot].time;

			if (other == key) {
				line->slots[slot].time = time;
				return;
			}
			unused |= is_zero(other);
			if (until <= now) {
				if (!found_tag) {
					found = &line->slots[slot];
					found_tag = other;
				}
				count++;
				continue;
			}
			if (until & WEAK)
				until >>= 1;
			if (until < end) {
				end = until;
				oldest = &line->slots[slot];
				oldest_tag = other;
			}
		}
		if (count > best) {
			best = count;
			free = found;
			tag = found_tag;
		}
		if (unused)
			break;
	}
	if (!free) {
		free = oldest;
		tag = oldest_tag;
	}
	/* If two CPUs insert keys into one slot at once, the slower one gives up. Pairs with itself on other CPUs. */
	if (!free || tag == SLOT_BUSY || __sync_val_compare_and_swap(&free->tag, tag, SLOT_BUSY) != tag)
		return;
	free->time = time;
	/* Orders the time before the key. Pairs with living_slot(), which reads the key first. */
	__sync_val_compare_and_swap(&free->tag, SLOT_BUSY, key);
}

#endif
