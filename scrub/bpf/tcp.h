/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * TCP: sources that have answered, and flows that are known. src/policy/tcp.rs describes the stage.
 *
 *	SYN -> verified source? -> level of the destination -> pass | drop the first one | answer with a cookie
 *	RST -> cookie? -> the source is verified
 *
 * Verified sources and flows are in tables like those of limits.h: a slot whose time has passed is free. In full lines
 * a new entry takes the place of a weak one, as forged packets can make, or of the one that ends first. Meters have no
 * tags: destinations that share one are measured together.
 */
#ifndef SCRUB_TCP_H
#define SCRUB_TCP_H

#include "limits.h"

#define MS 1000000ULL
#define SECOND (1000 * MS)
#define EPOCH_BITS 36		/* of time in ns: 69 s */
#define METERS (1 << 16)	/* of each kind */
#define METERS_PER_LINE 4
#define HOLD_SECONDS 5		/* below the threshold, before a level is left */
/*
 * A SYN is remembered until another one has its place. Of 2^18 SYNs in a second, above which destinations get
 * challenges, an entry survives a second with 78 %, and 3 seconds with 47 %.
 */
#define SYNS (1 << 20)
#define RETRANSMIT_MIN_MS 700
#define RETRANSMIT_MAX_MS 8000
#define WEAK_TIME (60 * SECOND)
#define FLOW_IDLE_TIME (300 * SECOND)

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
	SCRUB_METER_KINDS,
};

/* How a profile treats TCP. */
struct scrub_tcp {
	__u8 challenge;		/* enum scrub_challenge */
	__u8 state;		/* flows are known or not */
	__u16 reserved;
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
 * As many lines as scrub_limits. The lowest bit of a time marks a weak entry: of a source that was verified by a
 * retransmission, or of a flow of one packet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct limit_line);
} scrub_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct limit_line);
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
	__uint(max_entries, SCRUB_METER_KINDS * METERS / METERS_PER_LINE);
	__type(key, __u32);
	__type(value, struct scrub_line);
} scrub_meters SEC(".maps");

/* A source is an IPv4 address or an IPv6 /64, as of limits. */
static __always_inline __u64 source_key(const struct scrub_packet *packet, __u64 seed)
{
	return limit_key(packet->src_high, packet->version, SALT_SOURCE, seed);
}

static __always_inline __u64 flow_key(const struct scrub_packet *packet, __u64 salt, __u64 seed)
{
	__u64 ports = (__u64)packet->sport << 16 | packet->dport;
	__u64 src = limit_key(packet->src_high, packet->src_low, salt ^ ports, seed);

	return limit_key(packet->dst_high ^ packet->version, packet->dst_low, src, seed);
}

/* Returns the living slot of a key; NULL if none. */
static __always_inline struct limit_slot *living_slot(void *map, __u64 key, __u32 mask, __u64 now)
{
	__u32 at[2] = { (__u32)key >> 1 & mask, (__u32)(key >> 32) & mask };

#pragma unroll
	for (int i = 0; i < 2; i++) {
		struct limit_line *line = bpf_map_lookup_elem(map, &at[i]);

		if (!line)
			return 0;
#pragma unroll
		for (int slot = 0; slot < SLOTS; slot++) {
			if (line->slots[slot].tag == key)
				return line->slots[slot].time > now ? &line->slots[slot] : 0;
		}
	}
	return 0;
}

/*
 * Inserts a key until a time, into the emptier line. If both are full, it takes the slot of the entry that ends first;
 * weak entries first.
 */
static __always_inline void insert_slot(void *map, __u64 key, __u32 mask, __u64 now, __u64 time)
{
	__u32 at[2] = { (__u32)key >> 1 & mask, (__u32)(key >> 32) & mask };
	__u64 tag = 0, oldest_tag = 0, end = ~0ULL;
	struct limit_slot *free = 0, *oldest = 0;
	int best = 0;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		struct limit_line *line = bpf_map_lookup_elem(map, &at[i]);
		struct limit_slot *found = 0;
		__u64 found_tag = 0;
		int count = 0;

		if (!line)
			return;
#pragma unroll
		for (int slot = 0; slot < SLOTS; slot++) {
			__u64 other = *(volatile __u64 *)&line->slots[slot].tag;
			__u64 until = line->slots[slot].time;

			if (other == key) {
				line->slots[slot].time = time;
				return;
			}
			if (until <= now) {
				found = &line->slots[slot];
				found_tag = other;
				count++;
				continue;
			}
			if (until & 1)
				until >>= 1;
			if (until < end) {
				end = until;
				oldest = &line->slots[slot];
				oldest_tag = other;
			}
		}
		if (count > best) {
			best = count;
			free = found;
			tag = found_tag;
		}
	}
	if (!free) {
		free = oldest;
		tag = oldest_tag;
	}
	/* Of two keys that are inserted at once, the slower one is not. Pairs with itself on other CPUs. */
	if (free && __sync_val_compare_and_swap(&free->tag, tag, key) == tag)
		free->time = time;
}

/* Counts a packet to a destination. Returns the level that the destination then has. */
static __always_inline __u32 measure(struct scrub_meter *meter, const struct scrub_tcp *tcp, __u32 max_level,
				     __u32 second)
{
	__u64 old = *(volatile __u64 *)&meter->counted;
	__u32 window = old >> 32, count = 1, reached, level;

	/* Clocks of other CPUs may be a little behind. */
	if (window < second && __sync_val_compare_and_swap(&meter->counted, old, (__u64)second << 32 | 1) == old) {
		level = meter->level;
		if (level >= SCRUB_LEVELS || second - window > HOLD_SECONDS) {
			level = 0;
		} else if (level) {
			if ((__u32)old >= tcp->below[level == SCRUB_LEVEL_ANSWER])
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

/*
 * Returns true for the retransmission of a SYN that was remembered. Remembers the others, those that come too early as
 * they are.
 */
static __always_inline int is_retransmission(__u64 *syn, __u32 tag, __u64 now)
{
	__u32 now_ms = now / MS, age;
	__u64 old = *(volatile __u64 *)syn;

	age = now_ms - (__u32)old;
	if (old >> 32 != tag || age > RETRANSMIT_MAX_MS) {
		*(volatile __u64 *)syn = (__u64)tag << 32 | now_ms;
		return 0;
	}
	return age >= RETRANSMIT_MIN_MS;
}

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

#define SIP_ROUND(a, b, c, d) do {					\
	a += b; b = ROTATE(b, 13); b ^= a; a = ROTATE(a, 32);		\
	c += d; d = ROTATE(d, 16); d ^= c;				\
	a += d; d = ROTATE(d, 21); d ^= a;				\
	c += b; b = ROTATE(b, 17); b ^= c; c = ROTATE(c, 32);		\
} while (0)

#define SIP_WORD(word) do {						\
	__u64 next = (word);						\
	d ^= next;							\
	SIP_ROUND(a, b, c, d);						\
	a ^= next;							\
} while (0)

/* Returns SipHash-1-3 of a packet's addresses and ports, and an epoch. */
static __always_inline __u64 cookie_of(const struct scrub_packet *packet, __u64 epoch, __u64 key0, __u64 key1)
{
	__u64 a = key0 ^ 0x736f6d6570736575ULL, b = key1 ^ 0x646f72616e646f6dULL;
	__u64 c = key0 ^ 0x6c7967656e657261ULL, d = key1 ^ 0x7465646279746573ULL;
	__u64 bytes = 16;

	if (packet->version == 4) {
		SIP_WORD(packet->src_high | packet->dst_high >> 32);
	} else {
		bytes = 40;
		SIP_WORD(packet->src_high);
		SIP_WORD(packet->src_low);
		SIP_WORD(packet->dst_high);
		SIP_WORD(packet->dst_low);
	}
	SIP_WORD((__u64)packet->sport << 48 | (__u64)packet->dport << 32 | (__u32)epoch);
	SIP_WORD(bytes << 56);
	c ^= 0xff;
	SIP_ROUND(a, b, c, d);
	SIP_ROUND(a, b, c, d);
	SIP_ROUND(a, b, c, d);
	return a ^ b ^ c ^ d;
}

/* The bit that is changed in cookies behind a SYN's sequence number. */
#define COOKIE_FLIP 0x80000000

/*
 * Returns the acknowledgement number of the answer to a SYN: a cookie before its sequence number. The client has sent
 * nothing that it acknowledges, and connection tracking passes it as a late one, where one behind would be invalid.
 */
static __always_inline __u32 acknowledgement(const struct scrub_packet *packet, __u32 cookie)
{
	return (__s32)(cookie - packet->seq) > 0 ? cookie ^ COOKIE_FLIP : cookie;
}

/* The headers of an answer, in the order of the wire. */
struct answer_v4 {
	__u8 version_length, tos;
	__be16 length, id, fragment;
	__u8 ttl, protocol;
	__be16 check;
	__be32 src, dst;
};

struct answer_v6 {
	__be32 version;
	__be16 length;
	__u8 protocol, hops;
	__be32 src[4], dst[4];
};

struct answer_tcp {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window, check, urgent;
};

#define ANSWER_TTL 64
#define ANSWER_WINDOW 0xffff
#define FRAME_MIN 60
#define SYN_ACK (TCP_SYN | TCP_ACK)

static __always_inline __u64 sum_words(__u64 word)
{
	return (word >> 48) + (word >> 32 & 0xffff) + (word >> 16 & 0xffff) + (word & 0xffff);
}

/* Returns the Internet checksum of a sum of 16-bit words in host order. */
static __always_inline __be16 checksum(__u64 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return bpf_htons((__u16)~(sum + (sum >> 16)));
}

/* Writes the TCP header. Of the pseudo-header, the order of the addresses does not matter. */
static __always_inline void write_tcp(struct answer_tcp *tcp, const struct scrub_packet *packet, __u64 hash)
{
	__u32 seq = hash >> 32, ack = acknowledgement(packet, hash);
	__u64 sum = sum_words(packet->src_high) + sum_words(packet->src_low) + sum_words(packet->dst_high) +
		    sum_words(packet->dst_low) + IPPROTO_TCP + sizeof(*tcp) + packet->sport + packet->dport +
		    sum_words((__u64)seq << 32 | ack) + (sizeof(*tcp) / 4 << 12 | SYN_ACK) + ANSWER_WINDOW;

	tcp->sport = bpf_htons(packet->dport);
	tcp->dport = bpf_htons(packet->sport);
	tcp->seq = bpf_htonl(seq);
	tcp->ack = bpf_htonl(ack);
	tcp->offset = sizeof(*tcp) / 4 << 4;
	tcp->flags = SYN_ACK;
	tcp->window = bpf_htons(ANSWER_WINDOW);
	tcp->check = checksum(sum);
	tcp->urgent = 0;
}

static __always_inline void write_v4(struct answer_v4 *ip, const struct scrub_packet *packet)
{
	__u32 length = sizeof(*ip) + sizeof(struct answer_tcp);
	__u64 sum = 0x4500 + length + IP_DF + (ANSWER_TTL << 8 | IPPROTO_TCP) + sum_words(packet->src_high) +
		    sum_words(packet->dst_high);

	ip->version_length = 0x45;
	ip->tos = 0;
	ip->length = bpf_htons(length);
	ip->id = 0;
	ip->fragment = bpf_htons(IP_DF);
	ip->ttl = ANSWER_TTL;
	ip->protocol = IPPROTO_TCP;
	ip->check = checksum(sum);
	ip->src = bpf_htonl(packet->dst_high >> 32);
	ip->dst = bpf_htonl(packet->src_high >> 32);
}

static __always_inline void write_v6(struct answer_v6 *ip, const struct scrub_packet *packet)
{
	ip->version = bpf_htonl(6 << 28);
	ip->length = bpf_htons(sizeof(struct answer_tcp));
	ip->protocol = IPPROTO_TCP;
	ip->hops = ANSWER_TTL;
	ip->src[0] = bpf_htonl(packet->dst_high >> 32);
	ip->src[1] = bpf_htonl(packet->dst_high);
	ip->src[2] = bpf_htonl(packet->dst_low >> 32);
	ip->src[3] = bpf_htonl(packet->dst_low);
	ip->dst[0] = bpf_htonl(packet->src_high >> 32);
	ip->dst[1] = bpf_htonl(packet->src_high);
	ip->dst[2] = bpf_htonl(packet->src_low >> 32);
	ip->dst[3] = bpf_htonl(packet->src_low);
}

/*
 * Turns a SYN's frame into its answer; what is before the IP header stays, with the addresses exchanged. Options,
 * extension headers and data are cut off. Returns false if the frame cannot be changed.
 */
static __always_inline int write_answer(struct xdp_md *ctx, const struct scrub_packet *packet, __u32 bytes,
					__u64 hash)
{
	__u32 is_v4 = packet->version == 4, link = sizeof(struct ethhdr) + (packet->tags & 3) * sizeof(struct vlan_tag);
	__u32 headers = (is_v4 ? sizeof(struct answer_v4) : sizeof(struct answer_v6)) + sizeof(struct answer_tcp);
	__u32 length = link + headers < FRAME_MIN ? FRAME_MIN : link + headers;
	struct ethhdr *ethernet;
	__u8 mac[ETH_ALEN];
	void *end, *at;

	/* A driver without room behind a frame cannot lengthen it: then the interface pads it. */
	if (bytes != length && bpf_xdp_adjust_tail(ctx, (int)(length - bytes)) && bytes > length)
		return 0;
	ethernet = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if ((void *)(ethernet + 1) > end)
		return 0;
	__builtin_memcpy(mac, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, mac, ETH_ALEN);
	at = (void *)ethernet + link;
	if (is_v4) {
		struct { struct answer_v4 ip; struct answer_tcp tcp; } *answer = at;
		__u16 *padding = (void *)(answer + 1);

		if ((void *)(answer + 1) > end)
			return 0;
		write_v4(&answer->ip, packet);
		write_tcp(&answer->tcp, packet, hash);
		if (!packet->tags && (void *)(padding + 3) <= end)
			padding[0] = padding[1] = padding[2] = 0;
		else if (packet->tags == 1 && (void *)(padding + 1) <= end)
			padding[0] = 0;
	} else {
		struct { struct answer_v6 ip; struct answer_tcp tcp; } *answer = at;

		if ((void *)(answer + 1) > end)
			return 0;
		write_v6(&answer->ip, packet);
		write_tcp(&answer->tcp, packet, hash);
	}
	return 1;
}

#endif
