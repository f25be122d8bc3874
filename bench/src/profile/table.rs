//! From names to causes: what a call chain means.
//!
//! The lookup goes from the sampled function to its callers. The first function that a table lists
//! decides; rows marked [`Depth::Here`] match the sampled function only. So `memcpy` is copying for
//! any caller, and a list helper below `try_to_wake_up` belongs to waking up.
//!
//! A row of a table has patterns with a space between: a function's name or, with a `*` at the end, its beginning.
//! An earlier row wins. `bpf:` stands for `bpf_prog_` and the 16 digits behind it.

use Cause::*;
use Depth::{Here, Under};

/// Where in a chain a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only where the CPU was.
    Here,
    /// The sampled function or a caller.
    Under,
}

/// Returns the cause of a program's function.
pub fn of_user(name: &str) -> Cause {
    let name = name.rsplit("::").next().unwrap_or(name);
    let known = |(_, patterns): &&(Cause, &str)| matches(patterns, name);
    USER.iter().find(known).map_or(Cause::Program, |(cause, _)| *cause)
}

/// Returns the cause of a kernel chain, and the index of the function that decided.
pub fn of_kernel<'a>(chain: impl IntoIterator<Item = &'a str>) -> (Cause, usize) {
    for (depth, name) in chain.into_iter().enumerate() {
        let name = &*readable(name);
        let known = |(_, place, patterns): &&(Cause, Depth, &str)| {
            (depth == 0 || *place == Depth::Under) && matches(patterns, name)
        };
        if let Some((cause, ..)) = KERNEL.iter().find(known) {
            return (*cause, depth);
        }
    }
    (Cause::Other, 0)
}

/// "bpf:sluice_claim" for bpf_prog_6deef7357e7b4530_sluice_claim, which has a new number wherever
/// it is made anew; a program without a name is "bpf:".
pub fn readable(name: &str) -> std::borrow::Cow<'_, str> {
    let digits = |rest: &&str| rest.len() >= 16 && rest.as_bytes()[..16].is_ascii();
    match name.strip_prefix("bpf_prog_").filter(digits).map(|rest| rest.split_at(16)) {
        Some((tag, rest)) if tag.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("bpf:{}", rest.trim_start_matches('_')).into()
        }
        _ => name.into(),
    }
}

/// Returns true if one of the patterns matches a name.
fn matches(patterns: &str, name: &str) -> bool {
    patterns.split_ascii_whitespace().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    })
}

/// Owner of a sample's work in the kernel, by its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Packets that have come in: the receive softirq.
    Receive,
    /// A run of live frames.
    LiveFrames,
    /// Anything else.
    Rest,
}

/// The stage of a chain: what it is in the innermost of.
pub fn stage<'a>(chain: impl IntoIterator<Item = &'a str>) -> Stage {
    let one = |name| match name {
        "net_rx_action" | "__napi_poll" | "napi_threaded_poll_loop" => Some(Stage::Receive),
        "bpf_test_run_xdp_live" | "xdp_test_run_batch" => Some(Stage::LiveFrames),
        _ => None,
    };
    chain.into_iter().find_map(one).unwrap_or(Stage::Rest)
}

/// Why a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wait {
    /// It waited for packets, or for room.
    Packets,
    /// It slept for a time.
    Sleep,
    /// It waited for another thread.
    Lock,
    /// It waited for a disk or for memory.
    Disk,
    /// Another had to run.
    Preempted,
    /// Whatever else.
    Other,
}

impl Wait {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Packets => "waiting for packets",
            Self::Sleep => "sleeping for a time",
            Self::Lock => "waiting for a thread",
            Self::Disk => "waiting for a disk",
            Self::Preempted => "had to let others run",
            Self::Other => "other waits",
        }
    }
}

/// Why a thread left its CPU, from where it did.
pub fn of_switch<'a>(chain: impl IntoIterator<Item = &'a str>) -> Wait {
    let known = |name: &str| {
        let row = WAITS.iter().find(|(_, patterns)| matches(patterns, name));
        row.map(|(wait, _)| *wait)
    };
    chain.into_iter().find_map(known).unwrap_or(Wait::Other)
}

/// The kernel's functions.
pub const KERNEL: &[(Cause, Depth, &str)] = &[
    (Sampling, Under, "perf_* __perf_* bpf_get_stack*"),
    (
        Locks,
        Here,
        "native_queued_spin_lock_slowpath queued_spin_lock_slowpath \
         __pv_queued_spin_lock_slowpath resilient_queued_spin_lock_slowpath \
         queued_read_lock_slowpath queued_write_lock_slowpath _raw_spin_lock* \
         mutex_spin_on_owner osq_lock rwsem_spin_on_owner",
    ),
    (Locks, Under, "__mutex_lock* rwsem_down_* futex_wait* __futex_wait*"),
    (
        Copying,
        Here,
        "memcpy* __memcpy* memmove* __memmove* copy_user_* rep_movs_alternative copy_page* \
         _copy_to_iter _copy_from_iter _copy_to_user _copy_from_user __copy_user* skb_copy_bits \
         skb_store_bits xsk_copy_xdp",
    ),
    (Copying, Under, "skb_copy_datagram_* __skb_datagram_iter simple_copy_to_iter"),
    (Checksums, Here, "csum_partial* do_csum __skb_checksum* skb_checksum* crc32*"),
    (Timekeeping, Here, "ktime_get* read_tsc kvm_clock_* pvclock_* bpf_ktime_get*"),
    (Idle, Here, "default_idle* pv_native_safe_halt native_safe_halt mwait_idle*"),
    (Idle, Here, "intel_idle* acpi_idle* poll_idle* haltpoll_* tick_nohz_idle_*"),
    (PageFaults, Under, "asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault"),
    (PageFaults, Under, "exit_mmap dup_mmap do_mmap vm_mmap_* do_munmap __mmput"),
    (PageFaults, Here, "clear_page* clear_huge_page"),
    (
        Wakeups,
        Under,
        "try_to_wake_up ttwu_* __wake_up* wake_up_* default_wake_function sock_def_readable \
         sock_def_write_space ep_poll_callback pollwake schedule schedule_* __schedule \
         preempt_schedule* finish_task_switch dequeue_task* enqueue_task* pick_next_task* \
         sched_ttwu_pending sysvec_reschedule_ipi asm_sysvec_reschedule_ipi \
         asm_sysvec_call_function_single native_smp_send_reschedule \
         native_send_call_func_single_ipi __smp_call_single_queue flush_smp_call_function_queue \
         do_sys_poll do_poll do_epoll_wait ep_poll poll_freewait do_select hrtimer_nanosleep \
         do_nanosleep schedule_idle",
    ),
    (
        Buffers,
        Under,
        "__alloc_skb alloc_skb* sock_alloc_send_pskb build_skb* __build_skb* napi_build_skb \
         napi_alloc_* __napi_alloc_* __netdev_alloc_* slab_build_skb consume_skb kfree_skb* \
         sk_skb_reason_drop skb_release_* skb_free_head skb_clone* skb_copy skb_copy_expand \
         pskb_copy* pskb_expand_head __skb_clone napi_consume_skb napi_skb_cache_* \
         skb_defer_free_flush skb_attempt_defer_free __kfree_skb* kfree_skbmem sock_wfree \
         sock_rfree __dev_kfree_skb* net_tx_action xdp_build_skb_* __xdp_build_skb_* \
         xdp_alloc_skb_bulk veth_convert_skb_to_xdp_buff page_pool_* __page_pool_* xdp_return_* \
         __xdp_return page_frag_* __page_frag_* skb_page_frag_refill skb_pp_*",
    ),
    (
        Buffers,
        Here,
        "kmem_cache_* __kmalloc* kmalloc_* kfree slab_* __slab_* ___slab_* __memcg_slab_*",
    ),
    (Buffers, Here, "get_page_from_freelist free_unref_* __alloc_pages* put_page"),
    (Buffers, Here, "skb_put skb_push skb_pull* alloc_pages* __free_frozen_pages"),
    (
        Rules,
        Under,
        "nft_do_chain* ipt_do_table ip6t_do_table iptable_* nf_hook_slow* nft_meta_* \
         nft_payload_* nft_lookup_* nft_rhash_* nft_cmp_* nf_conntrack_* nf_ingress*",
    ),
    (Filters, Under, "sk_filter_trim_cap run_filter bpf: cls_bpf_classify"),
    (Filters, Under, "bpf:sluice_claim __bpf_prog_run* ___bpf_prog_run"),
    (Checksums, Under, "__skb_checksum_complete* skb_checksum_help"),
    (XdpSockets, Under, "__xsk_* xsk_* xp_* __xp_* xskq_*"),
    (
        Xdp,
        Under,
        "bpf:* bpf_* __bpf_* xdp_do_redirect* __xdp_do_redirect* xdp_do_flush __dev_map_* \
         dev_map_* bq_xmit_all bq_enqueue __htab_map_lookup_elem htab_map_* array_map_* \
         trie_lookup_elem htab_* do_xdp_generic netif_receive_generic_xdp",
    ),
    (PacketSockets, Under, "tpacket_* packet_* prb_* __packet_* dev_queue_xmit_nit fanout_*"),
    (Pipes, Under, "unix_* __unix_* pipe_* anon_pipe_* fifo_pipe_*"),
    (Queueing, Under, "sch_direct_xmit __qdisc_run qdisc_* pfifo_fast_* fq_codel_* noqueue_*"),
    (Queueing, Here, "__dev_queue_xmit __dev_direct_xmit netdev_core_pick_tx"),
    (Queueing, Here, "netdev_pick_tx validate_xmit_skb* dev_hard_start_xmit"),
    (
        Host,
        Under,
        "ip_rcv* ip_local_* ip_list_rcv* ip_sublist_rcv* ip_forward* ip_output ip_finish_output* \
         ip_route_* fib_* ipv6_rcv* ipv6_list_rcv ip6_* udp_* __udp4_* __udp6_* udpv6_* tcp_* \
         __tcp_* icmp_* __icmp_send arp_* br_* nf_*",
    ),
    (Host, Here, "__netif_receive_skb* netif_receive_skb* enqueue_to_backlog get_rps_cpu"),
    (
        Driver,
        Under,
        "veth_* tun_* tap_* virtnet_* free_old_xmit* virtqueue_* vring_* igb_* igc_* e1000_* \
         ixgbe_* i40e_* ice_* mlx4_* mlx5e_* bnxt_* ena_* gve_* dev_gro_receive napi_gro_* gro_* \
         __napi_poll napi_complete_done net_rx_action process_backlog eth_type_trans iommu_* \
         dma_* swiotlb_*",
    ),
    // A live-frame run counts as sending, as above; these are the remaining functions.
    (Driver, Under, "xdp_test_run_batch bpf_test_run_xdp_live"),
    (
        SystemCalls,
        Here,
        "entry_SYSCALL_64* do_syscall_64 x64_sys_call syscall_* el0t_64_sync* el0_svc* \
         invoke_syscall srso_* entry_* fdget* __fdget* fput sockfd_lookup* import_* __x64_sys_* \
         __arm64_sys_* __sys_* ___sys_* ____sys_* sock_recvmsg* sock_sendmsg* __sock_sendmsg \
         sock_read_iter sock_write_iter rw_verify_area \
         do_recvmmsg move_addr_to_* security_socket_* vfs_* ksys_*",
    ),
    (
        Interrupts,
        Under,
        "asm_sysvec_* sysvec_* asm_common_interrupt common_interrupt __irq_exit_rcu irq_exit_rcu \
         handle_irq_* el1h_64_irq* hrtimer_* __hrtimer_* tick_* update_process_times run_timer_*",
    ),
    (Wakeups, Under, "smpboot_thread_fn worker_thread"),
    (Idle, Under, "do_idle cpu_startup_entry"),
];

/// Functions of programs and libraries, by the name without the path before it.
pub const USER: &[(Cause, &str)] = &[
    (Copying, "__memcpy* memcpy* __memmove* memmove* rte_memcpy* rte_mov*"),
    (Spinning, "wait_rx wait_any spin_loop rte_pause pause"),
    (Timekeeping, "clock_gettime* __vdso_clock_gettime* __clock_gettime* [vdso]"),
    (Checksums, "rte_raw_cksum* in_cksum*"),
    (Filters, "bpf_filter* pcap_filter* pcapint_filter*"),
    (Locks, "__lll_lock_wait* __GI___lll_lock_wait* pthread_mutex_lock*"),
];

/// Functions that a thread left its CPU in.
pub const WAITS: &[(Wait, &str)] = &[
    (Wait::Sleep, "hrtimer_nanosleep do_nanosleep common_nsleep*"),
    (Wait::Lock, "futex_* __futex_* __mutex_lock* rwsem_* do_wait"),
    (Wait::Disk, "io_schedule* balance_dirty_pages* folio_wait* __lock_page*"),
    (
        Wait::Packets,
        "do_sys_poll do_poll do_epoll_wait ep_poll do_select __skb_wait_for_more_packets \
         sock_alloc_send_pskb packet_recvmsg xsk_* schedule_hrtimeout* sigtimedwait \
         do_sigtimedwait pipe_* anon_pipe_* unix_*",
    ),
    (
        Wait::Preempted,
        "preempt_schedule* irqentry_exit* raw_irqentry_exit_cond_resched exit_to_user_mode_loop \
         asm_sysvec_* __cond_resched irqentry_exit_to_user_mode syscall_exit_to_user_mode \
         do_sched_yield",
    ),
];

/// Category of time that a remedy exists for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The CPU had nothing to do.
    Idle,
    /// Waiting for a lock that another CPU holds.
    Locks,
    /// Bytes from one place to another.
    Copying,
    /// The kernel's buffers: made, counted, freed.
    Buffers,
    /// Telling sleepers that there is something, and switching between threads.
    Wakeups,
    /// The way into the kernel and back.
    SystemCalls,
    /// Memory that is touched for the first time, or given back.
    PageFaults,
    /// Programs that say which packets are wanted.
    Filters,
    /// Rules of iptables and nftables.
    Rules,
    /// Sums over bytes.
    Checksums,
    /// Reading the time.
    Timekeeping,
    /// XDP programs and what they call.
    Xdp,
    /// AF_XDP sockets and their rings.
    XdpSockets,
    /// Packet sockets and their rings.
    PacketSockets,
    /// Pipes and Unix sockets.
    Pipes,
    /// The queueing discipline and the locks around it.
    Queueing,
    /// The host's own protocols.
    Host,
    /// The interface's driver and its polling.
    Driver,
    /// Interrupts and timers.
    Interrupts,
    /// Looking again and again whether there is something.
    Spinning,
    /// Programs' own code in user space.
    Program,
    /// A sender that is not measured.
    Sender,
    /// Programs that have no part in it.
    Others,
    /// This sampling.
    Sampling,
    /// Functions that no table lists.
    Other,
}

impl Cause {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Locks => "lock contention",
            Self::Copying => "copying",
            Self::Buffers => "skb allocation and freeing",
            Self::Wakeups => "wakeups and scheduling",
            Self::SystemCalls => "system call entry",
            Self::PageFaults => "page faults and mapping",
            Self::Filters => "filter",
            Self::Rules => "firewall rules",
            Self::Checksums => "checksums",
            Self::Timekeeping => "reading the time",
            Self::Xdp => "XDP programs",
            Self::XdpSockets => "AF_XDP sockets",
            Self::PacketSockets => "packet sockets",
            Self::Pipes => "pipes and Unix sockets",
            Self::Queueing => "queueing discipline",
            Self::Host => "host stack",
            Self::Driver => "driver and NAPI",
            Self::Interrupts => "interrupts and timers",
            Self::Spinning => "spinning",
            Self::Program => "the program itself",
            Self::Sender => "sender",
            Self::Others => "other programs",
            Self::Sampling => "sampling",
            Self::Other => "other",
        }
    }

    /// Returns true if the time is of measured work.
    pub fn is_own(self) -> bool {
        use Cause::{Idle, Others, Sampling, Sender, Spinning};
        !matches!(self, Idle | Spinning | Sender | Others | Sampling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Cause::{Copying, Program, Spinning, Timekeeping};

    #[test]
    fn chains_that_were_recorded_mean_what_they_should() {
        let recorded = include_str!("../../tests/stacks/kernel.txt");
        let mut rows = 0;
        for line in recorded.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (cause, chain) = line.split_once(": ").unwrap();
            let (found, _) = of_kernel(chain.split(';'));
            assert_eq!(found.name(), cause, "{chain}");
            rows += 1;
        }
        assert!(rows > 20);
    }

    #[test]
    fn functions_of_programs_are_told_apart() {
        for (name, cause) in [
            ("__memmove_avx_unaligned_erms", Copying),
            ("[vdso]", Timekeeping),
            ("sluice::run::worker::run", Program),
            ("sluicegate::port::queue::Queue::wait_rx", Spinning),
            ("core::slice::memcpy", Copying),
        ] {
            assert_eq!(of_user(name), cause, "{name}");
        }
    }

    #[test]
    fn a_bpf_program_is_named_without_its_tag() {
        for (name, expected) in [
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf:sluice_claim"),
            ("bpf_prog_6deef7357e7b4530", "bpf:"),
            ("bpf_prog_realloc", "bpf_prog_realloc"),
            ("memcpy", "memcpy"),
        ] {
            assert_eq!(readable(name), expected);
        }
    }

    #[test]
    fn a_wait_is_known_by_whom_it_was_called() {
        for (chain, wait) in [
            (
                "__schedule;schedule;do_nanosleep;hrtimer_nanosleep;__x64_sys_clock_nanosleep",
                Wait::Sleep,
            ),
            ("__schedule;schedule;schedule_hrtimeout_range_clock;do_sys_poll", Wait::Packets),
            ("__schedule;schedule;anon_pipe_write;fifo_pipe_write;vfs_write", Wait::Packets),
            ("__schedule;schedule;futex_do_wait;__futex_wait;futex_wait", Wait::Lock),
            (
                "__schedule;preempt_schedule_irq;irqentry_exit;asm_sysvec_apic_timer_interrupt",
                Wait::Preempted,
            ),
            ("__schedule;schedule;smpboot_thread_fn;kthread", Wait::Other),
        ] {
            assert_eq!(of_switch(chain.split(';')), wait, "{chain}");
        }
    }

    #[test]
    fn a_softirq_in_a_run_of_live_frames_is_receiving() {
        let live = "veth_xdp_xmit;bq_xmit_all;xdp_test_run_batch;bpf_test_run_xdp_live";
        let softirq = "veth_poll;__napi_poll;net_rx_action;handle_softirqs;xdp_test_run_batch";
        assert_eq!(stage(live.split(';')), Stage::LiveFrames);
        assert_eq!(stage(softirq.split(';')), Stage::Receive);
        assert_eq!(stage(["do_idle"]), Stage::Rest);
    }
}
