/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * TCP: sources that have answered, and flows that are known. src/policy/tcp.rs describes the stage.
 *
 *	SYN -> verified source? -> level of the destination -> pass | drop the first one | answer with a cookie
 *	RST -> cookie? -> the source is verified
 *	ACK -> SYN cookie? -> the flow is known; the cookie's timestamp, too? -> the source is verified
 *
 * Verified sources and flows are in slots (slots.h). In full lines a new entry takes the place of a weak one, as forged
 * packets can make, or of the one that ends first. Meters have no tags: destinations that share one are measured
 * together.
 */
#ifndef SCRUB_TCP_H
#define SCRUB_TCP_H

#include "packet.h"
#include "slots.h"

#define MS 1000000ULL
#define SECOND (1000 * MS)
#define METERS (1 << 16)	/* of each kind */
#define METERS_PER_LINE 4
#define HOLD_SECONDS 5		/* below the threshold, before a level is left */
/*
 * A SYN keeps its place until it was repeated or SYN_HOLD_MS have passed, which bounds the rate of SYNs that can be
 * remembered to SYNS / 3 s, whatever the number of destinations. SYNs above it get the challenge of the next level.
 */
#define SYNS (1 << 20)
#define RETRANSMIT_MIN_MS 700
#define RETRANSMIT_MAX_MS 8000
#define SYN_HOLD_MS 3000
#define WEAK_TIME (60 * SECOND)
#define FLOW_IDLE_TIME (300 * SECOND)
#define FLOW_PROOF_TIME (5 * SECOND)

/* Salts of keys. */
#define SALT_SOURCE 0x736f757263650000ULL
#define SALT_FLOW 0x666c6f7700000000ULL
#define SALT_SYN 0x73796e0000000000ULL
#define SALT_METER 0x6d65746572000000ULL

enum scrub_challenge {
	SCRUB_CHALLENGE_OFF,
	SCRUB_CHALLENGE_AUTO,
	SCRUB_CHALLENGE_ALWAYS,
};

enum scrub_level {
	SCRUB_LEVEL_PASS,
	SCRUB_LEVEL_RETRANSMIT,
	SCRUB_LEVEL_ANSWER,
	SCRUB_LEVELS,
};

enum scrub_meter_kind {
	SCRUB_METER_SYNS,
	SCRUB_METER_UNKNOWN,
	SCRUB_METER_QUERIES,	/* over UDP */
	SCRUB_METER_KINDS,
};

/* How a profile treats TCP. */
struct scrub_tcp {
	__u8 challenge;		/* enum scrub_challenge */
	__u8 state;		/* flows are known or not */
	__u8 handover;		/* enum scrub_handover_mode */
	__u8 reserved;
	__u32 above[SCRUB_LEVELS - 1];	/* packets in a second, above which the levels are entered */
	__u32 below[SCRUB_LEVELS - 1];	/* and below which they are left */
	__u32 reserved2;
	__u64 verified_for;	/* in ns */
};

/* The packets to a destination in one second, and its level. */
struct scrub_meter {
	__u64 counted;		/* second << 32 | packets */
	__u32 busy;		/* the last second that kept the level */
	__u32 level;
};

/*
 * A flag in the times of flows that did not begin with a SYN, until FLOW_PROOF_TIME is over. WEAK are flows of one packet,
 * and sources that have repeated a SYN.
 */
#define UNPROVEN 2

/* What a source has proved. */
enum scrub_proof {
	SCRUB_PROOF_NONE,
	SCRUB_PROOF_WEAK,	/* it repeats SYNs; level ANSWER wants more */
	SCRUB_PROOF_STRONG,	/* it receives what is sent to it */
};

enum scrub_flow {
	SCRUB_FLOW_UNKNOWN,
	SCRUB_FLOW_UNPROVEN,
	SCRUB_FLOW_KNOWN,
};

/* As many lines as scrub_limits. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct slot_line);
} scrub_sources SEC(".maps");

/*
 * Until when verified sources, and known flows, with this part of the hash last. A packet that finds a time that has passed
 * reads no lines of scrub_sources or scrub_flows, which are too many for a cache. Of a flood, these are 2 of 3 packets if
 * 100,000 flows are known, and 1 of 3 if 300,000 are.
 */
#define END_BITS 18
#define ENDS_PER_LINE 16
/* The times' unit: 2^30 ns. */
#define END_SHIFT 30

enum scrub_end_kind {
	SCRUB_ENDS_SOURCES,
	SCRUB_ENDS_FLOWS,
	SCRUB_END_KINDS,
};

struct end_line {
	__u32 ends[ENDS_PER_LINE];
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, (SCRUB_END_KINDS << END_BITS) / ENDS_PER_LINE);
	__type(key, __u32);
	__type(value, struct end_line);
} scrub_ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct slot_line);
} scrub_flows SEC(".maps");

/* SYNs that were dropped: tag << 32 | time in ms. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SYNS);
	__type(key, __u32);
	__type(value, __u64);
} scrub_syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, LINE_ALIGNED);
	__uint(max_entries, SCRUB_METER_KINDS * METERS / METERS_PER_LINE);
	__type(key, __u32);
	__type(value, struct scrub_line);
} scrub_meters SEC(".maps");

/* A source is an IPv4 address or an IPv6 /64, as of limits. */
static __always_inline __u64 source_key(const struct scrub_packet *packet, const __u64 *secrets)
{
	return slot_key(packet->src_high, packet->version, SALT_SOURCE, secrets);
}

/* Returns the end of a key. */
static __always_inline __u32 *end_of(enum scrub_end_kind kind, __u64 key)
{
	__u32 at = kind << END_BITS | key >> (64 - END_BITS), line = at / ENDS_PER_LINE;
	struct end_line *found = bpf_map_lookup_elem(&scrub_ends, &line);

	return found ? &found->ends[at % ENDS_PER_LINE] : 0;
}

/* Returns true if something with this key may last. */
static __always_inline int may_last(enum scrub_end_kind kind, __u64 key, __u64 now)
{
	__u32 *end = end_of(kind, key);

	return end && *(volatile __u32 *)end >= (__u32)(now >> END_SHIFT);
}

/* Makes a key one that may last until a time. */
static __always_inline void extend_end(enum scrub_end_kind kind, __u64 key, __u64 time)
{
	__u32 *end = end_of(kind, key), until = time >> END_SHIFT;

	if (!end)
		return;
	/* If two other CPUs were faster with earlier times, it lasts until theirs. */
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__u32 old = *(volatile __u32 *)end;

		/* Pairs with itself on other CPUs. */
		if (old >= until || __sync_val_compare_and_swap(end, old, until) == old)
			return;
	}
}

static __always_inline __u64 flow_key(const struct scrub_packet *packet, __u64 salt, const __u64 *secrets)
{
	__u64 ports = (__u64)packet->sport << 16 | packet->dport;
	__u64 src = slot_key(packet->src_high, packet->src_low, salt ^ ports, secrets);

	return slot_key(packet->dst_high ^ packet->version, packet->dst_low, src, secrets);
}

/* Returns the meter of a packet's destination; of queries, `salt` tells challenges apart. */
static __always_inline struct scrub_meter *meter_of(const struct scrub_packet *packet, __u32 kind, __u64 salt,
						    const __u64 *secrets)
{
	__u64 key = slot_key(packet->dst_high, packet->dst_low, SALT_METER ^ salt ^ (__u64)packet->version << 40,
			     secrets);
	__u32 at = (key >> 32 & (METERS - 1)) / METERS_PER_LINE + kind * (METERS / METERS_PER_LINE);
	struct scrub_line *line = bpf_map_lookup_elem(&scrub_meters, &at);

	return line ? (void *)&line->entries[(key >> 32 & (METERS_PER_LINE - 1)) * 2] : 0;
}

/* Returns the level of a destination. */
static __always_inline __u32 level_of(const struct scrub_meter *meter, __u32 second)
{
	__u32 window = *(volatile __u64 *)&meter->counted >> 32;

	return second > window + HOLD_SECONDS ? 0 : meter->level;
}

/* Counts a packet to a destination. Returns the level that the destination then has. */
static __always_inline __u32 measure(struct scrub_meter *meter, const struct scrub_tcp *tcp, __u32 max_level,
				     __u32 second)
{
	__u64 old = *(volatile __u64 *)&meter->counted;
	__u32 window = old >> 32, count = 1, reached, level;
	/* No index into the stack of a caller, which clang makes by an OR that the verifier refuses. */
	__u32 below1 = *(volatile __u32 *)&tcp->below[0], below2 = *(volatile __u32 *)&tcp->below[1];

	/* Clocks of other CPUs may be a little behind. */
	if (window < second && __sync_val_compare_and_swap(&meter->counted, old, (__u64)second << 32 | 1) == old) {
		level = meter->level;
		if (level >= SCRUB_LEVELS || second - window > HOLD_SECONDS) {
			level = 0;
		} else if (level) {
			if ((__u32)old >= (level == SCRUB_LEVEL_ANSWER ? below2 : below1))
				meter->busy = window;
			if (second - meter->busy > HOLD_SECONDS) {
				level--;
				meter->busy = second;
			}
		}
		meter->level = level;
	} else {
		count = (__u32)__sync_fetch_and_add(&meter->counted, 1) + 1;
	}
	reached = count > tcp->above[1] ? SCRUB_LEVEL_ANSWER : count > tcp->above[0];
	if (reached > max_level)
		reached = max_level;
	level = meter->level;
	if (reached <= level)
		return level;
	meter->level = reached;
	meter->busy = second;
	return reached;
}

enum scrub_syn {
	SCRUB_SYN_FIRST,	/* remembered now, or too short a time ago */
	SCRUB_SYN_AGAIN,	/* a retransmission */
	SCRUB_SYN_NO_ROOM,	/* others have both places */
};

/* Looks for a SYN at its two places, and remembers it if it is not there. */
static __always_inline enum scrub_syn remember_syn(__u64 *places[2], __u32 tag, __u64 now)
{
	__u32 now_ms = now / MS;
	__u64 *free = 0;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		__u64 old = *(volatile __u64 *)places[i];
		__u32 age = now_ms - (__u32)old;

		if (old >> 32 == tag && age <= RETRANSMIT_MAX_MS)
			return age >= RETRANSMIT_MIN_MS ? SCRUB_SYN_AGAIN : SCRUB_SYN_FIRST;
		if (!free && (!old || age > SYN_HOLD_MS))
			free = places[i];
	}
	if (!free)
		return SCRUB_SYN_NO_ROOM;
	*(volatile __u64 *)free = (__u64)tag << 32 | now_ms;
	return SCRUB_SYN_FIRST;
}

#endif
