// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A program at the scrub stage, for the tests: drops frames of the experimental ethertype 0x88b5 whose
 * kind, a byte behind the header and a number of 4 bytes, is the chosen one.
 */
#include "chain.h"

#include <bpf/bpf_endian.h>

const volatile struct {
	__u8 dropped_kind;
	__u8 kept;		/* acts without a living owner */
} options = {};

struct test_frame {
	__u8 addresses[12];
	__be16 ethertype;
	__u8 number[4];
	__u8 kind;
} __attribute__((packed));

SEC("xdp")
int scrub_test(struct xdp_md *ctx)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct test_frame *frame = start;
	struct sluice_tally *tally = tally_of(SLUICE_SCRUB);
	__u64 bytes = end - start;

	if (!tally || (!options.kept && !is_alive(SLUICE_SCRUB)))
		return sluice_resume(ctx);
	tally->packets++;
	tally->bytes += bytes;
	if ((void *)(frame + 1) > end ||
	    frame->ethertype != bpf_htons(0x88b5) || frame->kind != options.dropped_kind)
		return sluice_resume(ctx);
	tally->dropped++;
	tally->dropped_bytes += bytes;
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
