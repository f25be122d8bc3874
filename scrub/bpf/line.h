/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Cache lines, of which tables consist. */
#ifndef SCRUB_LINE_H
#define SCRUB_LINE_H

#define LINE_BYTES 64
#define LINE_ENTRIES 8

/*
 * The flag of array maps whose elements are cache lines. Only the elements of maps that processes may map begin at a page
 * (kernel/bpf/arraymap.c, `array_map_alloc`). Others begin inside of a line, at byte 56 on Linux 6.18: each is in two.
 */
#define LINE_ALIGNED BPF_F_MMAPABLE

struct scrub_line {
	__u64 entries[LINE_ENTRIES];
} __attribute__((aligned(64)));

/* Returns 1 for 0, and 0 for other words: without a branch, which is slow to verify. */
static __always_inline __u64 is_zero(__u64 word)
{
	/* Hides the comparison, which the compiler would do by a branch. */
	asm volatile("" : "+r"(word));
	return ((word - 1) & ~word) >> 63;
}

/* A product of two 32-bit sums: NH of UMAC (RFC 4418, 5.2). */
static __always_inline __u64 nh(__u64 word, __u64 secret)
{
	return (__u64)((__u32)word + (__u32)secret) * (__u32)((word >> 32) + (secret >> 32));
}

#endif
