/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The fields of a packet that stages decide by, parsed once. src/packet.rs specifies the parser. */
#ifndef SCRUB_PACKET_H
#define SCRUB_PACKET_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>

#define VLAN_TAGS_MAX 2
#define EXTENSIONS_MAX 6
/* Offsets behind headers: these are shorter in every packet that is parsed, also inside of a tunnel. */
#define PAYLOAD_MASK 0x7fff
#define BFD_ECHO_PORT 3785
#define BFD_ECHO_TTL 254	/* at least */

/* Kinds of a packet by its place among fragments (RFC 8955, 4.2.2.12, in its order of bits). */
enum scrub_fragment {
	SCRUB_DONT_FRAGMENT = 1,
	SCRUB_LATER_FRAGMENT = 2,
	SCRUB_FIRST_FRAGMENT = 4,
	SCRUB_LAST_FRAGMENT = 8,
};

/* Tunnels into which the parser looks: bits. */
enum scrub_tunnel {
	SCRUB_TUNNEL_GRE = 1,
	SCRUB_TUNNEL_IPIP = 2,
};

/* Of a packet inside of a tunnel, all but the VLAN and the tags are those of the inner packet. */
struct scrub_packet {
	/* An IPv4 address is the upper half of `high`, so that prefixes are masked alike. Host order. */
	__u64 src_high, src_low;
	__u64 dst_high, dst_low;
	__u64 now;		/* in ns; 0 until now_of() reads the clock */
	__u32 flow_label;	/* of IPv6 */
	__u32 seq, ack;		/* of TCP */
	__u32 fragment_id;
	__u16 fragment_offset;	/* in units of 8 bytes */
	__u16 fragment_bytes;	/* behind the header that has the offset */
	__u16 length;		/* of the IP packet, without padding of the link */
	__u16 sport, dport;	/* 0 without */
	__u16 network;		/* offset of the IP header in the frame */
	__u16 payload;		/* offset in the frame, behind the known headers */
	__u16 payload_length;
	__u16 vlan;		/* the outer tag's number; 0 without */
	__u16 option;		/* in the TCP header, of the option that is being read */
	__u16 gre_check;	/* offset of GRE's checksum in the frame; 0 without */
	__u8 tags;		/* VLAN tags */
	__u8 version;		/* 4 or 6 */
	__u8 protocol;
	__u8 ttl;
	__u8 dscp;
	__u8 tcp_flags;
	__u8 icmp_type, icmp_code;
	__u8 fragment;		/* enum scrub_fragment */
	__u8 transport;		/* its protocol, if the packet has a known transport header; 0 otherwise */
	__u8 handover;		/* of a SYN that is answered: enum scrub_handover_mode */
	__u8 tunnel;		/* the one that it is inside of: enum scrub_tunnel; 0 without */
};

/* Writes an IPv6 address as of struct scrub_packet. */
static __always_inline void write_address(__be32 *to, __u64 high, __u64 low)
{
	to[0] = bpf_htonl(high >> 32);
	to[1] = bpf_htonl(high);
	to[2] = bpf_htonl(low >> 32);
	to[3] = bpf_htonl(low);
}

/* The result of parsing; the numbers of defects as src/cause.rs has them. */
enum scrub_parsed {
	SCRUB_TRUNCATED,
	SCRUB_BAD_HEADER,
	SCRUB_BAD_LENGTH,
	SCRUB_TINY_FRAGMENT,
	SCRUB_BAD_SOURCE,
	SCRUB_SAME_ADDRESS,
	SCRUB_BAD_FLAGS,
	SCRUB_PORT_ZERO,
	SCRUB_DEFECTS,
	SCRUB_NOT_IP = SCRUB_DEFECTS,
	SCRUB_PARSED,
};

/* The place of the parser in a frame. */
struct cursor {
	void *at;
	void *end;		/* of the frame's first buffer */
	__u32 left;		/* bytes to the end of the IP packet */
};

struct vlan_tag {
	__be16 tci;
	__be16 type;
};

struct gre_header {
	__be16 flags;
	__be16 protocol;
};

#define GRE_CHECKSUM 0x8000
#define GRE_ROUTING 0x4000
#define GRE_KEY 0x2000
#define GRE_SEQUENCE 0x1000
#define GRE_VERSION 0x0007
#define GRE_BYTES_MASK 0x1f	/* of all headers */

struct extension {
	__u8 next;
	__u8 length;
	__be16 offset;		/* of a fragment */
	__be32 id;
};

#define IP_DF 0x4000
#define IP_MF 0x2000
#define IP_OFFSET 0x1fff

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

/* Returns true if `bytes` more of the packet can be read. */
static __always_inline int has(const struct cursor *cursor, __u32 bytes)
{
	return cursor->left >= bytes && cursor->at + bytes <= cursor->end;
}

static __always_inline void skip(struct cursor *cursor, __u32 bytes)
{
	cursor->at += bytes;
	cursor->left -= bytes;
}

static __always_inline int tcp_flags_defect(__u8 flags)
{
	if (flags & TCP_SYN ? flags & (TCP_FIN | TCP_RST) : !(flags & (TCP_RST | TCP_ACK)))
		return 1;
	return (flags & TCP_FIN) && (flags & TCP_RST);
}

/* Parses a transport header at the payload of a packet, and moves the payload behind it. */
static __always_inline enum scrub_parsed parse_transport(struct scrub_packet *packet, void *start,
							  void *end)
{
	struct cursor cursor_of_payload = {
		.at = start + (packet->payload & PAYLOAD_MASK),
		.end = end,
		.left = packet->payload_length,
	}, *cursor = &cursor_of_payload;
	int first = packet->fragment & SCRUB_FIRST_FRAGMENT;
	enum scrub_parsed too_short = first ? SCRUB_TINY_FRAGMENT : SCRUB_TRUNCATED;

	if (packet->protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = cursor->at;
		__u32 length;

		if (!has(cursor, sizeof(*tcp)))
			return too_short;
		packet->sport = bpf_ntohs(tcp->source);
		packet->dport = bpf_ntohs(tcp->dest);
		packet->tcp_flags = ((__u8 *)tcp)[13];
		packet->seq = bpf_ntohl(tcp->seq);
		packet->ack = bpf_ntohl(tcp->ack_seq);
		length = tcp->doff * 4;
		if (length < sizeof(*tcp))
			return SCRUB_BAD_HEADER;
		if (cursor->left < length)
			return too_short;
		skip(cursor, length);
	} else if (packet->protocol == IPPROTO_UDP) {
		struct udphdr *udp = cursor->at;
		__u32 length;

		if (!has(cursor, sizeof(*udp)))
			return too_short;
		packet->sport = bpf_ntohs(udp->source);
		packet->dport = bpf_ntohs(udp->dest);
		length = bpf_ntohs(udp->len);
		if (length < sizeof(*udp) || (!first && length > cursor->left))
			return SCRUB_BAD_LENGTH;
		skip(cursor, sizeof(*udp));
	} else if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6) {
		__u8 *icmp = cursor->at;

		if (!has(cursor, 8))
			return too_short;
		packet->icmp_type = icmp[0];
		packet->icmp_code = icmp[1];
		skip(cursor, 8);
	} else {
		return SCRUB_PARSED;
	}
	packet->transport = packet->protocol;
	packet->payload = cursor->at - start;
	packet->payload_length = cursor->left;
	return SCRUB_PARSED;
}

/* Marks a fragment, of an offset in units of 8 bytes. */
static __always_inline enum scrub_parsed parse_fragment(struct scrub_packet *packet, __u32 offset,
							 int more, __u32 bytes)
{
	packet->fragment_offset = offset;
	packet->fragment_bytes = bytes;
	if (!offset) {
		if (more)
			packet->fragment |= SCRUB_FIRST_FRAGMENT;
		return SCRUB_PARSED;
	}
	packet->fragment |= SCRUB_LATER_FRAGMENT | (more ? 0 : SCRUB_LAST_FRAGMENT);
	if (offset * 8 + bytes > 65535)
		return SCRUB_BAD_LENGTH;
	return packet->protocol == IPPROTO_TCP && offset == 1 ? SCRUB_TINY_FRAGMENT : SCRUB_PARSED;
}

static __always_inline enum scrub_parsed parse_v4(struct scrub_packet *packet, struct cursor *cursor,
						  __u32 available)
{
	struct iphdr *ip = cursor->at;
	__u32 header, offset;

	if (cursor->at + sizeof(*ip) > cursor->end)
		return SCRUB_TRUNCATED;
	header = ip->ihl * 4;
	if (ip->version != 4 || header < sizeof(*ip))
		return SCRUB_BAD_HEADER;
	packet->version = 4;
	packet->length = bpf_ntohs(ip->tot_len);
	if (packet->length < header)
		return SCRUB_BAD_LENGTH;
	if (packet->length > available)
		return SCRUB_TRUNCATED;
	cursor->left = packet->length;
	packet->src_high = (__u64)bpf_ntohl(ip->saddr) << 32;
	packet->dst_high = (__u64)bpf_ntohl(ip->daddr) << 32;
	packet->protocol = ip->protocol;
	packet->ttl = ip->ttl;
	packet->dscp = ip->tos >> 2;
	skip(cursor, header);
	offset = bpf_ntohs(ip->frag_off);
	packet->fragment_id = bpf_ntohs(ip->id);
	if (offset & IP_DF)
		packet->fragment |= SCRUB_DONT_FRAGMENT;
	return parse_fragment(packet, offset & IP_OFFSET, offset & IP_MF, cursor->left);
}

/* Returns the length of an extension header in bytes. */
static __always_inline __u32 extension_length(__u8 protocol, const struct extension *extension)
{
	switch (protocol) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		return (extension->length + 1) * 8;
	case IPPROTO_AH:
		return (extension->length + 2) * 4;
	default:
		return sizeof(*extension);
	}
}

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_AH;
}

/* Returns true if an extension header of a packet is still to be parsed. */
static __always_inline int has_extension(const struct scrub_packet *packet)
{
	return packet->version == 6 && is_extension(packet->protocol) &&
	       !(packet->fragment & SCRUB_LATER_FRAGMENT);
}

static __always_inline enum scrub_parsed parse_v6(struct scrub_packet *packet, struct cursor *cursor,
						  __u32 available)
{
	struct ipv6hdr *ip = cursor->at;
	__be32 *word;

	if (cursor->at + sizeof(*ip) > cursor->end)
		return SCRUB_TRUNCATED;
	if (ip->version != 6)
		return SCRUB_BAD_HEADER;
	cursor->left = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (cursor->left > available)
		return SCRUB_TRUNCATED;
	packet->version = 6;
	packet->length = cursor->left > 65535 ? 65535 : cursor->left;
	word = ip->saddr.in6_u.u6_addr32;
	packet->src_high = (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
	packet->src_low = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	word = ip->daddr.in6_u.u6_addr32;
	packet->dst_high = (__u64)bpf_ntohl(word[0]) << 32 | bpf_ntohl(word[1]);
	packet->dst_low = (__u64)bpf_ntohl(word[2]) << 32 | bpf_ntohl(word[3]);
	packet->ttl = ip->hop_limit;
	packet->dscp = (ip->priority << 4 | ip->flow_lbl[0] >> 4) >> 2;
	packet->flow_label = (ip->flow_lbl[0] & 15) << 16 | ip->flow_lbl[1] << 8 | ip->flow_lbl[2];
	packet->protocol = ip->nexthdr;
	skip(cursor, sizeof(*ip));
	return SCRUB_PARSED;
}

/* Parses the extension header at the payload of a packet, and moves the payload behind it. */
static __always_inline enum scrub_parsed parse_extension(struct scrub_packet *packet, void *start,
							  void *end)
{
	struct extension *extension = start + (packet->payload & PAYLOAD_MASK);
	__u32 left = packet->payload_length, length, offset;
	__u8 protocol = packet->protocol;

	if (left < sizeof(*extension) || (void *)(extension + 1) > end)
		return SCRUB_TRUNCATED;
	length = extension_length(protocol, extension);
	if (left < length)
		return SCRUB_TRUNCATED;
	left -= length;
	packet->protocol = extension->next;
	packet->payload += length;
	packet->payload_length = left;
	if (protocol != IPPROTO_FRAGMENT)
		return SCRUB_PARSED;
	if (packet->fragment)
		return SCRUB_BAD_HEADER;
	offset = bpf_ntohs(extension->offset);
	packet->fragment_id = bpf_ntohl(extension->id);
	return parse_fragment(packet, offset >> 3, offset & 1, left);
}

/*
 * Returns true for a packet that a router sends to itself by a neighbor, and for the neighbor's copy of it: BFD Echo
 * (RFC 5881, 4). Its TTL shows that it comes from this link.
 */
static __always_inline int is_bfd_echo(const struct scrub_packet *packet)
{
	return packet->transport == IPPROTO_UDP && packet->dport == BFD_ECHO_PORT && packet->ttl >= BFD_ECHO_TTL;
}

/* Returns the first defect of parsed fields. */
static __always_inline enum scrub_parsed check_fields(const struct scrub_packet *packet)
{
	__u32 src = packet->src_high >> 32;

	if (packet->version == 4 ? src >> 28 == 14 || src >> 24 == 127 || src == 0xffffffff :
				   src >> 24 == 255 || (!packet->src_high && packet->src_low == 1))
		return SCRUB_BAD_SOURCE;
	if (packet->src_high == packet->dst_high && packet->src_low == packet->dst_low && !is_bfd_echo(packet))
		return SCRUB_SAME_ADDRESS;
	if (packet->transport == IPPROTO_TCP) {
		if (tcp_flags_defect(packet->tcp_flags))
			return SCRUB_BAD_FLAGS;
		if (!packet->sport || !packet->dport)
			return SCRUB_PORT_ZERO;
	}
	return packet->transport == IPPROTO_UDP && !packet->dport ? SCRUB_PORT_ZERO : SCRUB_PARSED;
}

/*
 * Parses the headers up to the transport header. The frame has `bytes`, the first of which are from `start` to
 * `end`.
 */
static __always_inline enum scrub_parsed parse_network(struct scrub_packet *packet, void *start, void *end,
					       __u32 bytes)
{
	struct cursor cursor = { .at = start, .end = end };
	struct ethhdr *ethernet = start;
	enum scrub_parsed result;
	__be16 type;
	__u32 available = bytes - sizeof(*ethernet);

	if (cursor.at + sizeof(*ethernet) > end)
		return SCRUB_TRUNCATED;
	type = ethernet->h_proto;
	cursor.at += sizeof(*ethernet);
#pragma unroll
	for (int i = 0; i < VLAN_TAGS_MAX; i++) {
		struct vlan_tag *tag = cursor.at;

		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		if (cursor.at + sizeof(*tag) > end)
			return SCRUB_TRUNCATED;
		if (i == 0)
			packet->vlan = bpf_ntohs(tag->tci) & 0xfff;
		packet->tags++;
		type = tag->type;
		cursor.at += sizeof(*tag);
		available -= sizeof(*tag);
	}
	packet->network = cursor.at - start;
	if (type == bpf_htons(ETH_P_IP))
		result = parse_v4(packet, &cursor, available);
	else if (type == bpf_htons(ETH_P_IPV6))
		result = parse_v6(packet, &cursor, available);
	else
		return SCRUB_NOT_IP;
	packet->payload = cursor.at - start;
	packet->payload_length = cursor.left;
	return result;
}

/* Returns the bytes of a GRE header (RFC 2784, RFC 2890); 0 if what is inside is not looked into. */
static __always_inline __u32 gre_bytes(const struct gre_header *gre)
{
	__u32 flags = bpf_ntohs(gre->flags);

	if (flags & (GRE_ROUTING | GRE_VERSION))
		return 0;
	if (gre->protocol != bpf_htons(ETH_P_IP) && gre->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	return sizeof(*gre) + (!!(flags & GRE_CHECKSUM) + !!(flags & GRE_KEY) + !!(flags & GRE_SEQUENCE)) * 4;
}

/*
 * Parses the IP header inside of a tunnel, whose fields replace the packet's. A packet that is not looked into stays.
 */
static __always_inline enum scrub_parsed parse_tunnel(struct scrub_packet *packet, void *start, void *end)
{
	struct cursor cursor = {
		.at = start + (packet->payload & PAYLOAD_MASK),
		.end = end,
		.left = packet->payload_length,
	};
	struct scrub_packet inner = { .vlan = packet->vlan, .tags = packet->tags, .tunnel = SCRUB_TUNNEL_IPIP };
	__be16 type = packet->protocol == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	enum scrub_parsed result = check_fields(packet);
	__u32 bytes = 0, is_v4;

	if (result != SCRUB_PARSED)
		return result;
	if (packet->protocol == IPPROTO_GRE) {
		struct gre_header *gre = cursor.at;

		if (!has(&cursor, sizeof(*gre)))
			return SCRUB_TRUNCATED;
		bytes = gre_bytes(gre);
		if (!bytes)
			return SCRUB_PARSED;
		/* The verifier of Linux 6.1 knows no bounds of a number behind a change of the order of bytes. */
		asm volatile("" : "+r"(bytes));
		bytes &= GRE_BYTES_MASK;
		type = gre->protocol;
		inner.tunnel = SCRUB_TUNNEL_GRE;
		if (gre->flags & bpf_htons(GRE_CHECKSUM))
			inner.gre_check = packet->payload + sizeof(*gre);
	}
	is_v4 = type == bpf_htons(ETH_P_IP);
	if (cursor.left < bytes + (is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)))
		return SCRUB_TRUNCATED;
	skip(&cursor, bytes);
	inner.network = cursor.at - start;
	*packet = inner;
	result = is_v4 ? parse_v4(packet, &cursor, cursor.left) : parse_v6(packet, &cursor, cursor.left);
	packet->payload = cursor.at - start;
	packet->payload_length = cursor.left;
	return result;
}

/* Returns true for one of these tunnels that can be looked into: fragments cannot. */
static __always_inline int is_tunnel(const struct scrub_packet *packet, __u32 tunnels)
{
	__u8 protocol = packet->protocol;

	if (packet->fragment & (SCRUB_FIRST_FRAGMENT | SCRUB_LATER_FRAGMENT))
		return 0;
	return (tunnels & SCRUB_TUNNEL_GRE && protocol == IPPROTO_GRE) ||
	       (tunnels & SCRUB_TUNNEL_IPIP && (protocol == IPPROTO_IPIP || protocol == IPPROTO_IPV6));
}

/*
 * Returns true for messages of IPv6 neighbor discovery (RFC 4861, 4). Inside of a tunnel, the hop limit does not show that
 * they come from a neighbor.
 */
static __always_inline int is_neighbor_discovery(const struct scrub_packet *packet)
{
	return !packet->tunnel && packet->version == 6 && packet->transport == IPPROTO_ICMPV6 && packet->ttl == 255 &&
	       packet->icmp_type >= 133 && packet->icmp_type <= 137 && !packet->icmp_code;
}

/* Returns a checksum after a change of one word (RFC 1624, 3). */
static __always_inline __be16 changed_checksum(__be16 check, __u16 old, __u16 new)
{
	__u32 sum = (__u16)~bpf_ntohs(check) + (__u16)~old + new;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return bpf_htons(~sum);
}

/* Sets the DSCP of a packet. */
static __always_inline void write_dscp(const struct scrub_packet *packet, void *start, void *end, __u8 dscp)
{
	__be16 *first = start + (packet->network & PAYLOAD_MASK);
	__be16 *gre_check = start + (packet->gre_check & PAYLOAD_MASK);
	struct iphdr *ip = (void *)first;
	__u32 old, new;

	if ((void *)(ip + 1) > end)
		return;
	old = bpf_ntohs(*first);
	if (packet->version == 6) {
		new = (old & 0xf03f) | dscp << 6;
		*first = bpf_htons(new);
		/* Of IPv4, the sum of the header stays. */
		if (packet->gre_check && (void *)(gre_check + 1) <= end)
			*gre_check = changed_checksum(*gre_check, old, new);
		return;
	}
	new = (old & 0xff03) | dscp << 2;
	*first = bpf_htons(new);
	ip->check = changed_checksum(ip->check, old, new);
}

#endif
