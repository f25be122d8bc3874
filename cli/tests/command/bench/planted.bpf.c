// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A forwarder whose faults are planted: what comes in leaves by the interface OUT.
 *
 *	EACH		one packet in EACH is lost; 0: none
 *	PERIOD_NS	so long after one the next may pass, on average; 0: at once
 *	DEPTH		packets that may pass early, less those that did
 *
 * What is not IPv4 is the host's, and is not counted. The interface has one queue, so that nobody
 * else has these numbers at the same time.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

enum { XDP_DROP = 1, XDP_PASS = 2 };

/* As linux/bpf.h has it. */
struct xdp_md {
	u32 data;
	u32 data_end;
};

static u64 (*const ktime_get_ns)(void) = (void *)5;
static long (*const redirect)(u32 ifindex, u64 flags) = (void *)23;

static u64 packets;
/* When the bucket is full again, in ns. */
static u64 full_at;

__attribute__((section("xdp"), used)) int forward(struct xdp_md *context)
{
	const unsigned char *data = (const unsigned char *)(long)context->data;

	if (data + 14 > (const unsigned char *)(long)context->data_end ||
	    data[12] != 0x08 || data[13] != 0x00)
		return XDP_PASS;
	if (EACH && ++packets % EACH == 0)
		return XDP_DROP;
	if (PERIOD_NS) {
		u64 now = ktime_get_ns();

		if (full_at < now)
			full_at = now;
		if (full_at - now > (DEPTH - 1ULL) * PERIOD_NS)
			return XDP_DROP;
		full_at += PERIOD_NS;
	}
	return redirect(OUT, 0);
}

char _license[] __attribute__((section("license"), used)) = "GPL";
