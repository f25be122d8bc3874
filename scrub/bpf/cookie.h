/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cookies: numbers of a challenge that a client returns, which nobody can guess. An epoch is 69 s; the last one's are
 * valid, too.
 */
#ifndef SCRUB_COOKIE_H
#define SCRUB_COOKIE_H

#include "packet.h"

#define EPOCH_BITS 36		/* of time in ns: 69 s */

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

/*
 * Returns SipHash-1-3 of a packet's addresses and ports, and an epoch; with `has_number` also of a number.
 */
static __always_inline __u64 packet_hash(const struct scrub_packet *packet, __u64 epoch, int has_number, __u64 number,
					 __u64 key0, __u64 key1)
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
	if (has_number) {
		bytes += 8;
		SIP_WORD(number);
	}
	SIP_WORD(bytes << 56);
	c ^= 0xff;
	SIP_ROUND(a, b, c, d);
	SIP_ROUND(a, b, c, d);
	SIP_ROUND(a, b, c, d);
	return a ^ b ^ c ^ d;
}

static __always_inline __u64 cookie_of(const struct scrub_packet *packet, __u64 epoch, __u64 key0, __u64 key1)
{
	return packet_hash(packet, epoch, 0, 0, key0, key1);
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

#endif
