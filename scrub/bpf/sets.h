/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The look-up of an address in all sets: src/sets describes and fills the tables. */
#ifndef SCRUB_SETS_H
#define SCRUB_SETS_H

#include "buckets.h"

#define V4_BLOCK_LENGTH 22

/*
 * The kind of a /22 of IPv4: most have one class beside that of the whole space, and a list has few kinds.
 *
 *	reserved: 1 | class: 15 | reserved: 8 | has longer prefixes: 4 | has the class: 4
 *
 * Fields of 4 bits have a bit for each /24. One without `has the class` has v4_root_class.
 */
#define V4_CLASS_SHIFT 16
#define V4_LONGER_SHIFT 4

/* A /24 in v4_mixed: its class and this flag. */
#define V4_HAS_LONGER 0x8000
#define V4_MIXED_BITS 32

/*
 * What v4_longer has of a /24: a bit for each length less 24, or its only longer prefix.
 *
 *	ONE | class: 15 | length less 24: 4 | last byte: 8
 */
#define V4_LONGER_BITS 28
#define V4_ONE (1 << 27)
#define V6_VALUE_BITS 24
#define V6_LENGTH_BITS 40
#define V6_MAX_LENGTH 64
#define V6_NETWORK_LENGTH 24
#define V6_LENGTHS 112

/* A /16 of IPv6, eight in a line. */
struct scrub_v6_first {
	__u32 lengths;		/* of prefixes in it, from 17 to 24: a bit each, of a length less 17 */
	__u16 class;		/* of prefixes up to 16 bits */
	__u16 reserved;
};

/* Two in a line. */
struct scrub_v6_prefix {
	__u64 high, low;	/* host order */
	__u16 class;
	__u8 length;
	__u8 reserved[13];
};

/* The memberships of an address, four in a line. */
struct scrub_class {
	__u64 sets;
	__u16 network;		/* the protected network, from 1; 0 for none */
	__u16 profile;		/* its profile */
	__u32 reserved;
};

#define BITMAPS 2

struct scrub_set_params {
	/* The first lines of tables. */
	__u32 v4_bitmaps[BITMAPS];
	__u32 v6_bitmaps[BITMAPS];
	__u32 v4_ranks;		/* for each word of the second bitmap, how many bits are set before */
	__u32 v4_blocks;	/* a byte for each /22 whose bit is set: its kind; 0 for others, which are in v4_mixed */
	__u32 v4_kinds;		/* a word for each kind */
	__u32 v4_mixed;		/* 16 bits for each /24 of a /22, from the lowest: class, V4_HAS_LONGER */
	__u32 v4_root_class;
	__u32 v6_first;
	__u32 v6_prefixes;
	__u32 classes;
	__u32 v6_length_count;
	__u32 reserved;
	struct scrub_class v4_root, v6_root; /* of all addresses that are not in the bitmaps */
	struct scrub_buckets v4_mixed_index; /* from /22s to v4_mixed */
	struct scrub_buckets v4_longer; /* from /24s to lengths or the only prefix, and from prefixes to classes */
	struct scrub_buckets v6_networks; /* from /24s to lengths: a bit each, from 25 to 64, the last one for longer ones, too */
	struct scrub_buckets v6_index;
	__u64 v6_seed;
	__u8 v6_lengths[V6_LENGTHS]; /* of all prefixes longer than 16, from the longest */
};

static __always_inline int has_bit(__u32 side, __u32 bitmap, __u32 at)
{
	struct scrub_line *line = line_at(side, bitmap + (at >> 9));

	return line && line->entries[at >> 6 & (LINE_ENTRIES - 1)] >> (at & 63) & 1;
}

/*
 * Returns false if an address has the class of the whole space: src/sets/bitmaps.rs. `high` is its upper half, and `length`
 * that of networks in the second bitmap.
 */
static __always_inline int differs(__u32 side, const __u32 *bitmaps, __u64 high, __u32 length)
{
	return has_bit(side, bitmaps[0], high >> 48) && has_bit(side, bitmaps[1], high >> (64 - length));
}

/* Returns the number of bits that are set. */
static __always_inline __u32 count_bits(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	return ((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

/* Returns the class of a /24, and V4_HAS_LONGER. Its /22 differs. */
static __always_inline __u32 v4_network(__u32 side, const struct scrub_set_params *params, __u32 network)
{
	__u32 number = network >> 2, at = network & 3, place, kind, class;
	struct scrub_line *line, *ranks;
	__u64 before;

	line = line_at(side, params->v4_bitmaps[1] + (number >> 9));
	ranks = line_at(side, params->v4_ranks + (number >> 10));
	if (!line || !ranks)
		return 0;
	before = line->entries[number >> 6 & (LINE_ENTRIES - 1)] & ((1ULL << (number & 63)) - 1);
	place = ((__u32 *)ranks)[number >> 6 & 15] + count_bits(before);
	line = line_at(side, params->v4_blocks + (place >> 6));
	kind = line ? ((__u8 *)line)[place & 63] : 0;
	if (!kind) {
		place = buckets_find(side, &params->v4_mixed_index, number, V4_MIXED_BITS);
		line = line_at(side, params->v4_mixed + (place >> 3));
		return line ? line->entries[place & (LINE_ENTRIES - 1)] >> at * 16 & 0xffff : 0;
	}
	line = line_at(side, params->v4_kinds + (kind >> 4));
	if (!line)
		return 0;
	kind = ((__u32 *)line)[kind & 15];
	class = kind >> at & 1 ? kind >> V4_CLASS_SHIFT : params->v4_root_class;
	return class | (kind >> V4_LONGER_SHIFT >> at & 1) * V4_HAS_LONGER;
}

/* Returns the class of an address in host order whose /22 differs. */
static __always_inline __u32 v4_class(__u32 side, const struct scrub_set_params *params, __u32 address)
{
	__u32 class = v4_network(side, params, address >> 8);
	__u64 entry, lengths;

	if (!(class & V4_HAS_LONGER))
		return class;
	class &= ~V4_HAS_LONGER;
	lengths = buckets_find(side, &params->v4_longer, (__u64)(address & 0xffffff00) << 4, V4_LONGER_BITS);
	if (lengths & V4_ONE)
		return ((address ^ lengths) & 0xff) >> (8 - (lengths >> 8 & 15)) ? class : lengths >> 12 & 0x7fff;
#pragma unroll
	for (int length = 32; length > 24; length--) {
		__u64 prefix = address & (__u32)(0xffffffffULL << (32 - length));

		if (!(lengths >> (length - 24) & 1))
			continue;
		entry = buckets_find(side, &params->v4_longer, prefix << 4 | (length - 24), V4_LONGER_BITS);
		if (entry)
			return (__u16)entry;
	}
	return class;
}

/* An IPv6 address in host order. */
struct v6_address {
	__u64 high, low;
};

/* Returns the hash of a prefix; never 0. As `tag` in src/sets/v6.rs. */
static __always_inline __u64 v6_tag(const struct v6_address *address, __u32 length, __u64 seed)
{
	__u64 mixed = nh(address->high, seed) + nh(address->low, seed * 0x9e3779b97f4a7c15ULL) +
		      nh(length, seed * 0xd6e8feb86659fd93ULL);

	mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93ULL;
	return mixed >> V6_VALUE_BITS | 1;
}

static __always_inline struct v6_address v6_masked(const struct v6_address *address, __u32 length)
{
	struct v6_address masked = {
		.high = length >= 64 ? address->high : address->high & ~0ULL << (64 - length),
		.low = length > 64 ? address->low & ~0ULL << (128 - length) : 0,
	};

	return masked;
}

/* Returns the entry of a prefix that has the address; NULL if there is none. */
static __always_inline struct scrub_v6_prefix *v6_prefix(__u32 side, const struct scrub_set_params *params,
							 const struct v6_address *address, __u32 length)
{
	struct v6_address masked = v6_masked(address, length);
	__u64 found = buckets_find(side, &params->v6_index, v6_tag(&masked, length, params->v6_seed), V6_VALUE_BITS);
	__u32 number = found & ((1 << V6_VALUE_BITS) - 1);
	struct scrub_line *line = found ? line_at(side, params->v6_prefixes + (number >> 1)) : 0;
	struct scrub_v6_prefix *prefix;

	if (!line)
		return 0;
	prefix = (void *)&line->entries[(number & 1) * 4];
	return prefix->high == masked.high && prefix->low == masked.low && prefix->length == length ? prefix : 0;
}

static const struct scrub_class no_class;

/* Returns the memberships of an address. */
static __always_inline struct scrub_class class_at(__u32 side, const struct scrub_set_params *params,
						   __u32 class)
{
	struct scrub_line *line = class ? line_at(side, params->classes + (class >> 2)) : 0;

	return line ? *(struct scrub_class *)&line->entries[(class & 3) * 2] : no_class;
}

#endif
