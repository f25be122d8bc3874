/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The hash table of 64-bit entries in an image: src/buckets.rs. */
#ifndef SCRUB_BUCKETS_H
#define SCRUB_BUCKETS_H

#include "image.h"

/* A hash table in an image. */
struct scrub_buckets {
	__u64 seed;
	__u32 mask;	/* lines less one */
	__u32 first;	/* the first line */
};

/* Returns the entry of a key in a line; 0 if none. Without branches, which are slow to verify. */
static __always_inline __u64 line_find(const struct scrub_line *line, __u64 key, __u32 value_bits)
{
	__u64 found = 0;

#pragma unroll
	for (int at = 0; at < LINE_ENTRIES; at++) {
		__u64 entry = line->entries[at], differs = entry >> value_bits ^ key;
		__u64 negative = -differs;

		/* Hides that the next line compares with 0, which the compiler would do by a branch. */
		asm volatile("" : "+r"(negative));
		found |= entry & (((differs | negative) >> 63) - 1);
	}
	return found;
}

/* Returns true if a line has room: then keys whose first line it is are in no other one. */
static __always_inline int has_room(const struct scrub_line *line)
{
	__u64 room = 0;

#pragma unroll
	for (int at = 0; at < LINE_ENTRIES; at++)
		room |= is_zero(line->entries[at]);
	return room;
}

/* Returns the entry of a key; 0 if none. */
static __always_inline __u64 buckets_find(__u32 side, const struct scrub_buckets *table, __u64 key,
					  __u32 value_bits)
{
	__u64 mixed = (key ^ table->seed) * 0x9e3779b97f4a7c15ULL;
	struct scrub_line *line;
	__u32 first, second;
	__u64 entry;

	mixed = (mixed ^ mixed >> 32) * (table->seed | 1);
	mixed ^= mixed >> 29;
	first = (__u32)mixed & table->mask;
	line = line_at(side, table->first + first);
	if (!line)
		return 0;
	entry = line_find(line, key, value_bits);
	if (entry || has_room(line))
		return entry;
	second = (__u32)(mixed >> 32) & table->mask;
	if (first == second)
		second ^= 1;
	line = line_at(side, table->first + (second & table->mask));
	return line ? line_find(line, key, value_bits) : 0;
}

#endif
