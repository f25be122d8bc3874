/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* A record of a rule: conditions, all of which a packet meets or not. src/rules/record.rs describes and encodes it. */
#ifndef SCRUB_RECORD_H
#define SCRUB_RECORD_H

#include "buckets.h"
#include "packet.h"

/* Where a payload may end, at most: the verifier follows offsets of 64 KiB. */
#define PAYLOAD_END_MAX 0xfff0
#define PAYLOAD_BYTES 8

enum scrub_rule_flags {
	RULE_V4 = 1,		/* meets IPv4 */
	RULE_V6 = 2,
	RULE_ANY_PROTOCOL = 4,
};

struct scrub_range {
	__u16 first, last;
};

struct scrub_byte_range {
	__u8 first, last;
};

/* Bits under a mask, and their values. */
struct scrub_bits {
	__u8 mask, value;
};

/* Flags beside the rule's number in `action`: the rule only passes or drops, and neither samples nor marks. */
#define RULE_PASSES (1U << 31)
#define RULE_DROPS (1U << 30)
#define RULE_NUMBER (RULE_DROPS - 1)

/* The first line: what decides most packets. */
struct scrub_rule {
	__u64 src_high, dst_high;
	__u32 order;		/* the lowest one decides */
	__u32 action;
	struct scrub_range sport, dport, length, vlan;
	struct scrub_byte_range ttl, dscp, icmp_type, icmp_code;
	struct scrub_bits tcp_flags, fragment;
	__u8 src_bits, dst_bits; /* of prefixes */
	__u8 protocol;
	__u8 flags;		/* enum scrub_rule_flags */
	__u32 next;		/* the number of the record to compare next; 0 for none */
	__u32 rest;		/* the number of the second line; 0 for none */
};

/* The second line, in a table of its own: few records need it. */
struct scrub_rule_rest {
	__u64 src_low, dst_low;
	__u64 src_sets, dst_sets; /* one of them has the address, if not 0 */
	__u64 payload_value, payload_mask; /* the first byte is the lowest one */
	/* Flow labels, first | last << 20; the payload's offset << 40 and length << 56. */
	__u64 flow_label;
	__u64 reserved;
};

/* What a look-up derives from a packet. In a map, as the verifier has one state for all values there. */
struct rule_fields {
	__u64 src_sets, dst_sets;
	__u32 length;
	__u32 version;		/* RULE_V4 or RULE_V6 */
};

/* All that a record is compared with. */
struct rule_query {
	__u32 side;
	__u32 rests;		/* the first line of the table of second ones */
	struct scrub_packet *packet;
	struct rule_fields *fields;
	void *start, *end;	/* of the frame */
};

/*
 * Comparisons return bits instead of branches: a mismatch has bit 63, or any bit for those of equality. The verifier
 * follows one path through all of them, and the processor does not guess.
 */
#define MISMATCH (1ULL << 63)

/* Sets MISMATCH if a number is out of a range. */
static __always_inline __u64 outside(__u64 value, __u64 first, __u64 last)
{
	return (value - first) | (last - value);
}

/* Returns the bits that differ in the upper halves of two addresses of prefixes. */
static __always_inline __u64 differing_high(__u64 a, __u64 b, __s64 prefix)
{
	__s64 beyond = 64 - prefix;

	beyond &= ~(beyond >> 63);
	/* One shift by 64 is undefined. */
	return (a ^ b) >> (beyond >> 1) >> ((beyond + 1) >> 1);
}

/* As differing_high() in the lower halves: up to 128 bits are beyond the prefix. */
static __always_inline __u64 differing_low(__u64 a, __u64 b, __u64 prefix)
{
	__u64 beyond = 128 - prefix, quarter = beyond >> 2;

	return (a ^ b) >> quarter >> quarter >> quarter >> (beyond - 3 * quarter);
}

/* Returns MISMATCH if an address is in none of the sets that it is to be in. */
static __always_inline __u64 wrong_sets(__u64 sets, __u64 in)
{
	__u64 in_one = in & sets;

	return (in | -in) & ~(in_one | -in_one);
}

/* Returns true if the payload has a record's bytes; `place` is offset | number of bytes << 16. */
static __noinline int payload_matches(const struct rule_query *query, __u64 place, __u64 value,
					   __u64 mask)
{
	__u32 length = (long)query->end - (long)query->start;
	__u32 offset = place & 0xffff, bytes = place >> 16 & 15;
	__u32 begin = query->packet->payload + offset, missing = 0;
	__u8 *at = query->start;

	if (offset + bytes > query->packet->payload_length)
		return 0;
	if (length < PAYLOAD_BYTES || length > PAYLOAD_END_MAX || begin >= length)
		return 0;
	/* One load on each path: of the frame's last bytes if it ends early. */
	if (begin > length - PAYLOAD_BYTES) {
		missing = begin - (length - PAYLOAD_BYTES);
		if (mask >> 8 >> (8 * (PAYLOAD_BYTES - 1 - missing)))
			return 0;
		begin = length - PAYLOAD_BYTES;
	}
	/* For the verifier, which has lost the limits of sums. */
	asm volatile("" : "+r"(begin));
	if (begin > PAYLOAD_END_MAX)
		return 0;
	at += begin;
	if (at + PAYLOAD_BYTES > (__u8 *)query->end)
		return 0;
	return !((*(__u64 *)at >> (8 * missing) ^ value) & mask);
}

/* Returns true if a packet meets the conditions of a record's first line. */
static __always_inline int rule_matches(const struct scrub_rule *rule, const struct scrub_packet *packet,
					const struct rule_fields *fields)
{
	__u64 any_protocol = -(__u64)(rule->flags / RULE_ANY_PROTOCOL & 1), ranges, bits;

	bits = differing_high(packet->src_high, rule->src_high, rule->src_bits) |
	       differing_high(packet->dst_high, rule->dst_high, rule->dst_bits) |
	       (~rule->flags & fields->version) |
	       ((rule->protocol ^ packet->protocol) & ~any_protocol) |
	       ((packet->tcp_flags & rule->tcp_flags.mask) ^ rule->tcp_flags.value) |
	       ((packet->fragment & rule->fragment.mask) ^ rule->fragment.value);
	ranges = outside(packet->sport, rule->sport.first, rule->sport.last) |
		 outside(packet->dport, rule->dport.first, rule->dport.last) |
		 outside(fields->length, rule->length.first, rule->length.last) |
		 outside(packet->vlan, rule->vlan.first, rule->vlan.last) |
		 outside(packet->ttl, rule->ttl.first, rule->ttl.last) |
		 outside(packet->dscp, rule->dscp.first, rule->dscp.last) |
		 outside(packet->icmp_type, rule->icmp_type.first, rule->icmp_type.last) |
		 outside(packet->icmp_code, rule->icmp_code.first, rule->icmp_code.last);
	return !(bits | (ranges & MISMATCH));
}

/* As rule_matches(). A global function, which the verifier follows once and not for each call. */
__noinline int scrub_rule_matches(struct scrub_rule *rule, struct scrub_packet *packet, struct rule_fields *fields)
{
	return rule && packet && fields && rule_matches(rule, packet, fields);
}

/* As rule_matches(), for a record's second line without the payload. */
__noinline int scrub_rest_matches(struct scrub_rule *rule, struct scrub_rule_rest *rest,
				  struct scrub_packet *packet, struct rule_fields *fields)
{
	__u64 ranges, bits, label;

	if (!rule || !rest || !packet || !fields)
		return 0;
	label = rest->flow_label;
	bits = differing_low(packet->src_low, rest->src_low, rule->src_bits) |
	       differing_low(packet->dst_low, rest->dst_low, rule->dst_bits);
	ranges = wrong_sets(fields->src_sets, rest->src_sets) |
		 wrong_sets(fields->dst_sets, rest->dst_sets) |
		 outside(packet->flow_label, label & 0xfffff, label >> 20 & 0xfffff);
	return !(bits | (ranges & MISMATCH));
}

/* Returns true if a packet that meets the conditions of a record's first line meets the others, too. */
static __always_inline int rest_matches(const struct rule_query *query, struct scrub_rule *rule)
{
	struct scrub_rule_rest *rest;

	if (!rule->rest)
		return 1;
	rest = (void *)line_at(query->side, query->rests + rule->rest);
	if (!rest || !scrub_rest_matches(rule, rest, query->packet, query->fields))
		return 0;
	/* The length tells if there is a payload: one whose mask is 0 still has to have its bytes. */
	return !(rest->flow_label >> 56) || payload_matches(query, rest->flow_label >> 40,
							    rest->payload_value, rest->payload_mask);
}

#endif
