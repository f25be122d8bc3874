/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Memory shared between the resident program and its users. The Rust side asserts these layouts
 * (core/src/xdp/resident/shared.rs and stage.rs).
 */
#ifndef SLUICE_INGRESS_H
#define SLUICE_INGRESS_H

/* Changes with every layout or meaning here: users of different versions share no program. */
#define SLUICE_VERSION 5

/*
 * Stages. 0 to 31 hold programs with one owner each, run from the lowest up: each tail-calls the next
 * present one, the last calls the end. The end acts on marks: forward, direct, drop.
 *
 *	0..7	mirrors		copy matching packets, and pass on
 *	8	scrubber	none yet
 *	15	flows		of the host: passed, before the claims
 *	16..31	claims		take matching packets
 *	32..47	counters	read the end's counters: only an owner
 *	58	claim lock	for taking a stage that depends on others: only an owner
 *	59	ingress		the resident program, called by a metadata reader before it
 *	60	forward		mark: the end redirects everything to another interface
 *	61	drop		mark: the end drops everything
 *	62	direct		mark: the end redirects to the sockets of `direct`, whose owners
 *				count at their claim stages
 *	63	end		what no stage took
 */
enum sluice_stage {
	SLUICE_MIRRORS = 0,
	SLUICE_MIRRORS_MAX = 8,
	SLUICE_SCRUB = 8,
	SLUICE_FLOWS = 15,
	SLUICE_CLAIMS = 16,
	SLUICE_CLAIMS_MAX = 16,
	SLUICE_COUNTERS = 32,
	SLUICE_COUNTERS_MAX = 16,
	SLUICE_CLAIM_LOCK = 58,
	SLUICE_INGRESS = 59,
	SLUICE_FORWARD = 60,
	SLUICE_DROP = 61,
	SLUICE_DIRECT = 62,
	SLUICE_END = 63,
	SLUICE_STAGES = 64,
};

/* Receive queues that a map of sockets has room for. */
#define SLUICE_QUEUES_MAX 256

/* One value, mapped into every user's memory. */
struct sluice_control {
	__u32 version;		/* SLUICE_VERSION */
	__u32 frags;		/* loaded for frames of several buffers */
	__u64 present;		/* a bit for each stage to run; users change it atomically */
	__u32 detached;		/* the program was detached from the interface */
	__u32 reserved;
	/*
	 * For each receive queue, the claim stage that gets all its packets by `sluice_direct`; 0 for
	 * none. Only the stage's owner writes it, or the process that cleans up after that.
	 */
	__u8 direct[SLUICE_QUEUES_MAX];
};

/*
 * What one CPU counted at one stage; only that CPU writes. Entry [cpu * SLUICE_STAGES + stage]
 * of `sluice_tallies`. The end's counts all packets that came, and those the end itself dropped.
 * Counters never decrease: a new owner notes their values (struct sluice_owner).
 */
struct sluice_tally {
	__u64 packets;		/* that matched; of the end: that came */
	__u64 bytes;		/* of these, on the wire, without the frame check sequence */
	__u64 taken;		/* redirected to a socket or an interface, or copied */
	__u64 missed;		/* to be taken, without a socket or room for it */
	__u64 dropped;		/* on demand */
	__u64 dropped_bytes;
	__u64 reserved[2];
} __attribute__((aligned(64)));

/* Owner of a stage, for people to read; zeros without one. */
struct sluice_owner {
	__u64 since_ns;		/* CLOCK_REALTIME */
	__u32 pid;
	__u32 first_queue;
	__u32 queues;
	__u32 kind;		/* enum sluice_kind */
	char command[16];
	__u64 reserved[3];
	struct sluice_tally before; /* the stage's counters when it was taken */
	char filter[384];	/* truncated if longer; ends with a NUL */
};

enum sluice_kind {
	SLUICE_KIND_NONE,
	SLUICE_KIND_TAKE,	/* to sockets */
	SLUICE_KIND_DROP,
	SLUICE_KIND_PASS,	/* counted only */
	SLUICE_KIND_MIRROR,
	SLUICE_KIND_FORWARD,	/* to another interface */
};

#endif
