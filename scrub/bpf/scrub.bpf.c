// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The scrubber's stage of the resident program.
 *
 *	packet -> parse -> later fragments -> pass sets -> drop sets -> rules -> amplification -> fragments -> TCP -> limits -> default
 *	            `-- the first that decides: drop, answer, return, or resume with the next stage of the chain
 *
 * src/policy/mod.rs describes the order; src/oracle decides alike. A new policy's tables are written beside the old ones,
 * and control.generation switches.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "chain.h"
#include "return.h"
#include "stages.h"
#include "tcp_stage.h"
#include "udp_challenge.h"

#define SAMPLE_BYTES 256

/* The decision on a packet, as it goes through the stages. */
struct decision {
	struct xdp_md *ctx;
	struct scrub_params *params;
	struct scrub_packet *packet;
	struct scrub_scratch *scratch;	/* has the packet */
	__u32 generation;
	__u32 side;		/* its lowest bit */
	__u32 bytes;		/* of the frame */
	__u32 counter;		/* the cause */
	__u32 sample;		/* by a rule: 1 in this number */
	__u16 rule;		/* that rule's counter */
	__u8 mark;
	__u8 returns;		/* leaves by the return path if it passes */
};

/* Charges a packet to limits. Returns true if it exceeds one, which is the cause then. */
static __always_inline int exceeds(struct decision *it, struct scrub_limit_list list)
{
	__u32 counter;

	if (!list.count)
		return 0;
	counter = scrub_exceeded(it->packet, it->side, list.first, list.count, it->bytes);
	it->counter = counter ?: it->counter;
	return counter != 0;
}

/* Returns a profile by its number; NULL if the generation has ended. */
static __always_inline struct scrub_profile *profile_at(const struct decision *it, __u32 number)
{
	return (void *)line_at(it->side, it->params->profiles + number * PROFILE_LINES);
}

/* Drops by a packet's amplification class. Returns XDP_PASS if it goes on. */
static __always_inline int decide_by_class(struct decision *it, __u32 profile)
{
	struct scrub_limit_list list;
	struct scrub_line *line;
	__u32 class;

	if (it->packet->transport != IPPROTO_UDP)
		return XDP_PASS;
	class = amplification_class(it->ctx, it->packet, it->params, it->side);
	if (!class)
		return XDP_PASS;
	line = line_at(it->side, profile + 1 + (((class - 1) >> 4) & 1));
	if (!line)
		return XDP_PASS;
	list = ((struct scrub_limit_list *)line)[(class - 1) & 15];
	if (!list.count && list.first == CLASS_DROP) {
		it->counter = SCRUB_COUNT_CLASSES + class - 1;
		return XDP_DROP;
	}
	return exceeds(it, list) ? XDP_DROP : XDP_PASS;
}

/* Returns the kinds of fragments that are dropped. */
static __always_inline __u8 dropped_fragments(const struct scrub_profile *profile)
{
	switch (profile->fragments) {
	case SCRUB_FRAGMENTS_KNOWN:
		return SCRUB_LATER_FRAGMENT;
	case SCRUB_FRAGMENTS_DROP:
		return SCRUB_FIRST_FRAGMENT | SCRUB_LATER_FRAGMENT;
	default:
		return 0;
	}
}

/* Returns XDP_DROP, XDP_TX or XDP_PASS, and sets the cause. */
static __always_inline int decide_by_profile(struct decision *it, __u32 number)
{
	struct scrub_profile *profile;

	if (decide_by_class(it, it->params->profiles + number * PROFILE_LINES) == XDP_DROP)
		return XDP_DROP;
	profile = profile_at(it, number);
	if (!profile)
		return XDP_PASS;
	if (it->packet->fragment & dropped_fragments(profile)) {
		it->counter = SCRUB_COUNT_FRAGMENT;
		return XDP_DROP;
	}
	if (it->packet->transport == IPPROTO_TCP && (profile->tcp.challenge || profile->tcp.state)) {
		__u32 cause = scrub_decide_tcp(it->ctx, it->packet, &profile->tcp);

		if (cause) {
			it->counter = cause;
			return cause == SCRUB_COUNT_CHALLENGE ? XDP_TX : XDP_DROP;
		}
	}
	if (exceeds(it, profile->limits))
		return XDP_DROP;
	it->counter = profile->drop ? SCRUB_COUNT_DEFAULT_DROP : SCRUB_COUNT_DEFAULT_PASS;
	return profile->drop ? XDP_DROP : XDP_PASS;
}

/* Charges a packet to a profile's limits. Returns true if it exceeds one. */
static __always_inline int exceeds_limits(struct decision *it, __u32 profile_number)
{
	struct scrub_profile *profile = profile_at(it, profile_number);

	return profile && exceeds(it, profile->limits);
}

/* Applies the action of the rule that matched. Returns true if it decides. */
static __always_inline int apply_rule(struct decision *it, __u32 record_action, __u32 profile_number, int *verdict)
{
	__u32 number = record_action & RULE_NUMBER, cause;
	struct scrub_profile *profile;
	struct scrub_action *action;
	struct scrub_line *line;

	if (record_action & (RULE_PASSES | RULE_DROPS)) {
		it->counter = it->rule = SCRUB_COUNT_RULES + number;
		*verdict = record_action & RULE_PASSES ? XDP_PASS : XDP_DROP;
		return 1;
	}
	line = line_at(it->side, it->params->actions + (number >> 2));
	if (!line)
		return 0;
	action = (void *)&line->entries[(number & 3) * 2];
	it->rule = action->counter;
	it->sample = action->sample;
	it->mark = action->mark;
	if (action->kind == SCRUB_RULE_CONTINUE) {
		count_at(it->side, action->counter, it->bytes);
		*verdict = XDP_DROP;
		return exceeds(it, action->limits);
	}
	if (action->kind >= SCRUB_RULE_CHALLENGE_A2S) {
		count_at(it->side, action->counter, it->bytes);
		profile = profile_at(it, profile_number);
		if (!profile)
			return 0;
		cause = scrub_challenge_udp(it->ctx, it->packet, it->side, number, &profile->tcp);
		if (!cause)
			return 0;
		it->counter = cause;
		/* As of one that goes on to the server: the answer is longer than the query. */
		*verdict = cause == SCRUB_COUNT_CACHED_A2S && exceeds_limits(it, profile_number) ? XDP_DROP : XDP_TX;
		return 1;
	}
	it->counter = action->counter;
	*verdict = action->kind == SCRUB_RULE_DROP ? XDP_DROP : XDP_PASS;
	return 1;
}

static __always_inline struct scrub_class class_of(const struct scrub_packet *packet, const struct scrub_params *params,
						   __u32 side, __u64 high, __u64 low)
{
	const struct scrub_set_params *sets = &params->sets;

	/* Most addresses end here, without a call. */
	if (packet->version == 4) {
		if (!differs(side, sets->v4_bitmaps, high, V4_BLOCK_LENGTH))
			return sets->v4_root;
		return class_at(side, sets, v4_class(side, sets, high >> 32));
	}
	if (!differs(side, sets->v6_bitmaps, high, V6_NETWORK_LENGTH))
		return sets->v6_root;
	return class_at(side, sets, scrub_v6_class(side, high, low));
}

/* Remembers the class of a packet's destination as that of the last one. */
__noinline int scrub_remember_destination(struct scrub_packet *packet, __u32 generation)
{
	struct scrub_params *params = params_of(generation & 1);
	struct scrub_scratch *scratch = scratch_of();
	struct scrub_last_destination *last;

	if (!packet || !params || !scratch)
		return 0;
	last = &scratch->last;
	last->class = class_of(packet, params, generation & 1, packet->dst_high, packet->dst_low);
	last->high = packet->dst_high;
	last->low = packet->dst_low;
	last->generation = generation;
	last->version = packet->version;
	return 0;
}

/* Returns the class of a packet's destination. */
static __always_inline struct scrub_class destination_class(const struct decision *it)
{
	const struct scrub_packet *packet = it->packet;
	struct scrub_last_destination *last = &it->scratch->last;

	if (last->low == packet->dst_low && last->high == packet->dst_high && last->generation == it->generation &&
	    last->version == packet->version)
		return last->class;
	if (packet->version == 4 && !differs(it->side, it->params->sets.v4_bitmaps, packet->dst_high, V4_BLOCK_LENGTH))
		return it->params->sets.v4_root;
	scrub_remember_destination(it->packet, it->generation);
	return last->class;
}

/* Decides by the source's sets. Returns true if one decides. */
static __always_inline int decide_by_sets(struct decision *it, __u64 sets, int *verdict)
{
	__u64 pass = sets & it->params->pass_sets, drop = sets & it->params->drop_sets;

	if (!(pass | drop))
		return 0;
	*verdict = pass ? XDP_PASS : XDP_DROP;
	it->counter = SCRUB_COUNT_SETS + lowest_bit(pass ?: drop);
	return 1;
}

/* Decides on a later fragment whose first one passed: the limits hold for it, too. */
static __always_inline int decide_by_first(struct decision *it, __u32 profile_number)
{
	if (exceeds_limits(it, profile_number))
		return XDP_DROP;
	it->counter = SCRUB_COUNT_FIRST_PASSED;
	return XDP_PASS;
}

/* Decides on a packet to a protected network. */
static __always_inline int decide_protected(struct decision *it, const struct scrub_class *dst)
{
	struct scrub_packet *packet = it->packet;
	int verdict = XDP_PASS, first = SCRUB_FIRST_UNKNOWN;
	struct scrub_class src;
	__u32 record_action;

	if (packet->fragment & SCRUB_LATER_FRAGMENT)
		first = scrub_follow_first(packet);
	if (first == SCRUB_FIRST_DROPPED || first == SCRUB_FIRST_CONTRADICTED) {
		it->counter = first == SCRUB_FIRST_DROPPED ? SCRUB_COUNT_FIRST_DROPPED :
							      SCRUB_COUNT_CONTRADICTED;
		return XDP_DROP;
	}
	src = class_of(packet, it->params, it->side, packet->src_high, packet->src_low);
	if (decide_by_sets(it, src.sets, &verdict))
		return verdict;
	if (first == SCRUB_FIRST_PASSED)
		return decide_by_first(it, dst->profile);
	if (has_rules_for(&it->params->rules, packet)) {
		record_action = find_rule(it->ctx, packet, it->side, src.sets, dst->sets);
		if (record_action != RULE_NONE && apply_rule(it, record_action, dst->profile, &verdict))
			return verdict;
	}
	return decide_by_profile(it, dst->profile);
}

/* Drops a packet that passes and cannot be returned. Returns the verdict. */
static __always_inline int check_return(struct decision *it, int verdict)
{
	__u32 defect = return_defect(it->packet);

	it->returns = !defect;
	if (!defect || verdict != XDP_PASS)
		return verdict;
	it->counter = defect;
	return XDP_DROP;
}

/* Decides on a packet. Returns XDP_DROP, XDP_TX or XDP_PASS, and sets the cause. */
static __always_inline int decide(struct decision *it)
{
	struct scrub_packet *packet = it->packet;
	struct scrub_class dst;
	int verdict;

	it->counter = parse(it->ctx, packet, it->params->tunnels);
	if (it->counter == SCRUB_NOT_IP)
		return XDP_PASS;
	if (it->counter != SCRUB_PARSED)
		return XDP_DROP;
	it->counter = SCRUB_COUNT_NEIGHBOR;
	if (is_neighbor_discovery(packet))
		return XDP_PASS;
	it->counter = SCRUB_COUNT_UNPROTECTED;
	dst = destination_class(it);
	if (!dst.network && packet->tunnel) {
		/* A flood of tunnels must not pass because nobody protects what is inside. */
		scrub_parse_outer(it->ctx, packet);
		dst = destination_class(it);
	}
	if (!dst.network)
		return XDP_PASS;
	verdict = decide_protected(it, &dst);
	if (packet->fragment & SCRUB_FIRST_FRAGMENT)
		scrub_remember_first(packet, verdict != XDP_PASS);
	return return_path.interface ? check_return(it, verdict) : verdict;
}

/* Returns a random number. The kernel's helper costs a call for each packet. */
static __always_inline __u32 next_random(struct scrub_scratch *scratch)
{
	if (!scratch->random)
		scratch->random = (__u64)bpf_get_prandom_u32() << 32 | 1;
	/* Knuth's MMIX: The Art of Computer Programming, 3.3.4, table 1. */
	scratch->random = scratch->random * 6364136223846793005ULL + 1442695040888963407ULL;
	return scratch->random >> 32;
}

/* Samples a frame, if its rule or verdict asks for it. */
static __always_inline void sample(const struct decision *it, int verdict)
{
	__u32 rate = it->sample ?: verdict != XDP_PASS ? control.sample_dropped : control.sample_passed;
	struct scrub_sample head = {
		.frame_bytes = it->bytes,
		.counter = it->counter,
		.rule = it->rule,
		.dropped = verdict != XDP_PASS,
	};
	__u64 bytes = it->bytes < SAMPLE_BYTES ? it->bytes : SAMPLE_BYTES;

	/* The upper half of the product is 0 for one of `rate` random numbers. */
	if (!rate || (__u64)next_random(it->scratch) * rate >> 32)
		return;
	head.time = bpf_ktime_get_ns();
	bpf_perf_event_output(it->ctx, &scrub_samples, BPF_F_CURRENT_CPU | bytes << 32, &head, sizeof(head));
}

/* Begins the decision on a packet by the present policy. Returns false if there is none. */
static __always_inline int begin(struct decision *it, struct xdp_md *ctx)
{
	it->ctx = ctx;
	it->bytes = frame_bytes(ctx);
	it->mark = NO_MARK;
	it->generation = *(volatile __u32 *)&control.generation;
	it->side = it->generation & 1;
	it->params = params_of(it->side);
	it->scratch = scratch_of();
	if (!it->scratch)
		return 0;
	it->packet = &it->scratch->packet;
	__builtin_memset(it->packet, 0, sizeof(*it->packet));
	return it->params && it->generation;
}

/* Turns a packet into the answer to it. Returns XDP_DROP if that cannot be sent. */
static __always_inline int answer(const struct decision *it)
{
	switch (it->counter) {
	case SCRUB_COUNT_CHALLENGE_A2S:
		return scrub_answer_a2s(it->ctx, it->packet);
	case SCRUB_COUNT_CHALLENGE_DNS:
		return scrub_answer_dns(it->ctx, it->packet);
	case SCRUB_COUNT_CACHED_A2S:
		return scrub_answer_from_cache(it->ctx, it->packet);
	default:
		return scrub_answer_by_cookie(it->ctx, it->packet) ? XDP_TX : scrub_answer(it->ctx, it->packet);
	}
}

/* Passes a packet: by the return path, or to the next stage of the chain. */
static __always_inline int pass(const struct decision *it)
{
	return it->returns ? scrub_return(it->ctx, it->packet) : XDP_PASS;
}

/* Changes a packet as its verdict and rule ask. Returns what happens to it. */
static __always_inline int act(const struct decision *it, int verdict)
{
	if (verdict == XDP_TX)
		return answer(it);
	if (verdict != XDP_PASS)
		return verdict;
	if (it->mark != NO_MARK)
		scrub_mark(it->ctx, it->packet, it->mark);
	return pass(it);
}

SEC("xdp")
int scrub_stage(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_SCRUB);
	struct decision it = {};
	int verdict;

	if (!control.resident && !is_alive(SLUICE_SCRUB)) {
		if (control.fail_closed)
			return XDP_DROP;
		return sluice_resume(ctx);
	}
	if (!begin(&it, ctx))
		return sluice_resume(ctx);
	verdict = decide(&it);
	count_at(it.side, it.counter, it.bytes);
	sample(&it, verdict);
	verdict = control.monitor ? pass(&it) : act(&it, verdict);
	if (tally) {
		tally->packets++;
		tally->bytes += it.bytes;
		if (verdict == XDP_REDIRECT) {
			tally->taken++;
		} else if (verdict != XDP_PASS) {
			tally->dropped++;
			tally->dropped_bytes += it.bytes;
		}
	}
	return verdict == XDP_PASS ? sluice_resume(ctx) : verdict;
}

/* Decides alone, by BPF_PROG_RUN. */
SEC("xdp")
int scrub_rehearse(struct xdp_md *ctx)
{
	struct decision it = {};
	int verdict;

	if (!begin(&it, ctx))
		return XDP_ABORTED;
	verdict = decide(&it);
	count_at(it.side, it.counter, it.bytes);
	rehearsed_counter = it.counter;
	return act(&it, verdict);
}

char _license[] SEC("license") = "Dual BSD/GPL";
