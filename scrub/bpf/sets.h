/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The look-up of an address in all sets: src/sets describes and fills the tables. */
#ifndef SCRUB_SETS_H
#define SCRUB_SETS_H

#include "buckets.h"

#define V4_HAS_LONGER 0x8000
#define V4_VALUE_BITS 16
#define V6_VALUE_BITS 24
#define V6_LENGTHS 112
#define V6_FOUND 0x10000

/* A /16 of IPv6, two in a line. */
struct scrub_v6_first {
	__u64 lengths[2];	/* a bit for each length less one: 1..64, 65..128 */
	__u16 class;
	__u16 reserved[7];
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

struct scrub_set_params {
	/* The first lines of tables. */
	__u32 v4_pages;		/* of a /16: a class for each /24 */
	__u32 v6_first;
	__u32 v6_prefixes;
	__u32 v6_length_count;
	__u32 classes;
	__u32 v4_root_page;	/* the distance of the page of /16s that have the class v4_root alone */
	struct scrub_class v4_root; /* of all IPv4 addresses whose /24 has no bit */
	struct scrub_buckets v4_longer;
	struct scrub_buckets v6_index;
	__u64 v6_seed;
	__u8 v6_lengths[V6_LENGTHS]; /* those of prefixes longer than 16, from the longest */
};

#define NETWORK_WORDS (1 << 18)

/* A bit for each network of 24 bits: its class is not v4_root; of IPv6, a prefix longer than 16 bits touches it. */
struct scrub_networks {
	__u64 bits[NETWORK_WORDS];
};

static __always_inline int has_bit(const __u64 *bits, __u32 network)
{
	return bits[network >> 6 & (NETWORK_WORDS - 1)] >> (network & 63) & 1;
}

/* Returns true if an address in host order has the class v4_root. */
static __always_inline int is_v4_root(const __u64 *bits, const struct scrub_set_params *params, const __u32 *page_of,
				      __u32 address)
{
	return page_of[address >> 16 & 0xffff] == params->v4_root_page || !has_bit(bits, address >> 8);
}

/* Returns the class of an address in host order that has another one than v4_root. */
static __always_inline __u32 v4_class(void *image, const struct scrub_set_params *params, const __u32 *page_of,
				      __u32 address)
{
	__u32 network = address >> 8, page = page_of[address >> 16 & 0xffff];
	struct scrub_line *line;
	__u64 entry, lengths;
	__u32 class;

	line = line_at(image, params->v4_pages + page + (network >> 5 & 7));
	if (!line)
		return 0;
	class = ((__u16 *)line)[network & 31];
	if (!(class & V4_HAS_LONGER))
		return class;
	lengths = buckets_find(image, &params->v4_longer,
			       (__u64)(address & 0xffffff00) << 6 | 24, V4_VALUE_BITS);
#pragma unroll
	for (int length = 32; length > 24; length--) {
		__u64 prefix = address & (__u32)(0xffffffffULL << (32 - length));

		if (!(lengths >> (length - 24) & 1))
			continue;
		entry = buckets_find(image, &params->v4_longer, prefix << 6 | length, V4_VALUE_BITS);
		if (entry)
			return (__u16)entry;
	}
	return class & ~V4_HAS_LONGER;
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

/* Returns the entry of an address's /16, which has the class of prefixes up to 16 bits; NULL if the image has ended. */
static __always_inline struct scrub_v6_first *v6_first(void *image, const struct scrub_set_params *params, __u64 high)
{
	__u32 key = high >> 48;
	struct scrub_line *line = line_at(image, params->v6_first + (key >> 1));

	return line ? (void *)&line->entries[(key & 1) * 4] : 0;
}

/* Returns the class of a prefix that has the address, and V6_FOUND; 0 if it is not in the table. */
static __always_inline __u32 v6_prefix(void *image, const struct scrub_set_params *params,
				       const struct v6_address *address, __u32 length)
{
	struct v6_address masked = v6_masked(address, length);
	__u64 entry = buckets_find(image, &params->v6_index,
				   v6_tag(&masked, length, params->v6_seed), V6_VALUE_BITS);
	__u32 key = entry & ((1 << V6_VALUE_BITS) - 1);
	struct scrub_v6_prefix *prefix;
	struct scrub_line *line;

	line = entry ? line_at(image, params->v6_prefixes + (key >> 1)) : 0;
	if (!line)
		return 0;
	prefix = (void *)&line->entries[(key & 1) * 4];
	if (prefix->high != masked.high || prefix->low != masked.low || prefix->length != length)
		return 0;
	return prefix->class | V6_FOUND;
}

static const struct scrub_class no_class;

/* Returns the memberships of an address. */
static __always_inline struct scrub_class class_at(void *image, const struct scrub_set_params *params,
						   __u32 class)
{
	struct scrub_line *line = class ? line_at(image, params->classes + (class >> 2)) : 0;

	return line ? *(struct scrub_class *)&line->entries[(class & 3) * 2] : no_class;
}

#endif
