/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Memory shared between the resident program and its users. The Rust side asserts these layouts
 * (core/src/xdp/resident/shared.rs and stage.rs).
 */
#ifndef SLUICE_INGRESS_H
#define SLUICE_INGRESS_H

/* Changes with the layout, or a meaning, of what is here: users of different versions cannot share a program. */
#define SLUICE_VERSION 6

/*
 * Stages. 0 to 31 hold programs with one owner each, run from the lowest up: each tail-calls the next
 * present one, the last calls the end if a mark is set. The end acts on marks: forward, direct, drop.
 *
 *	0..7	mirrors		copy matching packets, or inspect all, and pass them on
 *	8	scrub		drops packets of attacks, and passes the others on by `resume`
 *	9..14	unused
 *	15	flows		pass packets of the host's flows, before the claims
 *	16..31	claims		take, drop, redirect or count matching packets, unfiltered last
 *	32..47	counters	no program: the owner reads the end's counters
 *	57	resume		the resident program's part behind the scrub stage, tail-called by it
 *	58	claim lock	no program: the owner may take a stage depending on the others
 *	59	ingress		the resident program, tail-called by the metadata reader before it
 *	60	forward		mark of an owner: the end redirects everything to another interface
 *	61	drop		mark of an owner: the end drops everything
 *	62	direct		mark: the end redirects to the sockets of `direct`, whose owners
 *				count at their claim stages
 *	63	end		handles packets that no stage took
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
	SLUICE_RESUME = 57,
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
	__u32 kept;		/* the scrub stage stays without a living owner */
	/*
	 * For each receive queue, the claim stage that gets all its packets by `sluice_direct`; 0 for
	 * none. Only the stage's owner writes it, or the process that cleans up after the owner.
	 */
	__u8 direct[SLUICE_QUEUES_MAX];
};

/*
 * Counters of one stage on one CPU; only that CPU writes them. Entry [cpu * SLUICE_STAGES + stage]
 * of `sluice_tallies`. The end's entry counts all received packets, and those that the end dropped.
 * Counters never decrease: a new owner records their values (struct sluice_owner).
 */
struct sluice_tally {
	__u64 packets;		/* that matched; at the end: all received */
	__u64 bytes;		/* of these packets on the wire, without the frame check sequence */
	__u64 taken;		/* redirected to a socket or an interface, or copied */
	__u64 missed;		/* not taken: no socket, or no room */
	__u64 dropped;		/* by the owner's request */
	__u64 dropped_bytes;
	__u64 reserved[2];
} __attribute__((aligned(64)));

/* Owner of a stage, for display; zeros without an owner. */
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
	SLUICE_KIND_SCRUB,	/* drops some, passes the others on */
};

#endif
