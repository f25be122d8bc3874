//! What time goes to.

/// What time goes to, as something that one can act on.
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
    Clock,
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
    /// What programs do in user space.
    Program,
    /// Whoever makes the packets, where that is not what is measured.
    Sender,
    /// Programs that have no part in it.
    Others,
    /// This sampling.
    Sampling,
    /// What the table does not know.
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
            Self::Clock => "reading the time",
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

    /// Whether it is time of what is measured.
    pub fn is_own(self) -> bool {
        use Cause::{Idle, Others, Sampling, Sender, Spinning};
        !matches!(self, Idle | Spinning | Sender | Others | Sampling)
    }
}
