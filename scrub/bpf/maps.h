/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of a scrubber, and what they hold of the policy that decides. */
#ifndef SCRUB_MAPS_H
#define SCRUB_MAPS_H

#include "scrub.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct scrub_params);
} scrub_params SEC(".maps");

/* Counters; resized for all CPUs when loaded. Key: (cpu * 2 + side) * SCRUB_COUNTERS + counter. */
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

/* The class of the last packet's destination: most packets have that of the packet before. */
struct scrub_last_destination {
	__u64 high, low;
	struct scrub_class class;
	__u32 generation;
	__u32 version;		/* 0 before the first packet */
};

/* A CPU's memory. The packet that it decides on spares the stack, of which all calls together have 512 bytes. */
struct scrub_scratch {
	struct scrub_packet packet;
	struct scrub_last_destination last;
	__u64 random;		/* the last number; 0 before the first */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scrub_scratch);
} scrub_scratch SEC(".maps");

static __always_inline struct scrub_scratch *scratch_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scrub_scratch, &zero);
}

/*
 * The number changes with the layout or flags of any map, or with the places of entries, so that programs of different
 * versions do not share them.
 */
struct scrub_control control SEC(SCRUB_CONTROL);

/* The last decision of scrub_rehearse. */
__u64 rehearsed_counter SEC(".data.rehearse");

/* Frames may span several buffers. */
const volatile __u32 frags SEC(".rodata.frags") = 0;

static __always_inline struct scrub_params *params_of(__u32 side)
{
	return bpf_map_lookup_elem(&scrub_params, &side);
}

static __always_inline __u32 frame_bytes(struct xdp_md *ctx)
{
	return frags ? bpf_xdp_get_buff_len(ctx) : ctx->data_end - ctx->data;
}

static __always_inline void count_at(__u32 side, __u32 counter, __u32 bytes)
{
	__u32 key = (bpf_get_smp_processor_id() * 2 + side) * SCRUB_COUNTERS + counter;
	struct scrub_count *count = bpf_map_lookup_elem(&scrub_counters, &key);

	if (count) {
		count->packets++;
		count->bytes += bytes;
	}
}

/* Returns the time of a packet in ns. */
static __always_inline __u64 now_of(struct scrub_packet *packet)
{
	if (!packet->now)
		packet->now = *(volatile __u64 *)&control.now ?: bpf_ktime_get_coarse_ns();
	return packet->now;
}

#endif
