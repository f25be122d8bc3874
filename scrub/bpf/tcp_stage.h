/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The stage of TCP: challenges, and known flows. Global functions as in stages.h. */
#ifndef SCRUB_TCP_STAGE_H
#define SCRUB_TCP_STAGE_H

#include "handover.h"
#include "maps.h"
#include "tcp.h"

/* Returns enum scrub_proof of a packet's source. */
static __always_inline int proof_of(struct scrub_packet *packet)
{
	__u64 now = now_of(packet), key = source_key(packet, control.secrets);
	struct slot *slot;

	slot = may_last(SCRUB_ENDS_SOURCES, key, now) ? living_slot(&scrub_sources, key, control.limit_mask, now) : 0;
	if (!slot)
		return SCRUB_PROOF_NONE;
	return slot->time & WEAK ? SCRUB_PROOF_WEAK : SCRUB_PROOF_STRONG;
}

/* Marks a packet's source as verified for some time. */
__noinline int scrub_verify(struct scrub_packet *packet, __u64 time, int weak)
{
	__u64 key, now;

	if (!packet)
		return 0;
	now = now_of(packet);
	key = source_key(packet, control.secrets);
	extend_end(SCRUB_ENDS_SOURCES, key, now + time);
	insert_slot(&scrub_sources, key, control.limit_mask, now, ((now + time) & ~TIME_FLAGS) | (weak ? WEAK : 0));
	return 0;
}

/* Looks up a packet's flow, which then stays known. Returns enum scrub_flow. */
static __always_inline int find_flow(struct scrub_packet *packet)
{
	__u64 now = now_of(packet), key = flow_key(packet, SALT_FLOW, control.secrets), time;
	struct slot *slot;

	slot = may_last(SCRUB_ENDS_FLOWS, key, now) ? living_slot(&scrub_flows, key, control.flow_mask, now) : 0;
	if (!slot)
		return SCRUB_FLOW_UNKNOWN;
	time = slot->time;
	if (time & UNPROVEN && (time & ~TIME_FLAGS) > now + FLOW_IDLE_TIME - FLOW_PROOF_TIME)
		return SCRUB_FLOW_UNPROVEN;
	extend_end(SCRUB_ENDS_FLOWS, key, now + FLOW_IDLE_TIME);
	slot->time = (now + FLOW_IDLE_TIME) & ~TIME_FLAGS;
	return SCRUB_FLOW_KNOWN;
}

/* As find_flow(), not inlined: for rare packets. */
__noinline int scrub_find_flow(struct scrub_packet *packet)
{
	return packet ? find_flow(packet) : SCRUB_FLOW_UNKNOWN;
}

/* Learns a packet's flow, by a SYN that passed or by another packet. */
__noinline int scrub_learn_flow(struct scrub_packet *packet, int by_syn)
{
	__u64 key, now;

	if (!packet)
		return 0;
	now = now_of(packet);
	key = flow_key(packet, SALT_FLOW, control.secrets);
	extend_end(SCRUB_ENDS_FLOWS, key, now + FLOW_IDLE_TIME);
	insert_slot(&scrub_flows, key, control.flow_mask, now,
		    ((now + FLOW_IDLE_TIME) & ~TIME_FLAGS) | WEAK | (by_syn ? 0 : UNPROVEN));
	return 0;
}

/* Counts a packet to its destination, as enum scrub_meter_kind. Returns the destination's level. */
static __always_inline __u32 measure_destination(struct scrub_packet *packet, struct scrub_tcp *tcp, __u32 kind)
{
	struct scrub_meter *meter = meter_of(packet, kind, 0, control.secrets);

	if (!meter)
		return 0;
	return measure(meter, tcp, kind == SCRUB_METER_SYNS ? SCRUB_LEVEL_ANSWER : SCRUB_LEVEL_RETRANSMIT,
		       now_of(packet) / SECOND);
}

/* Returns the level of a packet's destination, without counting the packet. */
__noinline __u32 scrub_level(struct scrub_packet *packet, __u32 kind)
{
	struct scrub_meter *meter;

	if (!packet)
		return 0;
	meter = meter_of(packet, kind, 0, control.secrets);
	return meter ? level_of(meter, now_of(packet) / SECOND) : 0;
}

/* Remembers a SYN. Returns enum scrub_syn. */
__noinline int scrub_remember_syn(struct scrub_packet *packet)
{
	__u64 key, *places[2];
	__u32 at;

	if (!packet)
		return SCRUB_SYN_NO_ROOM;
	key = flow_key(packet, SALT_SYN ^ (__u64)packet->seq << 32, control.secrets);
	at = key >> 4 & (SYNS - 1);
	places[0] = bpf_map_lookup_elem(&scrub_syns, &at);
	at = key * 0x9e3779b97f4a7c15ULL >> 40 & (SYNS - 1);
	places[1] = bpf_map_lookup_elem(&scrub_syns, &at);
	if (!places[0] || !places[1])
		return SCRUB_SYN_NO_ROOM;
	return remember_syn(places, key >> 32 | 1, now_of(packet));
}

/* Returns the hash of a packet's addresses and ports in an epoch. */
__noinline __u64 scrub_cookie(struct scrub_packet *packet, __u64 epoch)
{
	return packet ? cookie_of(packet, epoch, control.cookie_key[0], control.cookie_key[1]) : 0;
}

/* Returns true if a reset answers a challenge of this epoch or the last one. */
__noinline int scrub_answers_challenge(struct scrub_packet *packet)
{
	__u64 epoch;

	if (!packet)
		return 0;
	epoch = now_of(packet) >> EPOCH_BITS;
	return !((packet->seq ^ (__u32)scrub_cookie(packet, epoch)) & ~COOKIE_FLIP) ||
	       !((packet->seq ^ (__u32)scrub_cookie(packet, epoch - 1)) & ~COOKIE_FLIP);
}

/* Decides on a SYN. Returns the cause if it does not pass; 0 if it does. */
static __always_inline __u32 decide_syn(struct scrub_packet *packet, struct scrub_tcp *tcp)
{
	__u32 level = SCRUB_LEVEL_ANSWER, proof;

	if (tcp->challenge == SCRUB_CHALLENGE_OFF)
		return 0;
	proof = proof_of(packet);
	if (proof == SCRUB_PROOF_STRONG)
		return 0;
	if (tcp->challenge == SCRUB_CHALLENGE_AUTO)
		level = measure_destination(packet, tcp, SCRUB_METER_SYNS);
	/* No answer leaves by the tunnel. */
	if (packet->tunnel && level == SCRUB_LEVEL_ANSWER)
		level = SCRUB_LEVEL_RETRANSMIT;
	if (proof == SCRUB_PROOF_WEAK)
		return level == SCRUB_LEVEL_ANSWER ? SCRUB_COUNT_CHALLENGE : 0;
	if (level == SCRUB_LEVEL_RETRANSMIT) {
		switch (scrub_remember_syn(packet)) {
		case SCRUB_SYN_AGAIN:
			scrub_verify(packet, tcp->verified_for < WEAK_TIME ? tcp->verified_for : WEAK_TIME, 1);
			return 0;
		case SCRUB_SYN_FIRST:
			return SCRUB_COUNT_FIRST_SYN;
		}
		if (packet->tunnel)
			return SCRUB_COUNT_FIRST_SYN;
	}
	return level ? SCRUB_COUNT_CHALLENGE : 0;
}

/* Returns true if a packet may acknowledge a SYN cookie. */
static __always_inline int may_acknowledge(struct scrub_packet *packet, const struct scrub_tcp *tcp)
{
	if ((packet->tcp_flags & (TCP_RST | SYN_ACK)) != TCP_ACK || tcp->challenge == SCRUB_CHALLENGE_OFF ||
	    *(volatile __u64 *)&handover.until <= now_of(packet))
		return 0;
	if (cookies != SCRUB_COOKIES_KERNEL)
		return 1;
	/* The socket costs more than the flow. Without known flows, a cookie is only counted. */
	return tcp->state ? scrub_find_flow(packet) != SCRUB_FLOW_KNOWN : !packet->payload_length;
}

/* Decides on a TCP packet. Returns the cause if it does not go on; 0 if it does. */
__noinline __u32 scrub_decide_tcp(struct xdp_md *ctx, struct scrub_packet *packet, struct scrub_tcp *tcp)
{
	__u32 cause, flow, acknowledged;

	if (!packet || !tcp)
		return 0;
	if ((packet->tcp_flags & SYN_ACK) == TCP_SYN) {
		packet->handover = tcp->handover;
		cause = decide_syn(packet, tcp);
		if (!cause && tcp->state && scrub_find_flow(packet) != SCRUB_FLOW_KNOWN)
			scrub_learn_flow(packet, 1);
		return cause;
	}
	if (packet->tcp_flags & TCP_RST && tcp->challenge != SCRUB_CHALLENGE_OFF &&
	    scrub_answers_challenge(packet)) {
		scrub_verify(packet, tcp->verified_for, 0);
		return SCRUB_COUNT_CHALLENGE_ANSWERED;
	}
	acknowledged = may_acknowledge(packet, tcp) ? scrub_acknowledged_cookie(ctx, packet) :
						      SCRUB_ACKNOWLEDGED_NOTHING;
	if (acknowledged) {
		if (acknowledged == SCRUB_ACKNOWLEDGED_TIMESTAMP)
			scrub_verify(packet, tcp->verified_for, 0);
		if (tcp->state && scrub_find_flow(packet) != SCRUB_FLOW_KNOWN)
			scrub_learn_flow(packet, 1);
		return 0;
	}
	if (!tcp->state)
		return 0;
	flow = find_flow(packet);
	if (flow == SCRUB_FLOW_KNOWN)
		return 0;
	/* Its first packet has counted. */
	if (flow == SCRUB_FLOW_UNPROVEN && !scrub_level(packet, SCRUB_METER_UNKNOWN))
		return 0;
	if (measure_destination(packet, tcp, SCRUB_METER_UNKNOWN) &&
	    now_of(packet) >= *(volatile __u64 *)&control.learn_until)
		return SCRUB_COUNT_UNKNOWN_FLOW;
	if (packet->tcp_flags & TCP_ACK && flow == SCRUB_FLOW_UNKNOWN)
		scrub_learn_flow(packet, 0);
	return 0;
}

/*
 * Turns a SYN's frame into a challenge, if no SYN cookie has answered it. Returns XDP_DROP if it cannot be sent: the policy
 * has counted it as answered, the stage's counters have the drop.
 */
__noinline int scrub_answer(struct xdp_md *ctx, struct scrub_packet *packet)
{
	if (!packet)
		return XDP_DROP;
	return write_answer(ctx, packet, frame_bytes(ctx), scrub_cookie(packet, now_of(packet) >> EPOCH_BITS)) ? XDP_TX :
													 XDP_DROP;
}

#endif
