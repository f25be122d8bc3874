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
	void *image;
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

/* Charges a packet to limits, until it exceeds one. Returns true if it does. */
static __always_inline int exceeds(struct decision *it, struct scrub_limit_list list)
{
	for (__u32 i = 0; i < LIMITS_MAX && i < list.count; i++) {
		__u32 counter = scrub_charge(it->packet, it->side, list.first + i, it->bytes);

		if (counter) {
			it->counter = counter;
			return 1;
		}
	}
	return 0;
}

/* Drops by a packet's amplification class. Returns XDP_PASS if it goes on. */
static __always_inline int decide_by_class(struct decision *it, __u32 profile)
{
	struct scrub_limit_list list;
	struct scrub_line *line;
	__u32 class;

	if (it->packet->transport != IPPROTO_UDP)
		return XDP_PASS;
	class = scrub_amplification(it->ctx, it->packet, it->side);
	if (!class)
		return XDP_PASS;
	line = line_at(it->image, profile + 1 + (((class - 1) >> 4) & 1));
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
	__u32 first = it->params->profiles + number * PROFILE_LINES;
	struct scrub_profile *profile;

	if (decide_by_class(it, first) == XDP_DROP)
		return XDP_DROP;
	profile = (void *)line_at(it->image, first);
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
	__u32 first = it->params->profiles + profile_number * PROFILE_LINES;
	struct scrub_profile *profile = (void *)line_at(it->image, first);

	return profile && exceeds(it, profile->limits);
}

/* Applies the action of the rule that matched. Returns true if it decides. */
static __always_inline int apply_rule(struct decision *it, __u32 number, __u32 profile_number, int *verdict)
{
	struct scrub_line *line = line_at(it->image, it->params->actions + (number >> 2));
	struct scrub_profile *profile;
	struct scrub_action *action;
	__u32 cause;

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
		profile = (void *)line_at(it->image, it->params->profiles + profile_number * PROFILE_LINES);
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

static __always_inline struct scrub_class class_of(const struct decision *it, __u64 high, __u64 low)
{
	const struct scrub_set_params *sets = &it->params->sets;
	__u32 is_v6 = it->packet->version == 6;
	const __u64 *networks = networks_of(it->side, is_v6);
	struct scrub_v6_first *first;
	__u32 class = 0;

	if (!networks)
		return no_class;
	/* Most IPv4 addresses end here, without a call. */
	if (!is_v6 && is_v4_root(networks, sets, it->params->v4_page_of, high >> 32))
		return sets->v4_root;
	if (!is_v6) {
		class = scrub_v4_class(it->side, high >> 32);
	} else if (has_bit(networks, high >> 40)) {
		class = scrub_v6_class(it->side, high, low);
	} else {
		first = v6_first(it->image, sets, high);
		class = first ? first->class : 0;
	}
	return class_at(it->image, sets, class);
}

/* Returns the class of a packet's destination. */
static __always_inline struct scrub_class destination_class(const struct decision *it)
{
	const struct scrub_packet *packet = it->packet;
	struct scrub_last_destination *last = &it->scratch->last;

	if (last->low == packet->dst_low && last->high == packet->dst_high && last->generation == it->generation &&
	    last->version == packet->version)
		return last->class;
	last->class = class_of(it, packet->dst_high, packet->dst_low);
	last->high = packet->dst_high;
	last->low = packet->dst_low;
	last->generation = it->generation;
	last->version = packet->version;
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
	__u32 rule;

	if (packet->fragment & SCRUB_LATER_FRAGMENT)
		first = scrub_follow_first(packet);
	if (first == SCRUB_FIRST_DROPPED || first == SCRUB_FIRST_CONTRADICTED) {
		it->counter = first == SCRUB_FIRST_DROPPED ? SCRUB_COUNT_FIRST_DROPPED :
							      SCRUB_COUNT_CONTRADICTED;
		return XDP_DROP;
	}
	src = class_of(it, packet->src_high, packet->src_low);
	if (decide_by_sets(it, src.sets, &verdict))
		return verdict;
	if (first == SCRUB_FIRST_PASSED)
		return decide_by_first(it, dst->profile);
	if (has_rules_for(&it->params->rules, packet)) {
		rule = find_rule(it->ctx, packet, it->side, src.sets, dst->sets);
		if (rule != RULE_NONE && apply_rule(it, rule, dst->profile, &verdict))
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

	it->counter = scrub_parse(it->ctx, packet, it->params->tunnels);
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
		__builtin_memset(packet, 0, sizeof(*packet));
		scrub_parse(it->ctx, packet, 0);
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
	__u32 zero = 0;

	it->ctx = ctx;
	it->bytes = frame_bytes(ctx);
	it->mark = NO_MARK;
	it->generation = *(volatile __u32 *)&control.generation;
	it->side = it->generation & 1;
	it->params = params_of(it->side);
	it->image = image_of(it->side);
	it->scratch = bpf_map_lookup_elem(&scrub_scratch, &zero);
	if (!it->scratch)
		return 0;
	it->packet = &it->scratch->packet;
	__builtin_memset(it->packet, 0, sizeof(*it->packet));
	return it->params && it->image;
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
