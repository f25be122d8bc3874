/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Images: the lines of a policy's tables, in segments. src/image.rs describes them. */
#ifndef SCRUB_IMAGE_H
#define SCRUB_IMAGE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "line.h"

/* Lines of a segment: 4 MiB, the longest value before Linux 6.0 (kernel/bpf/arraymap.c, `array_map_alloc_check`). */
#define SEGMENT_LINES (1 << 16)
/* Segments of an image, at most. */
#define MAX_SEGMENTS 512

struct scrub_segment {
	struct scrub_line lines[SEGMENT_LINES];
};

/*
 * All segments have one size, so the kernel reads them without a call. A map is one value, because in an inner map, Linux
 * before 6.4 finds the first one for every key (kernel/bpf/map_in_map.c, `bpf_map_meta_alloc`, elem_size). Without types:
 * Linux 5.15 to 6.1 rejects a map without BTF if the template has BTF (`bpf_map_meta_equal`, timer_off).
 */
struct segment_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct scrub_segment));
};

/* Key: side * MAX_SEGMENTS + segment. A side is the lowest bit of a generation. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2 * MAX_SEGMENTS);
	__type(key, __u32);
	__array(values, struct segment_map);
} scrub_images SEC(".maps");

/* Returns a line of a side's image; NULL if the generation has ended. */
static __always_inline struct scrub_line *line_at(__u32 side, __u32 at)
{
	__u32 key = side * MAX_SEGMENTS + at / SEGMENT_LINES, zero = 0;
	void *map = bpf_map_lookup_elem(&scrub_images, &key);
	struct scrub_segment *segment = map ? bpf_map_lookup_elem(map, &zero) : 0;

	if (!segment)
		return 0;
	/* The compiler must not compute the place before this check. */
	asm volatile("" : "+r"(segment));
	return &segment->lines[at & (SEGMENT_LINES - 1)];
}

#endif
