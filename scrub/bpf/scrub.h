/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Memory shared between the scrubber's program and user space; src/program has the layouts in Rust. */
#ifndef SCRUB_H
#define SCRUB_H

#include "rules.h"
#include "sets.h"
#include "tcp.h"

/* Counters, in the order of src/counters.rs. */
enum scrub_counter {
	SCRUB_COUNT_DEFECTS = 0,	/* enum scrub_parsed */
	SCRUB_COUNT_NOT_IP = SCRUB_DEFECTS,
	SCRUB_COUNT_NEIGHBOR,
	SCRUB_COUNT_UNPROTECTED,
	SCRUB_COUNT_FRAGMENT,
	SCRUB_COUNT_DEFAULT_PASS,
	SCRUB_COUNT_DEFAULT_DROP,
	SCRUB_COUNT_CHALLENGE,	/* a SYN was answered */
	SCRUB_COUNT_FIRST_SYN,
	SCRUB_COUNT_CHALLENGE_ANSWERED,
	SCRUB_COUNT_UNKNOWN_FLOW,
	SCRUB_COUNT_FIRST_PASSED, /* a later fragment follows the first one */
	SCRUB_COUNT_FIRST_DROPPED,
	SCRUB_COUNT_CONTRADICTED,
	SCRUB_COUNT_CHALLENGE_A2S, /* a query was answered */
	SCRUB_COUNT_CHALLENGE_DNS,
	SCRUB_COUNT_CACHED_A2S,	/* a query with a cookie was answered */
	SCRUB_COUNT_RETURN_EXPIRED = 30,
	SCRUB_COUNT_RETURN_TOO_LONG,
	SCRUB_COUNT_SETS = 32,		/* 64 sets */
	SCRUB_COUNT_CLASSES = 96,	/* 32 amplification classes */
	SCRUB_COUNT_LIMITS = 128,	/* 1,024 limits */
	SCRUB_COUNT_RULES = 1152,	/* 16,384 rules */
	SCRUB_COUNTERS = 17536,
};

struct scrub_count {
	__u64 packets, bytes;
};

/* A policy's parameters, and the filter of rules. */
struct scrub_params {
	__u64 pass_sets, drop_sets;
	/* The first lines of tables. */
	__u32 actions;		/* struct scrub_action of each rule */
	__u32 limits;		/* struct scrub_limit of each limit */
	__u32 profiles;		/* struct scrub_profile, PROFILE_LINES each */
	__u32 ports;		/* of amplification: a class for each port, from 1; 0 for none */
	__u32 classes;		/* struct scrub_amplification */
	__u32 tunnels;		/* that are looked into: enum scrub_tunnel */
	struct scrub_set_params sets;
	struct scrub_rule_params rules;
	struct scrub_rule_filter filter;
};

/* Limits of one rule, class or profile. */
#define LIMITS_MAX 4

/* A range of limits. */
struct scrub_limit_list {
	__u16 first;
	__u16 count;		/* 0 for none */
};

enum scrub_rule_action {
	SCRUB_RULE_CONTINUE,	/* or a list of limits */
	SCRUB_RULE_PASS,
	SCRUB_RULE_DROP,
	SCRUB_RULE_CHALLENGE_A2S,
	SCRUB_RULE_CHALLENGE_DNS,
};

#define NO_MARK 0xff

/* A rule's action, four in a line. */
struct scrub_action {
	union {
		struct scrub_limit_list limits;
		__u32 cache_ms;	/* of a challenge: how long answers are used; 0 for none */
	};
	__u32 sample;		/* 1 in this number; 0 for none */
	__u16 counter;		/* from SCRUB_COUNT_RULES on */
	__u8 kind;		/* enum scrub_rule_action */
	__u8 mark;		/* DSCP, or NO_MARK */
	__u32 above;		/* of a challenge: queries in a second; 0 for always */
};

enum scrub_fragment_action {
	SCRUB_FRAGMENTS_FOLLOW,	/* the first one; all others go on */
	SCRUB_FRAGMENTS_KNOWN,	/* the first one; all others are dropped */
	SCRUB_FRAGMENTS_DROP,	/* all are dropped */
};

#define PROFILE_LINES 3
#define CLASS_DROP 0xffff	/* as `first` of a class's list of limits, with a count of 0 */

/* The head of a profile; its other two lines are a struct scrub_limit_list for each class. */
struct scrub_profile {
	struct scrub_limit_list limits;
	__u8 fragments;		/* enum scrub_fragment_action */
	__u8 drop;		/* the default */
	__u16 reserved;
	struct scrub_tcp tcp;
	__u64 reserved2[3];
};

/* An amplification class, eight in a line. */
struct scrub_amplification {
	__u16 min_payload;
	__u8 has_byte;
	__u8 offset;
	__u8 mask, value;
	__u16 reserved;
};

/* How the program works, whatever the policy. */
struct scrub_control {
	__u64 now;		/* in ns; 0 for the kernel's clock */
	__u32 generation;	/* 0 without a policy; the lowest bit is the side of its parameters and tables */
	__u32 monitor;		/* nothing is dropped */
	__u32 resident;		/* acts without a living owner */
	__u32 fail_closed;	/* drops everything without a living owner */
	__u32 sample_dropped;	/* 1 in this number; 0 for none */
	__u32 sample_passed;
	__u32 limit_mask;	/* lines of limits and of verified sources less one */
	__u32 flow_mask;	/* lines of flows less one */
	__u64 secrets[KEY_WORDS];	/* of the keys of limits, sources, flows, SYNs and meters */
	__u64 cookie_key[2];
	__u64 learn_until;	/* in ns; before, packets of unknown flows pass */
	__u64 stages;		/* of how many interfaces; for user space */
	__u64 segments;		/* of the present image; for user space */
};

/* The section of the one that all programs share; src/program/mod.rs has its name. */
#define SCRUB_CONTROL ".data.scrub6"

/* Leads a sampled frame. */
struct scrub_sample {
	__u64 time;		/* CLOCK_MONOTONIC, in ns */
	__u32 frame_bytes;
	__u16 counter;		/* the cause */
	__u16 rule;		/* the counter of the rule that sampled it; 0 for none */
	__u8 dropped;
	__u8 reserved[7];
};

#endif
