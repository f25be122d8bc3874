// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The resident program: one per interface, shared by all processes that use it.
 *
 *	packet -> count -> mirrors -> scrub -> flows -> claims -> end -> the host
 *	                   `-------- sluice_stages, tail calls -----'
 *
 * The stages are programs of their owners, inserted into sluice_stages at run time. When an
 * owner exits or is killed, the kernel removes its sockets from the maps, including the one in
 * sluice_alive. Stages that drop, copy, forward or pass flows check sluice_alive; one that redirects
 * to sockets finds none. The packets go to the next stage, and finally to the host.
 */
#include "chain.h"

/* The socket of sluice_alive, inserted when the owner takes the stage; nothing is sent to it. Key: stage. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, __u32);
} sluice_owned SEC(".maps");

/* Sockets of claims on all packets that have no program. Key: receive queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, SLUICE_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sluice_direct SEC(".maps");

/* Interfaces of stages that forward; an entry is removed with its interface. Key: stage. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, __u32);
} sluice_out SEC(".maps");

/* Descriptions of owners. Key: stage. Only its owner writes. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLUICE_STAGES);
	__type(key, __u32);
	__type(value, struct sluice_owner);
} sluice_owners SEC(".maps");

struct sluice_control control SEC(".data.control") = {
	.version = SLUICE_VERSION,
};

/* Frames may span several buffers. */
const volatile __u32 frags = 0;

static __always_inline __u64 wire_bytes(struct xdp_md *ctx)
{
	return frags ? bpf_xdp_get_buff_len(ctx) : ctx->data_end - ctx->data;
}

static __always_inline void count(struct xdp_md *ctx, struct sluice_tally *tally)
{
	tally->packets++;
	tally->bytes += wire_bytes(ctx);
}

/* Redirects a packet to the interface of SLUICE_FORWARD, and counts it at that stage. */
static __always_inline int to_interface(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_FORWARD);

	if (!is_alive(SLUICE_FORWARD) || !tally ||
	    bpf_redirect_map(&sluice_out, SLUICE_FORWARD, 0) != XDP_REDIRECT)
		return XDP_PASS;
	count(ctx, tally);
	tally->taken++;
	return XDP_REDIRECT;
}

/* Redirects a packet to the queue's claim on all packets, and counts it at that stage. */
static __always_inline int to_direct(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	struct sluice_tally *tally;
	__u8 stage;

	if (queue >= SLUICE_QUEUES_MAX)
		return XDP_PASS;
	stage = *(volatile __u8 *)&control.direct[queue];
	if (!stage)
		return XDP_PASS;
	tally = tally_of(stage);
	if (!tally)
		return XDP_PASS;
	count(ctx, tally);
	if (bpf_redirect_map(&sluice_direct, queue, 0) == XDP_REDIRECT) {
		tally->taken++;
		return XDP_REDIRECT;
	}
	tally->missed++;
	return XDP_PASS;
}

/* Handles a packet that no stage's program took. */
static __always_inline int at_the_end(struct xdp_md *ctx, __u64 present, struct sluice_tally *tally)
{
	if (present & 1ULL << SLUICE_FORWARD && to_interface(ctx) == XDP_REDIRECT)
		return XDP_REDIRECT;
	if (present & 1ULL << SLUICE_DIRECT && to_direct(ctx) == XDP_REDIRECT)
		return XDP_REDIRECT;
	if (present & 1ULL << SLUICE_DROP && is_alive(SLUICE_DROP)) {
		tally->dropped++;
		tally->dropped_bytes += wire_bytes(ctx);
		return XDP_DROP;
	}
	return XDP_PASS;
}

/* The last stage, tail-called by the others. */
SEC("xdp")
int sluice_end(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_END);

	if (!tally)
		return XDP_PASS;
	return at_the_end(ctx, control.present, tally);
}

/* Stages are checked in groups, because most are empty. All stages with programs are below bit 32. */
#define PROGRAMS 0xffffffffULL
_Static_assert(SLUICE_CLAIMS + SLUICE_CLAIMS_MAX <= 32, "a claim is not in PROGRAMS");
#define GROUP(first) (0xffULL << (first))

#define RUN(stage)                                                                                 \
	if (present & 1ULL << (stage))                                                             \
		bpf_tail_call_static(ctx, &sluice_stages, stage);

/* Tail-calls the first present stage after the scrub stage. */
static __always_inline void run_after_scrub(struct xdp_md *ctx, __u64 present)
{
	RUN(15)
	if (present & GROUP(16)) {
		RUN(16) RUN(17) RUN(18) RUN(19) RUN(20) RUN(21) RUN(22) RUN(23)
	}
	if (present & GROUP(24)) {
		RUN(24) RUN(25) RUN(26) RUN(27) RUN(28) RUN(29) RUN(30) RUN(31)
	}
}

/* Continues a packet that the scrub stage has passed, tail-called by sluice_resume(). */
SEC("xdp")
int sluice_resumed(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_END);
	__u64 present = *(volatile __u64 *)&control.present;

	if (!tally)
		return XDP_PASS;
	run_after_scrub(ctx, present);
	return at_the_end(ctx, present, tally);
}

SEC("xdp")
int sluice_ingress(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_END);
	__u64 present = *(volatile __u64 *)&control.present;

	if (!tally)
		return XDP_PASS;
	count(ctx, tally);
	if (present & PROGRAMS) {
		if (present & GROUP(0)) {
			RUN(0) RUN(1) RUN(2) RUN(3) RUN(4) RUN(5) RUN(6) RUN(7)
		}
		RUN(8)
		run_after_scrub(ctx, present);
	}
	return at_the_end(ctx, present, tally);
}

char _license[] SEC("license") = "Dual BSD/GPL";
