/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SYN cookies of the kernel, for kernels before Linux 6.9:
 *
 *	SYN -> XDP: bpf_tcp_gen_syncookie -> SYN-ACK with the number, and an MSS alone
 *	ACK -> XDP: bpf_tcp_check_syncookie? -> the flow is known -> the listener accepts
 *
 * The helpers get headers in memory, not the frame's: those have no tags, and no extensions or options to be skipped.
 * The kernel accepts one number of 2^29, so that one does not verify its source. It encodes other options in timestamps
 * with a secret offset, so answers have none.
 *
 * The number is valid, too, with a later packet, if both sides have sent as many bytes as the other. Only a packet that
 * comes behind the end of its connection begins another one by it.
 *
 * bpf_tcp_raw_gen_syncookie_* needs no socket, but does not tell the listener that cookies may come back: then the
 * kernel rejects them.
 */
#ifndef SCRUB_KERNEL_COOKIE_H
#define SCRUB_KERNEL_COOKIE_H

#include "answer.h"
#include "handover_settings.h"
#include "syncookie.h"

/* The headers of a packet. */
struct cookie_headers {
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	};
	struct answer_tcp tcp;
	__be32 mss;		/* an option, of SYNs */
};

#define ACK_BYTES sizeof(struct answer_tcp)
#define SYN_BYTES (ACK_BYTES + OPTION_MSS_BYTES)

/* The headers that a CPU works on, spared from the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cookie_headers);
} scrub_headers SEC(".maps");

struct scrub_handover handover SEC(".data.handover");

/* Writes the fields of a packet that cookies depend on. */
static __always_inline void fill_headers(struct cookie_headers *headers, const struct scrub_packet *packet,
					 __u32 tcp_bytes)
{
	/* Both versions are the upper half of the first byte. */
	*(__u8 *)headers = packet->version << 4;
	if (packet->version == 4) {
		headers->v4.saddr = bpf_htonl(packet->src_high >> 32);
		headers->v4.daddr = bpf_htonl(packet->dst_high >> 32);
	} else {
		write_address(headers->v6.saddr.in6_u.u6_addr32, packet->src_high, packet->src_low);
		write_address(headers->v6.daddr.in6_u.u6_addr32, packet->dst_high, packet->dst_low);
	}
	headers->tcp.sport = bpf_htons(packet->sport);
	headers->tcp.dport = bpf_htons(packet->dport);
	headers->tcp.seq = bpf_htonl(packet->seq);
	headers->tcp.ack = bpf_htonl(packet->ack);
	headers->tcp.offset = tcp_bytes / 4 << 4;
	headers->tcp.flags = packet->tcp_flags;
}

/*
 * Sets the sequence number that answers a SYN by a cookie, whose listener then accepts cookies for two minutes. Returns
 * false if no listener waits for it, or has no room for a connection, or net.ipv4.tcp_syncookies is not 2.
 */
static __always_inline int kernel_cookie(struct xdp_md *ctx, const struct scrub_packet *packet, __u32 mss, __u32 *number)
{
	struct cookie_headers *headers;
	struct bpf_sock *socket;
	__s64 cookie = -1;
	__u32 zero = 0;

	headers = bpf_map_lookup_elem(&scrub_headers, &zero);
	if (!headers)
		return 0;
	fill_headers(headers, packet, SYN_BYTES);
	headers->mss = bpf_htonl(OPTION_MSS << 24 | OPTION_MSS_BYTES << 16 | mss);
	socket = socket_of(ctx, packet);
	if (!socket)
		return 0;
	if (socket->state == BPF_TCP_LISTEN)
		cookie = bpf_tcp_gen_syncookie(socket, headers, sizeof(headers->v6), (void *)&headers->tcp, SYN_BYTES);
	bpf_sk_release(socket);
	*number = cookie;
	return cookie >= 0;
}

/* Returns true if a packet acknowledges a cookie. The first one of a connection has no data, and counts. */
static __always_inline int acknowledged_kernel_cookie(struct xdp_md *ctx, const struct scrub_packet *packet)
{
	struct cookie_headers *headers;
	struct bpf_sock *socket;
	__u32 zero = 0;
	int found = 0;

	headers = bpf_map_lookup_elem(&scrub_headers, &zero);
	if (!headers)
		return 0;
	fill_headers(headers, packet, ACK_BYTES);
	socket = socket_of(ctx, packet);
	if (!socket)
		return 0;
	if (socket->state == BPF_TCP_LISTEN)
		found = !bpf_tcp_check_syncookie(socket, headers, sizeof(headers->v6), (void *)&headers->tcp, ACK_BYTES);
	bpf_sk_release(socket);
	if (found && !packet->payload_length)
		__sync_fetch_and_add(&handover.connections, 1);
	return found;
}

#endif
