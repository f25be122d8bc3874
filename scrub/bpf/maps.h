/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of a scrubber, and what they hold of the policy that decides. */
#ifndef SCRUB_MAPS_H
#define SCRUB_MAPS_H

#include "scrub.h"

/*
 * An image has as many lines as its policy needs. Without types: Linux 5.15 to 6.1 takes no map without BTF for one with
 * BTF (kernel/bpf/map_in_map.c, `bpf_map_meta_equal`, timer_off).
 */
struct image {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct scrub_line));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct image);
} scrub_images SEC(".maps");

/* Key: the lowest bit of the generation, as of scrub_images. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct scrub_params);
} scrub_params SEC(".maps");

/* Counters; resized for all CPUs when loaded. Key: (cpu * 2 + generation's lowest bit) * SCRUB_COUNTERS + counter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * SCRUB_COUNTERS);
	__type(key, __u32);
	__type(value, struct scrub_count);
} scrub_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} scrub_samples SEC(".maps");

/* The packet that a CPU decides on: it spares the stack, of which all calls together have 512 bytes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scrub_packet);
} scrub_packet SEC(".maps");

/* The number changes with the layout of any map, so that programs of different versions do not share them. */
struct scrub_control control SEC(SCRUB_CONTROL);

/* The last decision of scrub_rehearse. */
__u64 rehearsed_counter SEC(".data.rehearse");

/* Frames may span several buffers. */
const volatile __u32 frags SEC(".rodata.frags") = 0;

static __always_inline struct scrub_params *params_of(__u32 generation)
{
	return bpf_map_lookup_elem(&scrub_params, &generation);
}

static __always_inline void *image_of(__u32 generation)
{
	return bpf_map_lookup_elem(&scrub_images, &generation);
}

static __always_inline __u32 frame_bytes(struct xdp_md *ctx)
{
	return frags ? bpf_xdp_get_buff_len(ctx) : ctx->data_end - ctx->data;
}

static __always_inline void count_at(__u32 generation, __u32 counter, __u32 bytes)
{
	__u32 key = (bpf_get_smp_processor_id() * 2 + generation) * SCRUB_COUNTERS + counter;
	struct scrub_count *count = bpf_map_lookup_elem(&scrub_counters, &key);

	if (count) {
		count->packets++;
		count->bytes += bytes;
	}
}

/* Returns the time in ns. */
static __always_inline __u64 now_ns(void)
{
	return *(volatile __u64 *)&control.now ?: bpf_ktime_get_coarse_ns();
}

#endif
