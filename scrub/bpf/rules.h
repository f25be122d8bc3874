/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The first rule that a packet matches: src/rules describes and fills the tables.
 *
 *	packet -> its key in each tuple -> chain of records \
 *	       -> vectors of awkward records -> candidates  -> the record with the lowest order
 */
#ifndef SCRUB_RULES_H
#define SCRUB_RULES_H

#include "buckets.h"
#include "packet.h"
#include "record.h"
#include "sets.h"

/* Tuples of a version of IP. */
#define TUPLES_MAX 24
/* Where those of IPv6 begin. */
#define TUPLES_V6 32
/* Records at one place. */
#define CHAIN_MAX 64
/* Candidates of the vectors that one call compares, and such calls: all 1,024. */
#define CANDIDATES_MAX 64
#define CANDIDATE_CALLS 16
/* Words of a vector: 1,024 awkward records. */
#define VECTOR_WORDS 16
#define PROTOCOL_WORDS 4
#define RULE_NONE 0xffffffff
/* The result without a matching rule; else order << 32 | the record's action. Its lower half is RULE_NONE. */
#define NO_RULE (~0ULL)

/* Which bits of a packet are a key; src/rules/tuple.rs. */
struct scrub_tuple {
	__u64 fields;	/* protocol << 32 | sport << 16 | dport */
	__u64 words[4];	/* the addresses: see `struct rule_key` */
	__u32 best;	/* the lowest order of its records */
	__u32 reserved;
};

/* The fields of awkward records that have vectors. */
enum scrub_vector {
	SCRUB_VECTOR_PROTOCOL,	/* and the version */
	SCRUB_VECTOR_SPORT,
	SCRUB_VECTOR_DPORT,
	SCRUB_VECTOR_LENGTH,
	SCRUB_VECTOR_SRC,	/* the upper 16 bits */
	SCRUB_VECTOR_DST,
	SCRUB_VECTORS,
};

struct scrub_vector_field {
	__u32 used;	/* 0 if no record has a condition on the field */
	__u32 classes;	/* u16 of each value */
	__u32 vectors;	/* one of each class */
};

struct scrub_rule_params {
	__u64 seed;
	/* IPv4, IPv6: a bit for each protocol whose packets a record may match; other packets need no look-up. */
	__u64 protocols[2][PROTOCOL_WORDS];
	__u32 record_mask;	/* places of records less one */
	__u32 reserved;
	__u32 records, rests;	/* first lines of tables */
	__u32 filter_mask;	/* words that are used less one */
	__u32 awkward;		/* the first awkward record */
	__u32 tuple_count[2];	/* IPv4, IPv6 */
	__u32 awkward_best;	/* the lowest order of them; RULE_NONE without */
	__u32 vector_lines;	/* of one vector: 1 or 2 */
	struct scrub_vector_field vectors[SCRUB_VECTORS];
	struct scrub_tuple tuples[2 * TUPLES_V6];
};

/* A packet's bits, from which tuples take theirs. */
struct rule_key {
	__u64 fields;
	__u64 words[4];	/* IPv4: src << 32 | dst; IPv6: src_high, src_low, dst_high, dst_low */
};

/* Returns false if no record matches packets of this one's version and protocol. */
static __always_inline int has_rules_for(const struct scrub_rule_params *params, const struct scrub_packet *packet)
{
	const __u64 *protocols = params->protocols[packet->version == 6];

	return protocols[packet->protocol >> 6] >> (packet->protocol & 63) & 1;
}

/* Returns the hash of a key in a tuple. As `Tuple::hash` in src/rules/tuple.rs. */
static __always_inline __u64 tuple_hash(const struct rule_key *key, const struct scrub_tuple *tuple,
					__u32 number, __u64 seed)
{
	__u64 fields = (key->fields & tuple->fields) | (__u64)number << 40;
	__u64 mixed = ((key->words[0] & tuple->words[0]) ^ seed) * 0x9e3779b97f4a7c15ULL;

	mixed = (mixed ^ mixed >> 32 ^ fields) * (seed | 1);
	if (number >= TUPLES_V6) {
		mixed = (mixed ^ mixed >> 29 ^ (key->words[1] & tuple->words[1])) *
			0xd6e8feb86659fd93ULL;
		mixed = (mixed ^ mixed >> 31 ^ (key->words[2] & tuple->words[2])) * (seed | 1);
		mixed = (mixed ^ mixed >> 30 ^ (key->words[3] & tuple->words[3]));
	}
	mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93ULL;
	return mixed ^ mixed >> 32;
}

#define FILTER_WORDS (1 << 15)

/* Two bits of a word for each key. */
struct scrub_rule_filter {
	__u64 words[FILTER_WORDS];
};

/* Returns false if no record has a key of this hash. */
static __always_inline int may_have_key(const struct scrub_rule_filter *filter, const struct scrub_rule_params *params,
					__u64 hash)
{
	__u64 word = filter->words[hash >> 32 & params->filter_mask & (FILTER_WORDS - 1)];

	return word >> (hash >> 3 & 63) & word >> (hash >> 9 & 63) & 1;
}

/* Returns a line of the vector of a field's value. */
static __always_inline struct scrub_line *vector_line(__u32 side,
						      const struct scrub_rule_params *params,
						      __u32 field, __u32 value, __u32 half)
{
	const struct scrub_vector_field *vectors = &params->vectors[field];
	struct scrub_line *line = line_at(side, vectors->classes + (value >> 5));
	__u32 class = line ? ((__u16 *)line)[value & 31] : 0;

	return line_at(side, vectors->vectors + class * params->vector_lines + half);
}

/* Returns the number of the lowest set bit. */
static __always_inline __u32 lowest_bit(__u64 bits)
{
	static const __u8 numbers[64] = {
		0, 1, 2, 53, 3, 7, 54, 27, 4, 38, 41, 8, 34, 55, 48, 28,
		62, 5, 39, 46, 44, 42, 22, 9, 24, 35, 59, 56, 49, 18, 29, 11,
		63, 52, 6, 26, 37, 40, 33, 47, 61, 45, 43, 21, 23, 58, 17, 10,
		51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12,
	};

	return numbers[(bits & -bits) * 0x022fdd63cc95386dULL >> 58];
}

/*
 * A CPU's memory during a look-up. It spares the stack, and the verifier does not follow its values: loops that keep
 * their state here have one state for it.
 */
struct rule_scratch {
	struct rule_key key;
	struct rule_fields fields;
	__u64 words[VECTOR_WORDS]; /* the vectors, combined */
	__u32 summary;		/* words that have bits */
	__u32 reserved;
	__u64 found;		/* order << 32 | action */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rule_scratch);
} rule_scratch SEC(".maps");

/* Combines the vectors of a packet's values. Returns the mask of words that have bits. */
static __always_inline __u32 combine_vectors(__u32 side, const struct scrub_rule_params *params,
					     const struct scrub_packet *packet, struct rule_scratch *scratch)
{
	__u32 values[SCRUB_VECTORS] = {
		packet->protocol | (scratch->fields.version & RULE_V6) << 7,
		packet->sport, packet->dport, scratch->fields.length,
		packet->src_high >> 48, packet->dst_high >> 48,
	};
	__u32 summary = 0;

	for (__u32 half = 0; half < 2 && half < params->vector_lines; half++) {
		__u64 *words = &scratch->words[half * LINE_ENTRIES];
		struct scrub_line *lines[SCRUB_VECTORS];

#pragma unroll
		for (int field = 0; field < SCRUB_VECTORS; field++) {
			/* Twice the same line is as good as one of ones. */
			lines[field] = field && !params->vectors[field].used ?
					       lines[0] :
					       vector_line(side, params, field, values[field], half);
			if (!lines[field])
				return 0;
		}
#pragma unroll
		for (int at = 0; at < LINE_ENTRIES; at++) {
			__u64 word = lines[0]->entries[at] & lines[1]->entries[at] &
				     lines[2]->entries[at] & lines[3]->entries[at] &
				     lines[4]->entries[at] & lines[5]->entries[at];
			__u64 sign = word | -word;

			words[at] = word;
			/* Without a branch for each bit: hidden, as clang makes branches of the sign. */
			asm volatile("" : "+r"(sign));
			summary |= sign >> 63 << (half * LINE_ENTRIES + at);
		}
	}
	return summary;
}

/*
 * Compares the next candidates of the vectors, and replaces the result by the first one that is better. Returns false if
 * there may be more.
 */
static __always_inline int find_candidate(const struct rule_query *query,
					  const struct scrub_rule_params *params,
					  struct rule_scratch *scratch)
{
	for (int at = 0; at < CANDIDATES_MAX; at++) {
		__u32 summary = scratch->summary;
		__u32 word = lowest_bit(summary) & (VECTOR_WORDS - 1);
		__u64 bits = scratch->words[word];
		struct scrub_rule *rule;
		__u32 record;

		if (!summary)
			return 1;
		record = params->awkward + word * 64 + lowest_bit(bits);
		bits &= bits - 1;
		scratch->words[word] = bits;
		if (!bits)
			scratch->summary = summary & (summary - 1);
		rule = (void *)line_at(query->side, record);
		if (!rule || rule->order >= scratch->found >> 32)
			return 1;
		if (scrub_rule_matches(rule, query->packet, query->fields) && rest_matches(query, rule)) {
			scratch->found = (__u64)rule->order << 32 | rule->action;
			return 1;
		}
	}
	return 0;
}

static __always_inline void set_fields(struct rule_scratch *scratch, const struct scrub_packet *packet)
{
	struct rule_key *key = &scratch->key;
	int v6 = packet->version == 6;

	scratch->fields.length = packet->length;
	scratch->fields.version = v6 ? RULE_V6 : RULE_V4;
	scratch->found = NO_RULE;
	key->fields = (__u64)packet->protocol << 32 | (__u32)packet->sport << 16 | packet->dport;
	key->words[0] = v6 ? packet->src_high : packet->src_high | packet->dst_high >> 32;
	key->words[1] = packet->src_low;
	key->words[2] = packet->dst_high;
	key->words[3] = packet->dst_low;
}

static __always_inline struct rule_scratch *rule_scratch_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&rule_scratch, &zero);
}

/*
 * Compares the records at the place of a hash, the lowest order first, and replaces the result by the first one that is
 * better. A record of another key compares all its conditions, too, so it only matches what it should.
 */
static __always_inline void find_at_place(const struct rule_query *query, const struct scrub_rule_params *params,
					  struct rule_scratch *scratch, __u64 hash)
{
	__u32 record = (__u32)(hash >> 15) & params->record_mask;

	for (int at = 0; at < CHAIN_MAX; at++) {
		struct scrub_rule *rule = (void *)line_at(query->side, params->records + record);

		if (!rule || rule->order >= scratch->found >> 32)
			return;
		if (rule_matches(rule, query->packet, query->fields) && rest_matches(query, rule)) {
			scratch->found = (__u64)rule->order << 32 | rule->action;
			return;
		}
		record = rule->next;
		if (!record)
			return;
	}
}

#endif
