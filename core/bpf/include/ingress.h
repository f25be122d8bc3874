/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the resident program and its users share. The Rust side is checked against these
 * layouts (core/src/xdp/resident/shared.rs).
 */
#ifndef SLUICE_INGRESS_H
#define SLUICE_INGRESS_H

/* Changes with every layout or meaning here: users of another version keep away. */
#define SLUICE_VERSION 5

/*
 * Stages. Places 0 to 31 hold programs, one owner each, run from the lowest up: each passes on to the
 * next that is present, the last to the end. The end looks at marks: forward, direct, drop.
 *
 *	0..7	mirrors		copy matching packets, and pass on
 *	8	scrubber	none yet
 *	15	flows		of the host: pass them, past the claims
 *	16..31	claims		take matching packets
 *	32..47	counters	read the end's counters: no program and no mark, only an owner
 *	58	turn		no program: who wants everything has it owned while it looks whether
 *				somebody has that, and takes a place
 *	59	ingress		the resident program, where a program that reads what the driver
 *			knows runs before it and goes on here
 *	60	forward		the end has everything go out by another interface: no program,
 *				only a mark
 *	61	drop		the end drops everything: no program, only a mark
 *	62	direct		the end gives everything to `direct`: no program, only a mark.
 *				Who has which queue has a place of the claims, and counts there
 *	63	end		what nobody took
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
	SLUICE_TURN = 58,
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
	 * Of each receive queue, the place of who gets all its packets by `sluice_direct`; 0 if
	 * nobody does. Only whose place it is writes, or who has found its owner dead.
	 */
	__u8 direct[SLUICE_QUEUES_MAX];
};

/*
 * What one CPU counted at one stage; only that CPU writes. Entry [cpu * SLUICE_STAGES + stage]
 * of `sluice_tallies`. The end's counts all packets that came, and what the end itself dropped.
 * No count ever goes back: who takes a place notes what stood there (struct sluice_owner).
 */
struct sluice_tally {
	__u64 packets;		/* that matched; of the end: that came */
	__u64 bytes;		/* of these, on the wire, without the frame check sequence */
	__u64 taken;		/* redirected to a socket or an interface, or copied */
	__u64 missed;		/* to be taken, but there was no socket or no room */
	__u64 dropped;		/* on demand */
	__u64 dropped_bytes;
	__u64 reserved[2];
} __attribute__((aligned(64)));

/* Who has a stage, for people to read; zeros if nobody. */
struct sluice_owner {
	__u64 since_ns;		/* CLOCK_REALTIME */
	__u32 pid;
	__u32 first_queue;
	__u32 queues;
	__u32 kind;		/* enum sluice_kind */
	char command[16];
	__u64 reserved[3];
	struct sluice_tally before; /* what the place had counted when it was taken */
	char filter[384];	/* cut if longer; ends with a NUL */
};

enum sluice_kind {
	SLUICE_KIND_NONE,
	SLUICE_KIND_TAKE,	/* to sockets */
	SLUICE_KIND_DROP,
	SLUICE_KIND_PASS,	/* counted only */
	SLUICE_KIND_MIRROR,
	SLUICE_KIND_FORWARD,	/* out by another interface */
};

#endif
