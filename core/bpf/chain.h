/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * For the program at the scrub stage, which another crate loads: maps of the chain of stages, and
 * functions on them. The crate's build.rs gets this folder as DEP_SLUICEGATE_INCLUDE, and libbpf's
 * headers as DEP_BPF_INCLUDE if the crate depends on libbpf-sys. Its object has to reuse the maps of the
 * interface's resident program: `Resident::chain_maps` and `ScrubStage`
 * (core/src/xdp/resident/scrub_stage.rs).
 *
 *	SEC("xdp")
 *	int filter(struct xdp_md *ctx)
 *	{
 *		struct sluice_tally *tally = tally_of(SLUICE_SCRUB);
 *
 *		if (!tally || !is_alive(SLUICE_SCRUB))
 *			return sluice_resume(ctx);
 *		tally->packets++;
 *		if (!is_attack(ctx))
 *			return sluice_resume(ctx);
 *		tally->dropped++;
 *		return XDP_DROP;
 *	}
 */
#ifndef SLUICE_CHAIN_H
#define SLUICE_CHAIN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "ingress.h"

/* Programs of the stages; key: enum sluice_stage. Emptied when its last descriptor is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, __u32);
} sluice_stages SEC(".maps");

/* A socket of each stage's owner, inserted when the stage is complete and begins to act. Key: stage. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, __u32);
} sluice_alive SEC(".maps");

/* Counters; resized for all CPUs when loaded. Key: cpu * SLUICE_STAGES + stage. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, struct sluice_tally);
} sluice_tallies SEC(".maps");

/* Returns this CPU's counters of a stage. Null only if the maps are not those of a resident program. */
static __always_inline struct sluice_tally *tally_of(__u32 stage)
{
	__u32 key = bpf_get_smp_processor_id() * SLUICE_STAGES + stage;

	return bpf_map_lookup_elem(&sluice_tallies, &key);
}

/* Returns true if a stage is complete and its owner is alive. */
static __always_inline int is_alive(__u32 stage)
{
	return bpf_map_lookup_elem(&sluice_alive, &stage) != 0;
}

/*
 * Continues a packet after the scrub stage: `return sluice_resume(ctx);`. The resident program knows the
 * order of the later stages. This is a tail call, which returns only if no more are allowed: the host
 * gets the packet. Of the 33 that the kernel allows, a full chain uses 29.
 */
static __always_inline int sluice_resume(struct xdp_md *ctx)
{
	bpf_tail_call_static(ctx, &sluice_stages, SLUICE_RESUME);
	return XDP_PASS;
}

#endif
