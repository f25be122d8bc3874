/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Settings of hand-over, as src/program/handover.rs writes them. */
#ifndef SCRUB_HANDOVER_SETTINGS_H
#define SCRUB_HANDOVER_SETTINGS_H

/* When the kernel gets the connections of clients that were challenged. */
enum scrub_handover_mode {
	SCRUB_HANDOVER_OFF,
	SCRUB_HANDOVER_AUTO,	/* if no firewall may drop their first packet */
	SCRUB_HANDOVER_ON,
};

/* The SYN cookies in answers; the kernel completes their connections. */
enum scrub_cookies {
	SCRUB_COOKIES_NONE,
	SCRUB_COOKIES_OWN,	/* by handover.bpf.c at tc (Linux 6.9) */
	SCRUB_COOKIES_KERNEL,	/* its own: kernel_cookie.h */
};

/* Settings of this host: a bit for each mode that is possible, and these. */
#define HANDOVER_TIMESTAMPS 0x08
#define HANDOVER_SCALE 0x10
#define HANDOVER_SACK 0x20
#define HANDOVER_ECN 0x40
#define HANDOVER_SCALE_SHIFT 8	/* of the server's window scale */

/* Memory shared by the XDP program, the program at tc and user space. */
struct scrub_handover {
	__u64 until;		/* in ns: after, no cookie is valid */
	__u64 settings;
	__u64 connections;	/* that the kernel got */
};

#endif
