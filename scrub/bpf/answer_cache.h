/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The cache of answers that this host's game servers send to A2S queries.
 *
 *	query of a proven source -> XDP (cached_answer.h): a fresh answer? -> sent by XDP_TX, if the query has a cookie
 *	                             `-- none: takes an entry, and goes on to the server
 *	answer of the server -> tc (answer_cache.bpf.c): fills the entry
 *
 * An entry belongs to the answers of one server to one kind of query, until its time has passed. It is never taken from a
 * living key, and only queries of proven sources take one.
 */
#ifndef SCRUB_ANSWER_CACHE_H
#define SCRUB_ANSWER_CACHE_H

#include "scrub.h"

#define CACHE_ENTRIES 1024
#define CACHE_TRIES 8		/* entries that a key may have */
#define CACHED_MIN 6		/* bytes of an empty list of players */
#define CACHED_MAX 1400		/* servers split longer answers */
#define CACHED_WORDS (CACHED_MAX / 4 + 1)
#define CACHE_WAIT_TIME SECOND		/* for the answer to a query */
#define CACHE_HOLD_TIME (61 * SECOND)	/* longer than any rule uses an answer */
#define CACHE_REFRESH_TIME (50 * MS)	/* shorter than any rule does */
#define SALT_ANSWER 0x616e73776572ULL

struct cached_answer {
	__u64 key;
	__u64 until;		/* in ns: after, another key may take the entry */
	__u64 time;		/* of the answer, in ns; 0 without */
	__u32 version;		/* odd while it is written */
	__u32 length;		/* of the payload */
	__u32 sum;		/* of the payload's 16-bit words */
	__be32 payload[CACHED_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CACHE_ENTRIES);
	__type(key, __u32);
	__type(value, struct cached_answer);
} scrub_answers SEC(".maps");

/* Memory shared by the XDP program and the program at tc. */
struct scrub_cache {
	__u64 until;		/* in ns: after, no query waits for an answer */
};

struct scrub_cache answer_cache SEC(".data.cache");

/* Returns the key of a server's answers to a kind of query: 'T', 'U' or 'V'. */
static __always_inline __u64 answer_key(__u64 high, __u64 low, __u32 version, __u32 port, __u32 kind,
					const __u64 *secrets)
{
	return slot_key(high ^ version, low, SALT_ANSWER ^ (__u64)kind << 16 ^ port, secrets);
}

/* Returns one of the entries that a key may have. */
static __always_inline struct cached_answer *answer_at(__u64 key, __u32 number)
{
	__u32 at = ((__u32)(key >> 32) + number) & (CACHE_ENTRIES - 1);

	return bpf_map_lookup_elem(&scrub_answers, &at);
}

/* Returns the entry of a key; NULL if it has none. */
static __always_inline struct cached_answer *find_answer(__u64 key)
{
	for (__u32 number = 0; number < CACHE_TRIES; number++) {
		struct cached_answer *answer = answer_at(key, number);

		if (answer && *(volatile __u64 *)&answer->key == key)
			return answer;
	}
	return 0;
}

/*
 * Returns a length if an answer may have it, else 0. The verifier must see the limits of the register: Linux 7.2 refuses to
 * copy 0 bytes, and 6.12 does not see limits of what was computed before the comparison.
 */
static __always_inline __u32 checked_length(__u32 length)
{
	__u32 last = length - 1;

	asm volatile("" : "+r"(last));
	if (last >= CACHED_MAX)
		return 0;
	asm volatile("" : "+r"(last));
	return last + 1;
}

/* Begins to write an entry. Returns false while another CPU does. Pairs with read_version(). */
static __always_inline int begin_write(struct cached_answer *answer)
{
	__u32 version = *(volatile __u32 *)&answer->version;

	return !(version & 1) && __sync_val_compare_and_swap(&answer->version, version, version + 1) == version;
}

static __always_inline void end_write(struct cached_answer *answer)
{
	__u32 version = *(volatile __u32 *)&answer->version;

	/* Orders the writes before it, as a plain write does not. Pairs with read_version(). */
	__sync_val_compare_and_swap(&answer->version, version, version + 1);
}

/* Returns the version of an entry, in order with the reads before and after. Pairs with begin_write() and end_write(). */
static __always_inline __u32 read_version(struct cached_answer *answer)
{
	return __sync_val_compare_and_swap(&answer->version, 0, 0);
}

#endif
