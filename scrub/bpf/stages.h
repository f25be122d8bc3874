/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the stages do. A global function is verified once, whatever calls it; a call costs time, so what most packets need
 * is inlined. All read the tables of the side of the generation that the packet began with.
 */
#ifndef SCRUB_STAGES_H
#define SCRUB_STAGES_H

#include "limits.h"
#include "fragments.h"
#include "maps.h"

/* Parses an IPv6 extension header. Returns enum scrub_parsed. */
__noinline int scrub_parse_extension(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	return parse_extension(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
}

/* Parses all extension headers. Returns enum scrub_parsed. */
__noinline int scrub_parse_extensions(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	for (int i = 0; i < EXTENSIONS_MAX && has_extension(packet); i++) {
		int result = scrub_parse_extension(ctx, packet);

		if (result != SCRUB_PARSED)
			return result;
	}
	return has_extension(packet) ? SCRUB_BAD_HEADER : SCRUB_PARSED;
}

/* Looks into a packet that is a tunnel, up to its inner IP header. Returns enum scrub_parsed. */
__noinline int scrub_parse_tunnel(struct xdp_md *ctx, struct scrub_packet *packet, __u32 tunnels)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	if (!is_tunnel(packet, tunnels))
		return SCRUB_PARSED;
	return parse_tunnel(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
}

/* Parses all headers of a packet, and checks their fields; of one of these tunnels, those of the packet inside. */
static __always_inline int parse(struct xdp_md *ctx, struct scrub_packet *packet, __u32 tunnels)
{
	int result;

	result = parse_network(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end, frame_bytes(ctx));
	if (result == SCRUB_PARSED && has_extension(packet))
		result = scrub_parse_extensions(ctx, packet);
	if (result == SCRUB_PARSED && tunnels) {
		result = scrub_parse_tunnel(ctx, packet, tunnels);
		if (result == SCRUB_PARSED && packet->tunnel)
			result = scrub_parse_extensions(ctx, packet);
	}
	if (result == SCRUB_PARSED && !(packet->fragment & SCRUB_LATER_FRAGMENT))
		result = parse_transport(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	return result == SCRUB_PARSED ? check_fields(packet) : result;
}

/* As parse(), for a packet whose tunnel is not looked into. */
__noinline int scrub_parse_outer(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return SCRUB_TRUNCATED;
	__builtin_memset(packet, 0, sizeof(*packet));
	return parse(ctx, packet, 0);
}

#define V6_FOUND 0x10000

/* Returns the class of an IPv6 prefix, and V6_FOUND; 0 if it is not in the table. */
__noinline __u32 scrub_v6_prefix(__u32 side, __u64 high, __u64 low, __u32 length)
{
	struct v6_address address = { .high = high, .low = low };
	struct scrub_params *params = params_of(side);
	struct scrub_v6_prefix *prefix = params ? v6_prefix(side, &params->sets, &address, length) : 0;

	return prefix ? prefix->class | V6_FOUND : 0;
}

/* Returns the class of an IPv6 address whose /24 differs. */
__noinline __u32 scrub_v6_class(__u32 side, __u64 high, __u64 low)
{
	struct scrub_params *params = params_of(side);
	struct scrub_v6_first *first;
	struct scrub_line *line;
	__u64 lengths, longer;
	__u32 found;

	if (!params)
		return 0;
	line = line_at(side, params->sets.v6_first + (high >> 51));
	if (!line)
		return 0;
	first = (void *)&line->entries[high >> 48 & 7];
	longer = buckets_find(side, &params->sets.v6_networks, high >> 40, V6_LENGTH_BITS);
	/* A bit for each length less one; the shift drops the key. */
	lengths = (__u64)first->lengths << 16 | longer << 24;
	for (__u32 at = 0; at < V6_LENGTHS && at < params->sets.v6_length_count; at++) {
		__u32 length = params->sets.v6_lengths[at];
		__u32 bit = (length < V6_MAX_LENGTH ? length : V6_MAX_LENGTH) - 1;

		if (!(lengths >> (bit & 63) & 1))
			continue;
		found = scrub_v6_prefix(side, high, low, length);
		if (found & V6_FOUND)
			return found & ~V6_FOUND;
	}
	return first->class;
}

/* Charges a packet in the table of limits: few find no slot in the front. Returns enum scrub_charge. */
__noinline int scrub_charge_in_table(__u64 key, __u64 now, __u64 cost, __u64 tolerance, int insert)
{
	return charge_in_table(key, now, cost, tolerance, control.limit_mask, insert);
}

/* Charges a packet to its key's slot. Returns enum scrub_charge. */
static __always_inline int charge_key(__u64 key, __u64 now, __u64 cost, __u64 tolerance)
{
	struct front_line *line = front_line(key);
	struct slot *free = 0;
	__u64 tag = 0;
	int result;

	if (!line)
		return SCRUB_NO_SLOT;
#pragma unroll
	for (int slot = 0; slot < FRONT_SLOTS; slot++) {
		__u64 other = *(volatile __u64 *)&line->slots[slot].tag;

		if (other == key)
			return conforms(&line->slots[slot].time, now, cost, tolerance);
		if (*(volatile __u64 *)&line->slots[slot].time <= now) {
			free = &line->slots[slot];
			tag = other;
		}
	}
	if (!free || *(volatile __u64 *)&line->until > now) {
		result = scrub_charge_in_table(key, now, cost, tolerance, !free);
		if (!free || result != SCRUB_NO_SLOT)
			return result;
	}
	/* Of two keys that are inserted at once, the slower one shares the slot once. Pairs with itself on other CPUs. */
	__sync_val_compare_and_swap(&free->tag, tag, key);
	return conforms(&free->time, now, cost, tolerance);
}

/* Charges a packet to a limit. Returns the limit's counter if the packet exceeds it; 0 if not. */
static __always_inline __u32 charge(struct scrub_packet *packet, __u32 side, const struct scrub_params *params,
				    __u32 number, __u32 bytes)
{
	struct scrub_line *line = line_at(side, params->limits + (number >> 1));
	struct scrub_limit *limit;
	__u64 cost, key, now;
	int result;

	if (!line)
		return 0;
	limit = (void *)&line->entries[(number & 1) * 4];
	cost = cost_of(limit, bytes);
	now = now_of(packet) * 16;
	result = charge_key(key_of(limit, packet, limit->by, control.secrets), now, cost, limit->tolerance);
	if (result == SCRUB_NO_SLOT) {
		key = key_of(limit, packet, limit->by ?: SCRUB_BY_SOURCE_NETWORK, control.secrets);
		result = shared_conforms(key, limit->counter, now, cost, limit->tolerance);
	}
	return result == SCRUB_EXCEEDS ? limit->counter : 0;
}

/* Charges a packet to limits, until it exceeds one. Returns that one's counter; 0 if it exceeds none. */
__noinline __u32 scrub_exceeded(struct scrub_packet *packet, __u32 side, __u32 first, __u32 count, __u32 bytes)
{
	struct scrub_params *params = params_of(side);

	if (!packet || !params)
		return 0;
	for (__u32 i = 0; i < LIMITS_MAX && i < count; i++) {
		__u32 counter = charge(packet, side, params, first + i, bytes);

		if (counter)
			return counter;
	}
	return 0;
}

/* Returns the amplification class of a packet of UDP, from 1; 0 for none. */
static __always_inline __u32 amplification_class(struct xdp_md *ctx, const struct scrub_packet *packet,
						 const struct scrub_params *params, __u32 side)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct scrub_amplification *class;
	struct scrub_line *line;
	__u32 number, at;
	__u8 *byte;

	line = line_at(side, params->ports + (packet->sport >> 6));
	number = line ? ((__u8 *)line)[packet->sport & 63] : 0;
	if (!number)
		return 0;
	line = line_at(side, params->classes + ((number - 1) >> 3));
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

static __always_inline struct rule_query query_of(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side,
						  const struct scrub_params *params, struct rule_scratch *scratch)
{
	struct rule_query query = {
		.side = side,
		.packet = packet,
		.fields = &scratch->fields,
		.rests = params->rules.rests,
		.start = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};

	return query;
}

/* Compares the records at the place of a hash. */
__noinline int scrub_rules_at_place(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side, __u64 hash)
{
	struct scrub_params *params = params_of(side);
	struct rule_scratch *scratch = rule_scratch_of();
	struct rule_query query;

	if (!packet || !params || !scratch)
		return 0;
	query = query_of(ctx, packet, side, params, scratch);
	find_at_place(&query, &params->rules, scratch, hash);
	return 0;
}

/* Finds the first rule with a key. Returns true if one of the others may be before it. */
__noinline int scrub_keyed_rule(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side,
				__u64 src_sets, __u64 dst_sets)
{
	struct scrub_params *params = params_of(side);
	struct rule_scratch *scratch = rule_scratch_of();
	__u32 first, count;

	if (!packet || !params || !scratch)
		return 0;
	set_fields(scratch, packet);
	scratch->fields.src_sets = src_sets;
	scratch->fields.dst_sets = dst_sets;
	first = (scratch->fields.version & RULE_V6) * (TUPLES_V6 / RULE_V6);
	count = params->rules.tuple_count[(scratch->fields.version & RULE_V6) / RULE_V6];
	for (__u32 at = 0; at < TUPLES_MAX && at < count; at++) {
		const struct scrub_tuple *tuple = &params->rules.tuples[(first + at) & (2 * TUPLES_V6 - 1)];
		__u64 hash;

		if (tuple->best >= scratch->found >> 32)
			break;
		hash = tuple_hash(&scratch->key, tuple, first + at, params->rules.seed);
		if (may_have_key(&params->filter, &params->rules, hash))
			scrub_rules_at_place(ctx, packet, side, hash);
	}
	return params->rules.awkward_best < scratch->found >> 32;
}

/* Begins with rules without a key. Not called by scrub_keyed_rule(), because a chain of calls has 512 bytes of stack. */
__noinline int scrub_first_candidates(struct scrub_packet *packet, __u32 side)
{
	struct scrub_params *params = params_of(side);
	struct rule_scratch *scratch = rule_scratch_of();

	if (packet && params && scratch)
		scratch->summary = combine_vectors(side, &params->rules, packet, scratch);
	return 0;
}

/* Goes on with rules without a key. Returns true at the end. */
__noinline int scrub_next_candidates(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side)
{
	struct scrub_params *params = params_of(side);
	struct rule_scratch *scratch = rule_scratch_of();
	struct rule_query query;

	if (!packet || !params || !scratch)
		return 1;
	query = query_of(ctx, packet, side, params, scratch);
	return find_candidate(&query, &params->rules, scratch);
}

/* Returns the action of the first record that matches; RULE_NONE if none. */
static __always_inline __u32 find_rule(struct xdp_md *ctx, struct scrub_packet *packet, __u32 side,
				       __u64 src_sets, __u64 dst_sets)
{
	struct rule_scratch *scratch = rule_scratch_of();

	if (!scratch)
		return RULE_NONE;
	if (scrub_keyed_rule(ctx, packet, side, src_sets, dst_sets)) {
		scrub_first_candidates(packet, side);
		for (int i = 0; i < CANDIDATE_CALLS; i++) {
			if (scrub_next_candidates(ctx, packet, side))
				break;
		}
	}
	return scratch->found;
}

/* Remembers the verdict on a first fragment. */
__noinline int scrub_remember_first(struct scrub_packet *packet, int dropped)
{
	if (packet)
		remember_first(packet, dropped, now_of(packet), control.secrets);
	return 0;
}

/* Returns what is known of a later fragment's first one: enum scrub_first. */
__noinline int scrub_follow_first(struct scrub_packet *packet)
{
	return packet ? follow_first(packet, now_of(packet), control.secrets) : SCRUB_FIRST_UNKNOWN;
}

/* Sets the DSCP of a packet. */
__noinline int scrub_mark(struct xdp_md *ctx, struct scrub_packet *packet, __u32 dscp)
{
	if (packet)
		write_dscp(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end, dscp & 63);
	return 0;
}

#endif
