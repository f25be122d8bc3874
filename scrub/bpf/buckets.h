/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Lines of an image, and the hash table of 64-bit entries in them: src/image.rs and src/buckets.rs. */
#ifndef SCRUB_BUCKETS_H
#define SCRUB_BUCKETS_H

#define LINE_BYTES 64
#define LINE_ENTRIES 8

/*
 * The flag of array maps whose elements are cache lines. Only the elements of maps that processes may map begin at a page
 * (kernel/bpf/arraymap.c, `array_map_alloc`). Others begin inside of a line, at byte 56 on Linux 6.18: each is in two.
 */
#define LINE_ALIGNED BPF_F_MMAPABLE

/* A line: one cache line, an element of the array map that is an image. */
struct scrub_line {
	__u64 entries[LINE_ENTRIES];
} __attribute__((aligned(64)));

/* A hash table in an image. */
struct scrub_buckets {
	__u64 seed;
	__u32 mask;	/* lines less one */
	__u32 first;	/* the first line */
};

/* Returns a line of an image; NULL behind the last one. */
static __always_inline struct scrub_line *line_at(void *image, __u32 at)
{
	return bpf_map_lookup_elem(image, &at);
}

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

/* A product of two 32-bit sums: NH of UMAC (RFC 4418, 5.2). */
static __always_inline __u64 nh(__u64 word, __u64 secret)
{
	return (__u64)((__u32)word + (__u32)secret) * (__u32)((word >> 32) + (secret >> 32));
}

/* Returns the entry of a key; 0 if none. */
static __always_inline __u64 buckets_find(void *image, const struct scrub_buckets *table, __u64 key,
					  __u32 value_bits)
{
	__u64 mixed = (key ^ table->seed) * 0x9e3779b97f4a7c15ULL;
	struct scrub_line *line;
	__u32 first, second;
	__u64 entry;

	mixed = (mixed ^ mixed >> 32) * (table->seed | 1);
	mixed ^= mixed >> 29;
	first = (__u32)mixed & table->mask;
	line = line_at(image, table->first + first);
	if (!line)
		return 0;
	entry = line_find(line, key, value_bits);
	if (entry)
		return entry;
	second = (__u32)(mixed >> 32) & table->mask;
	if (first == second)
		second ^= 1;
	line = line_at(image, table->first + (second & table->mask));
	return line ? line_find(line, key, value_bits) : 0;
}

#endif
