/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The return path: a packet to a protected network leaves by an interface, in GRE or with a VLAN tag. Its old
 * Ethernet header, tags and tunnel do not leave. Padding stays behind the packet: one that exceeds the MTU with it is
 * counted as passed, but the kernel drops the frame.
 *
 *	Ethernet, tags, tunnel, packet -> Ethernet, VLAN tag, IPv4, GRE, packet
 *	                                            `-- return_path --'
 */
#ifndef SCRUB_RETURN_H
#define SCRUB_RETURN_H

#include "answer.h"
#include "maps.h"
#include "mss.h"

/* The interface, and the headers there; src/program/return_path.rs has the layout in Rust. */
struct scrub_return {
	__u32 interface;	/* its index; 0 if packets go to the host */
	__u32 tunnel;		/* bytes of the headers of IPv4 and GRE; 0 without */
	__u32 src, dst, key;	/* of GRE, in host order */
	__u16 vlan;		/* number of the tag; 0 without */
	__u16 reserved;
};

const volatile struct scrub_return return_path SEC(".rodata.return") = {};

/* The next hop there. User space keeps it current, a word at a time. */
struct scrub_next_hop {
	__u64 dst_mac, src_mac;	/* the first six bytes */
	__u64 mtu;
	__u64 mss;		/* over IPv4; over IPv6 20 less. 0 if it stays */
};

struct scrub_next_hop next_hop SEC(".data.return");

struct gre {
	__be16 flags;
	__be16 protocol;
	__be32 key;		/* with GRE_KEY */
};

#define GRE_TTL 64
#define IPV6_EXTRA_BYTES 20		/* by which a header of IPv6 is longer */

/* Returns why a packet cannot be returned: its counter; 0 if it can. */
static __always_inline __u32 return_defect(const struct scrub_packet *packet)
{
	if (packet->ttl <= 1)
		return SCRUB_COUNT_RETURN_EXPIRED;
	if (packet->length + return_path.tunnel > *(volatile __u64 *)&next_hop.mtu)
		return SCRUB_COUNT_RETURN_TOO_LONG;
	return 0;
}

/* Lowers the TTL as a router does, so that a loop ends. Returns the packet's TOS; -1 if the frame is too short. */
static __always_inline int lower_ttl(const struct scrub_packet *packet, void *start, void *end)
{
	__u8 *header = start + (packet->network & PAYLOAD_MASK);
	struct ipv6hdr *v6 = (void *)header;
	struct iphdr *v4 = (void *)header;
	__u32 old;

	if ((void *)(v4 + 1) > end)
		return -1;
	if (packet->version == 6) {
		v6->hop_limit--;
		return (header[0] & 15) << 4 | header[1] >> 4;
	}
	old = v4->ttl << 8;
	v4->ttl--;
	v4->check = changed_checksum(v4->check, old, old - 0x100);
	return v4->tos;
}

/* Writes the outer headers of a tunnel, with the TOS of the packet. Returns false if the frame is too short. */
static __always_inline int write_tunnel(const struct scrub_packet *packet, __u8 tos, void *start, void *end)
{
	__u32 length = packet->length + return_path.tunnel, src = return_path.src, dst = return_path.dst;
	struct answer_v4 *ip = start;
	struct gre *gre = (void *)(ip + 1);

	/* Without a key, its place is in the header of the packet itself. */
	if ((void *)(gre + 1) > end)
		return 0;
	ip->version_length = 0x45;
	ip->tos = tos;
	ip->length = bpf_htons(length);
	ip->id = 0;
	ip->fragment = bpf_htons(IP_DF);
	ip->ttl = GRE_TTL;
	ip->protocol = IPPROTO_GRE;
	ip->check = checksum((0x4500 | tos) + length + IP_DF + (GRE_TTL << 8 | IPPROTO_GRE) +
			     sum_words((__u64)src << 32 | dst));
	ip->src = bpf_htonl(src);
	ip->dst = bpf_htonl(dst);
	gre->flags = 0;
	gre->protocol = packet->version == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (return_path.tunnel == sizeof(*ip) + sizeof(*gre)) {
		gre->flags = bpf_htons(GRE_KEY);
		gre->key = bpf_htonl(return_path.key);
	}
	return 1;
}

/* Replaces what is before a packet. Returns false if the frame cannot be changed. */
static __always_inline int write_return(struct xdp_md *ctx, const struct scrub_packet *packet, __u8 tos)
{
	__be16 type = packet->version == 4 || return_path.tunnel ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	__u64 dst = *(volatile __u64 *)&next_hop.dst_mac, src = *(volatile __u64 *)&next_hop.src_mac;
	__u32 link = sizeof(struct ethhdr) + (return_path.vlan ? sizeof(struct vlan_tag) : 0);
	struct ethhdr *ethernet;
	struct vlan_tag *tag;
	void *end;

	if (bpf_xdp_adjust_head(ctx, (int)(packet->network & PAYLOAD_MASK) - (int)(link + return_path.tunnel)))
		return 0;
	ethernet = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	tag = (void *)(ethernet + 1);
	if ((void *)(tag + 1) > end)
		return 0;
	__builtin_memcpy(ethernet->h_dest, &dst, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, &src, ETH_ALEN);
	if (return_path.vlan) {
		ethernet->h_proto = bpf_htons(ETH_P_8021Q);
		tag->tci = bpf_htons(return_path.vlan);
		tag->type = type;
	} else {
		ethernet->h_proto = type;
	}
	return !return_path.tunnel || write_tunnel(packet, tos, (void *)ethernet + link, end);
}

/*
 * Sends a packet to its network. Returns the verdict on its frame: XDP_ABORTED if the driver has too little room for the
 * headers. The policy has counted the packet as passed; the stage's counters have the drop.
 */
__noinline int scrub_return(struct xdp_md *ctx, struct scrub_packet *packet)
{
	__u32 mss = *(volatile __u64 *)&next_hop.mss;
	int tos;

	if (!packet)
		return XDP_ABORTED;
	if (mss && packet->transport == IPPROTO_TCP && packet->tcp_flags & TCP_SYN)
		scrub_lower_mss(ctx, packet, packet->version == 4 ? mss : mss - IPV6_EXTRA_BYTES);
	tos = lower_ttl(packet, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	if (tos < 0 || !write_return(ctx, packet, tos))
		return XDP_ABORTED;
	return bpf_redirect(return_path.interface, 0);
}

#endif
