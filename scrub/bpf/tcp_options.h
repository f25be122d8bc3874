/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The options of TCP's header (RFC 9293, 3.1), and where they are. */
#ifndef SCRUB_TCP_OPTIONS_H
#define SCRUB_TCP_OPTIONS_H

#include "packet.h"

#define OPTIONS_MAX 40		/* bytes */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MSS 2
#define OPTION_MSS_BYTES 4
#define OPTION_SCALE 3
#define OPTION_SACK 4
#define OPTION_TIMESTAMPS 8
#define OPTION_MD5 19
#define OPTION_AUTHENTICATION 29

/* Returns the offset of a TCP header in the frame; 0 behind extension headers of IPv6, where no SYN is expected. */
static __always_inline __u32 tcp_offset(const struct scrub_packet *packet, void *start, void *end)
{
	__u32 network = packet->network & PAYLOAD_MASK;
	struct ipv6hdr *v6 = start + network;
	struct iphdr *v4 = start + network;

	if ((void *)(v4 + 1) > end)
		return 0;
	if (packet->version == 4)
		return network + v4->ihl * 4;
	if ((void *)(v6 + 1) > end || v6->nexthdr != IPPROTO_TCP)
		return 0;
	return network + sizeof(*v6);
}

#endif
