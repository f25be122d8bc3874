// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The scrubber's stage of the resident program.
 *
 *	packet -> parse -> later fragments -> pass sets -> drop sets -> rules -> amplification -> fragments -> TCP -> limits -> default
 *	            `-- the first that decides: drop, answer, or resume with the next stage of the chain
 *
 * src/policy/mod.rs describes the order; src/oracle decides alike. All tables are one policy's image: a new policy is
 * written beside the old one, and control.generation switches.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "chain.h"
#include "scrub.h"
#include "limits.h"
#include "tcp.h"
#include "fragments.h"

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
struct scrub_control control SEC(".data.scrub1");

/* The last decision of scrub_rehearse. */
__u64 rehearsed_counter SEC(".data.rehearse");

/* Frames may span several buffers. */
const volatile __u32 frags SEC(".rodata.frags") = 0;

#define SAMPLE_BYTES 256

/*
 * The stages are global functions: the verifier checks each once, whatever calls it. They look up the parameters and the
 * image by the generation that the packet began with.
 */

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

/* Parses a frame up to its transport header. Returns enum scrub_parsed. */
__noinline int scrub_parse_network(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	return parse_network(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end,
			     frame_bytes(ctx));
}

/* Parses an IPv6 extension header. Returns enum scrub_parsed. */
__noinline int scrub_parse_extension(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	return parse_extension(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
}

/* Parses the transport header, and checks all fields. Returns enum scrub_parsed. */
__noinline int scrub_parse_transport(struct xdp_md *ctx, struct scrub_packet *packet)
{
	enum scrub_parsed result = SCRUB_PARSED;

	if (!packet)
		return SCRUB_TRUNCATED;
	if (!(packet->fragment & SCRUB_LATER_FRAGMENT))
		result = parse_transport(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	return result == SCRUB_PARSED ? check_fields(packet) : result;
}

/* Returns the class of an IPv4 address. */
__noinline __u32 scrub_v4_class(__u32 generation, __u32 address)
{
	struct scrub_params *params = params_of(generation);
	void *image = image_of(generation);

	return params && image ? v4_class(image, &params->sets, address) : 0;
}

/* Returns the class of an IPv6 prefix, and V6_FOUND; 0 if it is not in the table. */
__noinline __u32 scrub_v6_prefix(__u32 generation, __u64 high, __u64 low, __u32 length)
{
	struct scrub_params *params = params_of(generation);
	struct v6_address address = { .high = high, .low = low };
	void *image = image_of(generation);

	return params && image ? v6_prefix(image, &params->sets, &address, length) : 0;
}

/* Returns the class of an IPv6 address. */
__noinline __u32 scrub_v6_class(__u32 generation, __u64 high, __u64 low)
{
	struct scrub_params *params = params_of(generation);
	struct scrub_v6_first first = {};
	__u32 found;

	if (!params || !v6_first(image_of(generation), &params->sets, high, &first))
		return first.class;
	for (__u32 at = 0; at < V6_LENGTHS && at < params->sets.v6_length_count; at++) {
		__u32 bit = params->sets.v6_lengths[at] - 1;

		if (!(first.lengths[bit >> 6 & 1] >> (bit & 63) & 1))
			continue;
		found = scrub_v6_prefix(generation, high, low, bit + 1);
		if (found & V6_FOUND)
			return found & ~V6_FOUND;
	}
	return first.class;
}

/* Returns the time in ns. */
static __always_inline __u64 now_ns(void)
{
	return *(volatile __u64 *)&control.now ?: bpf_ktime_get_coarse_ns();
}

/* Charges a packet to a limit. Returns the limit's counter if the packet exceeds it; 0 if not. */
__noinline __u32 scrub_charge(struct scrub_packet *packet, __u32 generation, __u32 number, __u32 bytes)
{
	struct scrub_params *params = params_of(generation);
	void *image = image_of(generation);
	struct scrub_limit *limit;
	struct scrub_line *line;
	__u64 now;

	if (!packet || !params || !image)
		return 0;
	line = line_at(image, params->limits + (number >> 1));
	if (!line)
		return 0;
	limit = (void *)&line->entries[(number & 1) * 4];
	now = now_ns() * 16;
	if (limit_conforms(limit, packet, bytes, now, params->seed, control.limit_mask))
		return 0;
	return limit->counter;
}

/* Returns the amplification class of a packet, from 1; 0 for none. */
__noinline __u32 scrub_amplification(struct xdp_md *ctx, struct scrub_packet *packet, __u32 generation)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct scrub_params *params = params_of(generation);
	const struct scrub_amplification *class;
	void *image = image_of(generation);
	struct scrub_line *line;
	__u32 number, at;
	__u8 *byte;

	if (!packet || !params || !image || packet->transport != IPPROTO_UDP)
		return 0;
	line = line_at(image, params->ports + (packet->sport >> 6));
	number = line ? ((__u8 *)line)[packet->sport & 63] : 0;
	if (!number)
		return 0;
	line = line_at(image, params->classes + ((number - 1) >> 3));
	if (!line)
		return 0;
	class = (void *)&line->entries[(number - 1) & 7];
	if (packet->payload_length < class->min_payload)
		return 0;
	if (!class->has_byte)
		return number;
	if (packet->payload_length <= class->offset)
		return 0;
	at = packet->payload + class->offset;
	byte = start + (at & PAYLOAD_MASK);
	if (at > PAYLOAD_MASK || (void *)(byte + 1) > end)
		return 0;
	return (*byte & class->mask) == class->value ? number : 0;
}

static __always_inline struct rule_query query_of(struct xdp_md *ctx, struct scrub_packet *packet,
						  void *image, struct rule_scratch *scratch)
{
	struct rule_query query = {
		.image = image,
		.packet = packet,
		.fields = &scratch->fields,
		.start = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};

	return query;
}

/* Finds the first rule with a key. Returns true if one of the others may be before it. */
__noinline int scrub_keyed_rule(struct xdp_md *ctx, struct scrub_packet *packet, __u32 generation,
				__u64 src_sets, __u64 dst_sets)
{
	struct scrub_params *params = params_of(generation);
	struct rule_scratch *scratch = scratch_of();
	void *image = image_of(generation);
	struct rule_query query;

	if (!packet || !params || !image || !scratch)
		return 0;
	set_fields(scratch, packet);
	scratch->fields.src_sets = src_sets;
	scratch->fields.dst_sets = dst_sets;
	query = query_of(ctx, packet, image, scratch);
	find_keyed(&query, &params->rules, scratch);
	if (params->rules.awkward_best >= scratch->found >> 32)
		return 0;
	scratch->summary = combine_vectors(image, &params->rules, packet, scratch);
	return 1;
}

/* Goes on with rules without a key. Returns true at the end. */
__noinline int scrub_next_candidates(struct xdp_md *ctx, struct scrub_packet *packet, __u32 generation)
{
	struct scrub_params *params = params_of(generation);
	struct rule_scratch *scratch = scratch_of();
	void *image = image_of(generation);
	struct rule_query query;

	if (!packet || !params || !image || !scratch)
		return 1;
	query = query_of(ctx, packet, image, scratch);
	return find_candidate(&query, &params->rules, scratch);
}

/* Returns the number of the first rule that matches; RULE_NONE if none. */
__noinline __u32 scrub_rule(struct xdp_md *ctx, struct scrub_packet *packet, __u32 generation,
			    __u64 src_sets, __u64 dst_sets)
{
	struct rule_scratch *scratch = scratch_of();

	if (!packet || !scratch)
		return RULE_NONE;
	if (scrub_keyed_rule(ctx, packet, generation, src_sets, dst_sets)) {
		for (int i = 0; i < CANDIDATE_CALLS; i++) {
			if (scrub_next_candidates(ctx, packet, generation))
				break;
		}
	}
	return scratch->found;
}

/* Remembers the verdict on a first fragment. */
__noinline int scrub_remember_first(struct scrub_packet *packet, int dropped)
{
	if (packet)
		remember_first(packet, dropped, now_ns(), control.table_key);
	return 0;
}

/* Returns what is known of a later fragment's first one: enum scrub_first. */
__noinline int scrub_follow_first(struct scrub_packet *packet)
{
	return packet ? follow_first(packet, now_ns(), control.table_key) : SCRUB_FIRST_UNKNOWN;
}

/* Returns true if a packet's source is verified. */
__noinline int scrub_is_verified(struct scrub_packet *packet)
{
	return packet && living_slot(&scrub_sources, source_key(packet, control.table_key), control.limit_mask,
				     now_ns());
}

/* Marks a packet's source as verified for some time. */
__noinline int scrub_verify(struct scrub_packet *packet, __u64 time, int weak)
{
	__u64 now = now_ns();

	if (packet)
		insert_slot(&scrub_sources, source_key(packet, control.table_key), control.limit_mask, now,
			    ((now + time) & ~1ULL) - !!weak);
	return 0;
}

/* Returns true if a packet's flow is known, which it then stays. */
__noinline int scrub_knows_flow(struct scrub_packet *packet)
{
	__u64 now = now_ns();
	struct limit_slot *slot;

	if (!packet)
		return 0;
	slot = living_slot(&scrub_flows, flow_key(packet, SALT_FLOW, control.table_key), control.flow_mask, now);
	if (!slot)
		return 0;
	slot->time = (now + FLOW_IDLE_TIME) & ~1ULL;
	return 1;
}

/* Learns a packet's flow. */
__noinline int scrub_learn_flow(struct scrub_packet *packet)
{
	__u64 now = now_ns();

	if (packet)
		insert_slot(&scrub_flows, flow_key(packet, SALT_FLOW, control.table_key), control.flow_mask, now,
			    ((now + FLOW_IDLE_TIME) & ~1ULL) - 1);
	return 0;
}

static __always_inline struct scrub_tcp *tcp_of(__u32 generation, __u32 profile)
{
	void *image = image_of(generation);
	struct scrub_line *line = image ? line_at(image, profile) : 0;

	return line ? &((struct scrub_profile *)line)->tcp : 0;
}

/* Counts a packet to its destination, as enum scrub_meter_kind. Returns the destination's level. */
__noinline __u32 scrub_measure(struct scrub_packet *packet, __u32 generation, __u32 profile, __u32 kind)
{
	struct scrub_tcp *tcp = tcp_of(generation, profile);
	struct scrub_meter *meter;
	struct scrub_line *line;
	__u64 key;
	__u32 at;

	if (!packet || !tcp)
		return 0;
	key = limit_key(packet->dst_high ^ packet->version, packet->dst_low, SALT_METER, control.table_key);
	at = (key >> 32 & (METERS - 1)) / METERS_PER_LINE + (kind & 1) * (METERS / METERS_PER_LINE);
	line = bpf_map_lookup_elem(&scrub_meters, &at);
	if (!line)
		return 0;
	meter = (void *)&line->entries[(key >> 32 & (METERS_PER_LINE - 1)) * 2];
	return measure(meter, tcp, kind == SCRUB_METER_SYNS ? SCRUB_LEVEL_ANSWER : SCRUB_LEVEL_RETRANSMIT,
		       now_ns() / SECOND);
}

/* Returns true for the retransmission of a SYN. */
__noinline int scrub_is_retransmission(struct scrub_packet *packet)
{
	__u64 key, *syn;
	__u32 at;

	if (!packet)
		return 0;
	key = flow_key(packet, SALT_SYN ^ packet->seq, control.table_key);
	at = key >> 8 & (SYNS - 1);
	syn = bpf_map_lookup_elem(&scrub_syns, &at);
	return syn && is_retransmission(syn, key >> 32 | 1, now_ns());
}

/* Returns the hash of a packet's addresses and ports in an epoch. */
__noinline __u64 scrub_cookie(struct scrub_packet *packet, __u64 epoch)
{
	return packet ? cookie_of(packet, epoch, control.cookie_key[0], control.cookie_key[1]) : 0;
}

/* Returns true if a reset answers a challenge of this epoch or the last one. */
__noinline int scrub_answers_challenge(struct scrub_packet *packet)
{
	__u64 epoch = now_ns() >> EPOCH_BITS;

	if (!packet)
		return 0;
	return !((packet->seq ^ (__u32)scrub_cookie(packet, epoch)) & ~COOKIE_FLIP) ||
	       !((packet->seq ^ (__u32)scrub_cookie(packet, epoch - 1)) & ~COOKIE_FLIP);
}

/* Decides on a SYN. Returns the cause if it does not pass; 0 if it does. */
static __always_inline __u32 decide_syn(struct scrub_packet *packet, const struct scrub_tcp *tcp,
					__u32 generation, __u32 profile)
{
	__u32 level = SCRUB_LEVEL_ANSWER;

	if (tcp->challenge == SCRUB_CHALLENGE_OFF || scrub_is_verified(packet))
		return 0;
	if (tcp->challenge == SCRUB_CHALLENGE_AUTO)
		level = scrub_measure(packet, generation, profile, SCRUB_METER_SYNS);
	if (level == SCRUB_LEVEL_ANSWER)
		return SCRUB_COUNT_CHALLENGE;
	if (level == SCRUB_LEVEL_RETRANSMIT) {
		if (!scrub_is_retransmission(packet))
			return SCRUB_COUNT_FIRST_SYN;
		scrub_verify(packet, tcp->verified_for < WEAK_TIME ? tcp->verified_for : WEAK_TIME, 1);
	}
	return 0;
}

/* Decides on a TCP packet. Returns the cause if it does not go on; 0 if it does. */
__noinline __u32 scrub_decide_tcp(struct scrub_packet *packet, __u32 generation, __u32 profile)
{
	struct scrub_tcp *tcp = tcp_of(generation, profile);
	__u32 cause;

	if (!packet || !tcp)
		return 0;
	if ((packet->tcp_flags & SYN_ACK) == TCP_SYN) {
		cause = decide_syn(packet, tcp, generation, profile);
		if (!cause && tcp->state && !scrub_knows_flow(packet))
			scrub_learn_flow(packet);
		return cause;
	}
	if (packet->tcp_flags & TCP_RST && tcp->challenge != SCRUB_CHALLENGE_OFF &&
	    scrub_answers_challenge(packet)) {
		scrub_verify(packet, tcp->verified_for, 0);
		return SCRUB_COUNT_CHALLENGE_ANSWERED;
	}
	if (!tcp->state || scrub_knows_flow(packet))
		return 0;
	if (scrub_measure(packet, generation, profile, SCRUB_METER_UNKNOWN) &&
	    now_ns() >= *(volatile __u64 *)&control.learn_until)
		return SCRUB_COUNT_UNKNOWN_FLOW;
	if (packet->tcp_flags & TCP_ACK)
		scrub_learn_flow(packet);
	return 0;
}

/* Turns a SYN's frame into the answer. Returns XDP_DROP if it cannot be sent. */
__noinline int scrub_answer(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return XDP_DROP;
	return write_answer(ctx, packet, frame_bytes(ctx), scrub_cookie(packet, now_ns() >> EPOCH_BITS)) ? XDP_TX :
													 XDP_DROP;
}

/* Sets the DSCP of a packet. */
__noinline int scrub_mark(struct xdp_md *ctx, struct scrub_packet *packet, __u32 dscp)
{
	if (packet)
		write_dscp(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end, dscp & 63);
	return 0;
}

/* A packet's way through the stages. */
struct way {
	struct xdp_md *ctx;
	struct scrub_params *params;
	void *image;
	struct scrub_packet *packet;
	__u32 generation;
	__u32 bytes;		/* of the frame */
	__u32 counter;		/* the cause */
	__u32 sample;		/* by a rule: 1 in this number */
	__u16 rule;		/* that rule's counter */
	__u8 mark;
};

/* Charges a packet to limits, until it exceeds one. Returns true if it does. */
static __always_inline int exceeds(struct way *way, struct scrub_limit_list list)
{
	for (__u32 i = 0; i < LIMITS_MAX && i < list.count; i++) {
		__u32 counter = scrub_charge(way->packet, way->generation, list.first + i, way->bytes);

		if (counter) {
			way->counter = counter;
			return 1;
		}
	}
	return 0;
}

/* Drops by a packet's amplification class. Returns XDP_PASS if it goes on. */
static __always_inline int decide_by_class(struct way *way, __u32 profile)
{
	__u32 class = scrub_amplification(way->ctx, way->packet, way->generation);
	struct scrub_limit_list list;
	struct scrub_line *line;

	if (!class)
		return XDP_PASS;
	line = line_at(way->image, profile + 1 + (((class - 1) >> 4) & 1));
	if (!line)
		return XDP_PASS;
	list = ((struct scrub_limit_list *)line)[(class - 1) & 15];
	if (!list.count && list.first == CLASS_DROP) {
		way->counter = SCRUB_COUNT_CLASSES + class - 1;
		return XDP_DROP;
	}
	return exceeds(way, list) ? XDP_DROP : XDP_PASS;
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
static __always_inline int decide_by_profile(struct way *way, __u32 number)
{
	__u32 first = way->params->profiles + number * PROFILE_LINES;
	struct scrub_profile *profile;

	if (decide_by_class(way, first) == XDP_DROP)
		return XDP_DROP;
	profile = (void *)line_at(way->image, first);
	if (!profile)
		return XDP_PASS;
	if (way->packet->fragment & dropped_fragments(profile)) {
		way->counter = SCRUB_COUNT_FRAGMENT;
		return XDP_DROP;
	}
	if (way->packet->transport == IPPROTO_TCP && (profile->tcp.challenge || profile->tcp.state)) {
		__u32 cause = scrub_decide_tcp(way->packet, way->generation, first);

		if (cause) {
			way->counter = cause;
			return cause == SCRUB_COUNT_CHALLENGE ? XDP_TX : XDP_DROP;
		}
	}
	if (exceeds(way, profile->limits))
		return XDP_DROP;
	way->counter = profile->drop ? SCRUB_COUNT_DEFAULT_DROP : SCRUB_COUNT_DEFAULT_PASS;
	return profile->drop ? XDP_DROP : XDP_PASS;
}

/* Applies the action of the rule that matched. Returns true if it decides. */
static __always_inline int apply_rule(struct way *way, __u32 number, int *verdict)
{
	struct scrub_line *line = line_at(way->image, way->params->actions + (number >> 2));
	struct scrub_action *action;

	if (!line)
		return 0;
	action = (void *)&line->entries[(number & 3) * 2];
	way->rule = action->counter;
	way->sample = action->sample;
	way->mark = action->mark;
	if (action->kind == SCRUB_RULE_CONTINUE) {
		count_at(way->generation, action->counter, way->bytes);
		*verdict = XDP_DROP;
		return exceeds(way, action->limits);
	}
	way->counter = action->counter;
	*verdict = action->kind == SCRUB_RULE_DROP ? XDP_DROP : XDP_PASS;
	return 1;
}

static __always_inline struct scrub_class class_of(const struct way *way, __u64 high, __u64 low)
{
	__u32 class = way->packet->version == 4 ? scrub_v4_class(way->generation, high >> 32) :
						 scrub_v6_class(way->generation, high, low);

	return class_at(way->image, &way->params->sets, class);
}

/* Decides by the source's sets. Returns true if one decides. */
static __always_inline int decide_by_sets(struct way *way, __u64 sets, int *verdict)
{
	__u64 pass = sets & way->params->pass_sets, drop = sets & way->params->drop_sets;

	if (!(pass | drop))
		return 0;
	*verdict = pass ? XDP_PASS : XDP_DROP;
	way->counter = SCRUB_COUNT_SETS + lowest_bit(pass ?: drop);
	return 1;
}

/* Returns true if an extension header of a packet is still to be parsed. */
static __always_inline int has_extension(const struct scrub_packet *packet)
{
	return packet->version == 6 && is_extension(packet->protocol) &&
	       !(packet->fragment & SCRUB_LATER_FRAGMENT);
}

/* Parses all headers of a packet. */
static __always_inline enum scrub_parsed parse_all(struct xdp_md *ctx, struct scrub_packet *packet)
{
	enum scrub_parsed result = scrub_parse_network(ctx, packet);

	for (int i = 0; i < EXTENSIONS_MAX && result == SCRUB_PARSED && has_extension(packet); i++)
		result = scrub_parse_extension(ctx, packet);
	if (result != SCRUB_PARSED)
		return result;
	return has_extension(packet) ? SCRUB_BAD_HEADER : scrub_parse_transport(ctx, packet);
}

/* Decides on a later fragment whose first one passed: the limits hold for it, too. */
static __always_inline int decide_by_first(struct way *way, __u32 profile_number)
{
	struct scrub_profile *profile;

	profile = (void *)line_at(way->image, way->params->profiles + profile_number * PROFILE_LINES);
	if (profile && exceeds(way, profile->limits))
		return XDP_DROP;
	way->counter = SCRUB_COUNT_FIRST_PASSED;
	return XDP_PASS;
}

/* Decides on a packet to a protected network. */
static __always_inline int decide_protected(struct way *way, const struct scrub_class *dst)
{
	struct scrub_packet *packet = way->packet;
	int verdict = XDP_PASS, first = SCRUB_FIRST_UNKNOWN;
	struct scrub_class src;
	__u32 rule;

	if (packet->fragment & SCRUB_LATER_FRAGMENT)
		first = scrub_follow_first(packet);
	if (first == SCRUB_FIRST_DROPPED || first == SCRUB_FIRST_CONTRADICTED) {
		way->counter = first == SCRUB_FIRST_DROPPED ? SCRUB_COUNT_FIRST_DROPPED :
							      SCRUB_COUNT_CONTRADICTED;
		return XDP_DROP;
	}
	src = class_of(way, packet->src_high, packet->src_low);
	if (decide_by_sets(way, src.sets, &verdict))
		return verdict;
	if (first == SCRUB_FIRST_PASSED)
		return decide_by_first(way, dst->profile);
	if (way->params->rules.used) {
		rule = scrub_rule(way->ctx, packet, way->generation, src.sets, dst->sets);
		if (rule != RULE_NONE && apply_rule(way, rule, &verdict))
			return verdict;
	}
	return decide_by_profile(way, dst->profile);
}

/* Decides on a packet. Returns XDP_DROP, XDP_TX or XDP_PASS, and sets the cause. */
static __always_inline int decide(struct way *way)
{
	struct scrub_packet *packet = way->packet;
	struct scrub_class dst;
	int verdict;

	way->counter = parse_all(way->ctx, packet);
	if (way->counter == SCRUB_NOT_IP)
		return XDP_PASS;
	if (way->counter != SCRUB_PARSED)
		return XDP_DROP;
	way->counter = SCRUB_COUNT_NEIGHBOR;
	if (is_neighbor_discovery(packet))
		return XDP_PASS;
	way->counter = SCRUB_COUNT_UNPROTECTED;
	dst = class_of(way, packet->dst_high, packet->dst_low);
	if (!dst.network)
		return XDP_PASS;
	verdict = decide_protected(way, &dst);
	if (packet->fragment & SCRUB_FIRST_FRAGMENT)
		scrub_remember_first(packet, verdict != XDP_PASS);
	return verdict;
}

/* Samples a frame, if its rule or verdict asks for it. */
static __always_inline void sample(const struct way *way, int verdict)
{
	__u32 rate = way->sample ?: verdict != XDP_PASS ? control.sample_dropped : control.sample_passed;
	struct scrub_sample head = {
		.frame_bytes = way->bytes,
		.counter = way->counter,
		.rule = way->rule,
		.dropped = verdict != XDP_PASS,
	};
	__u64 bytes = way->bytes < SAMPLE_BYTES ? way->bytes : SAMPLE_BYTES;

	if (!rate || bpf_get_prandom_u32() % rate)
		return;
	head.time = bpf_ktime_get_ns();
	bpf_perf_event_output(way->ctx, &scrub_samples, BPF_F_CURRENT_CPU | bytes << 32, &head, sizeof(head));
}

/* Begins a packet's way with the present policy. Returns false if there is none. */
static __always_inline int begin(struct way *way, struct xdp_md *ctx)
{
	__u32 zero = 0;

	way->ctx = ctx;
	way->bytes = frame_bytes(ctx);
	way->mark = NO_MARK;
	way->generation = *(volatile __u32 *)&control.generation & 1;
	way->params = params_of(way->generation);
	way->image = image_of(way->generation);
	way->packet = bpf_map_lookup_elem(&scrub_packet, &zero);
	if (!way->packet)
		return 0;
	__builtin_memset(way->packet, 0, sizeof(*way->packet));
	return way->params && way->image;
}

/* Changes a packet as its verdict and rule ask. Returns what happens to it. */
static __always_inline int act(const struct way *way, int verdict)
{
	if (verdict == XDP_TX)
		return scrub_answer(way->ctx, way->packet);
	if (verdict == XDP_PASS && way->mark != NO_MARK)
		scrub_mark(way->ctx, way->packet, way->mark);
	return verdict;
}

SEC("xdp")
int scrub_stage(struct xdp_md *ctx)
{
	struct sluice_tally *tally = tally_of(SLUICE_SCRUB);
	struct way way = {};
	int verdict;

	if (!control.resident && !is_alive(SLUICE_SCRUB)) {
		if (control.fail_closed)
			return XDP_DROP;
		return sluice_resume(ctx);
	}
	if (!begin(&way, ctx))
		return sluice_resume(ctx);
	verdict = decide(&way);
	count_at(way.generation, way.counter, way.bytes);
	sample(&way, verdict);
	if (control.monitor)
		verdict = XDP_PASS;
	else
		verdict = act(&way, verdict);
	if (tally) {
		tally->packets++;
		tally->bytes += way.bytes;
		if (verdict != XDP_PASS) {
			tally->dropped++;
			tally->dropped_bytes += way.bytes;
		}
	}
	return verdict == XDP_PASS ? sluice_resume(ctx) : verdict;
}

/* Decides alone, by BPF_PROG_RUN. */
SEC("xdp")
int scrub_rehearse(struct xdp_md *ctx)
{
	struct way way = {};
	int verdict;

	if (!begin(&way, ctx))
		return XDP_ABORTED;
	verdict = decide(&way);
	count_at(way.generation, way.counter, way.bytes);
	rehearsed_counter = way.counter;
	return act(&way, verdict);
}

char _license[] SEC("license") = "Dual BSD/GPL";
