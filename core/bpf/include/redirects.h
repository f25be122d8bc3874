/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the redirect counter and its user share (core/src/xdp/redirects.rs, which reads the counters by
 * their order here).
 */
#ifndef SLUICE_REDIRECTS_H
#define SLUICE_REDIRECTS_H

/* Senders of one process. */
#define SLUICE_SENDERS_MAX 4096

/* What the kernel did with the frames that one sender redirected. */
struct sluice_redirects {
	__u64 sent;		/* the driver took it */
	__u64 dropped;		/* the driver had no room */
	__u64 too_long;		/* longer than the MTU: EMSGSIZE */
	__u64 down;		/* the interface was down: ENETDOWN */
	__u64 unsupported;	/* the driver takes no redirected frames: ENXIO, EOPNOTSUPP */
	__u64 failed;		/* any other error */
	__u64 reserved[2];	/* a cache line for each sender */
};

/* A forwarder's two interfaces, of one network namespace. */
struct sluice_path {
	__u32 netns;		/* inode number of the namespace */
	__u32 from;		/* interface indices */
	__u32 to;
};

/* An entry of a map of interfaces. */
struct sluice_exit {
	__u32 map;		/* id of the map */
	__u32 key;
};

#endif
