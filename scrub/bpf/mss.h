/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The MSS option of TCP (RFC 9293, 3.7.1), which is lowered so that segments fit into a tunnel. */
#ifndef SCRUB_MSS_H
#define SCRUB_MSS_H

#include "tcp_options.h"

/* Writes a lower MSS, and changes the checksum by the difference. `odd`: the option's offset in the header. */
static __always_inline void write_mss(struct tcphdr *tcp, __u8 *option, int odd, __u32 mss)
{
	__u32 old = option[2] << 8 | option[3], new = mss;

	if (old <= mss)
		return;
	option[2] = mss >> 8;
	option[3] = mss;
	/* At an odd offset, each byte counts in the other half of a word (RFC 1071, 2 B). */
	if (odd) {
		old = (old & 0xff) << 8 | old >> 8;
		new = (new & 0xff) << 8 | new >> 8;
	}
	tcp->check = changed_checksum(tcp->check, old, new);
}

/* Lowers the MSS of a SYN to at most this one. */
__noinline int scrub_lower_mss(struct xdp_md *ctx, struct scrub_packet *packet, __u32 mss)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 offset, length;
	struct tcphdr *tcp;

	if (!packet)
		return 0;
	offset = tcp_offset(packet, start, end);
	tcp = start + (offset & PAYLOAD_MASK);
	if (!offset || (void *)(tcp + 1) > end)
		return 0;
	length = tcp->doff * 4;
	packet->option = sizeof(*tcp);
	for (int i = 0; i < OPTIONS_MAX; i++) {
		/* From memory, so that the verifier has one state for all places. */
		__u32 at = *(volatile __u16 *)&packet->option;
		__u8 *option = (void *)tcp + (at & 63);

		if (at + OPTION_MSS_BYTES > length || (void *)(option + OPTION_MSS_BYTES) > end)
			return 0;
		if (option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_NOP) {
			*(volatile __u16 *)&packet->option = at + 1;
			continue;
		}
		if (option[0] == OPTION_MSS && option[1] == OPTION_MSS_BYTES) {
			write_mss(tcp, option, at & 1, mss);
			return 1;
		}
		if (option[1] < 2)
			return 0;
		*(volatile __u16 *)&packet->option = at + option[1];
	}
	return 0;
}

#endif
