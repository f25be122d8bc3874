// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counts the fate of frames that XDP redirected, for each sender of one process. An interface's own
 * counters do not suffice: they include all packets, and miss frames that never reached the driver.
 * core/src/xdp/redirects.rs reads the counters by their order here.
 *
 *	frame -> bpf_redirect_map --error--> xdp_redirect_err: one frame
 *			|
 *			`-> bulk of at most 16 -> driver -> xdp_devmap_xmit: sent, drops, err
 *
 * A bulk belongs to a sender of live frames if the current thread is marked as one and the frames
 * come from the loopback interface: of all redirected frames only live ones do (net/bpf/test_run.c),
 * also in a softirq that interrupts the thread. A bulk belongs to a forwarder by its two interfaces,
 * and may hold frames of others that redirect between the two.
 *
 * Sources: include/trace/events/xdp.h, kernel/bpf/devmap.c (bq_xmit_all). Linux 5.13.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>

/* The first interface of every namespace (include/linux/netdevice.h). */
#define LOOPBACK_IFINDEX 1

/* Senders of one process. */
#define SLUICE_SENDERS_MAX 4096

/* Fate of the frames that one sender redirected. */
struct sluice_redirects {
	__u64 sent;		/* the driver accepted the frame */
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

/* An entry of a DEVMAP. */
struct sluice_exit {
	__u32 map;		/* id of the map */
	__u32 key;
};

#define KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} KERNEL;

/* Counters; key: a sender's number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLUICE_SENDERS_MAX);
	__type(key, __u32);
	__type(value, struct sluice_redirects);
} sluice_counts SEC(".maps");

/* Threads that send live frames; value: the sender's number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLUICE_SENDERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sluice_threads SEC(".maps");

/* Forwarders; value: the sender's number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLUICE_SENDERS_MAX);
	__type(key, struct sluice_path);
	__type(value, __u32);
} sluice_paths SEC(".maps");

/* DEVMAP entries that senders use; value: the sender's number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLUICE_SENDERS_MAX);
	__type(key, struct sluice_exit);
	__type(value, __u32);
} sluice_exits SEC(".maps");

static __always_inline __u64 *counter_of(struct sluice_redirects *counts, int err)
{
	switch (err) {
	case 0:
		return &counts->dropped;
	case -EMSGSIZE:
		return &counts->too_long;
	case -ENETDOWN:
		return &counts->down;
	case -ENXIO:
	case -EOPNOTSUPP:
		return &counts->unsupported;
	default:
		return &counts->failed;
	}
}

/* Returns the counters of the sender that a map holds for a key; NULL if none. */
static __always_inline struct sluice_redirects *counts_of(void *senders, const void *key)
{
	__u32 *sender = bpf_map_lookup_elem(senders, key);

	return sender ? bpf_map_lookup_elem(&sluice_counts, sender) : 0;
}

/* Marks the calling thread as sender args[0], or unmarks it if the number is too large. Run it by
 * BPF_PROG_RUN on that thread, which need not know its thread id outside its PID namespace. */
SEC("raw_tp")
int sluice_mark(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 thread = bpf_get_current_pid_tgid();
	__u64 number = ctx->args[0];
	__u32 sender = number;

	if (number >= SLUICE_SENDERS_MAX)
		return bpf_map_delete_elem(&sluice_threads, &thread);
	return bpf_map_update_elem(&sluice_threads, &thread, &sender, BPF_ANY);
}

/* A bulk: from_dev, to_dev, sent, drops, err. */
SEC("tp_btf/xdp_devmap_xmit")
int sluice_devmap_xmit(__u64 *ctx)
{
	const struct net_device *from = (void *)ctx[0];
	const struct net_device *to = (void *)ctx[1];
	int sent = ctx[2], drops = ctx[3], err = ctx[4];
	struct sluice_redirects *counts;

	if (from->ifindex == LOOPBACK_IFINDEX) {
		__u32 thread = bpf_get_current_pid_tgid();

		counts = counts_of(&sluice_threads, &thread);
	} else {
		struct sluice_path path = {
			.netns = to->nd_net.net->ns.inum,
			.from = from->ifindex,
			.to = to->ifindex,
		};

		counts = counts_of(&sluice_paths, &path);
	}
	if (!counts)
		return 0;
	if (sent > 0)
		__sync_fetch_and_add(&counts->sent, sent);
	if (drops > 0)
		__sync_fetch_and_add(counter_of(counts, err), drops);
	return 0;
}

/* A frame: dev, xdp, tgt, err, map_type, map_id, index; without a map, map_id is INT_MAX. */
SEC("tp_btf/xdp_redirect_err")
int sluice_redirect_err(__u64 *ctx)
{
	struct sluice_exit exit = { .map = ctx[5], .key = ctx[6] };
	struct sluice_redirects *counts = counts_of(&sluice_exits, &exit);

	if (!counts)
		return 0;
	__sync_fetch_and_add(counter_of(counts, ctx[3]), 1);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
