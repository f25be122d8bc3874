//! The kinds of port and their options: the table that parses names, and that `sluice help ports` prints.

/// The kinds of port, in the order of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An interface through packet sockets: the port gets copies, the host keeps its packets.
    Packet,
    /// An interface's packets that XDP takes from the host.
    Xdp,
    /// Copies of an interface's packets, made by XDP: the host keeps its packets.
    Mirror,
    /// An interface through live frames: for sending only.
    Live,
    /// The host's side of an interface: the packets that the host sends through it and receives from it.
    Host,
    /// A TAP device.
    Tap,
    /// A shared-memory pipe to another process.
    Memif,
    /// Copies of the packets of a running switch's or forwarder's port.
    Monitor,
    /// A capture file.
    Pcap,
    /// An endless source, and a sink that discards everything.
    Null,
}

/// An option of a kind of port: `name=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOption {
    /// The word before the `=`.
    pub name: &'static str,
    /// Its values: words with `|` between them, or in capitals a number, a time, a text.
    pub values: &'static str,
    /// The value without the option; empty if that depends on other options, the interface or the command.
    pub default: &'static str,
    /// Its effect, in a few words.
    pub about: &'static str,
}

const fn option(
    name: &'static str,
    values: &'static str,
    default: &'static str,
    about: &'static str,
) -> PortOption {
    PortOption { name, values, default, about }
}

const BUSY_POLL: PortOption =
    option("busy_poll", "TIME", "0s", "poll the driver for this time in place of interrupts");
const FILTER: PortOption =
    option("filter", "EXPR", "", "only packets that match a pcap-filter expression");
const LATENCY: PortOption =
    option("latency", "TIME", "", "how long a packet may wait before a sleeping reader sees it");
const SLOTS: PortOption =
    option("slots", "N", "512", "slots of each ring between port and program");
const SNAPLEN: PortOption = option("snaplen", "BYTES", "", "bytes to keep of each packet");
const XDP_MODE: PortOption = option("mode", "native|skb", "", "require this mode of XDP");

const fn promisc(default: &'static str) -> PortOption {
    option("promisc", "on|off", default, "receive packets for other hosts too")
}

const fn ring_size(default: &'static str, about: &'static str) -> PortOption {
    option("ring_size", "N", default, about)
}

pub(super) struct KindSpec {
    pub kind: Kind,
    pub prefix: &'static str,
    /// True if `/queues` may follow the name.
    pub queues: bool,
    /// The form of the name after the colon.
    pub name: &'static str,
    pub about: &'static str,
    pub options: &'static [PortOption],
}

impl KindSpec {
    pub(super) fn option(&self, key: &str) -> Option<&'static str> {
        self.options.iter().map(|option| option.name).find(|known| *known == key)
    }

    /// Returns the name of the option that a text begins with: `filter` of "filter=udp".
    pub(super) fn key_of(&self, text: &str) -> Option<&'static str> {
        text.split_once('=').and_then(|(key, _)| self.option(key))
    }
}

pub(super) const KINDS: [KindSpec; 10] = [
    KindSpec {
        kind: Kind::Packet,
        prefix: "packet",
        queues: true,
        name: "IFACE",
        about: "an interface through packet sockets; `any` is all interfaces",
        options: &[
            FILTER,
            SNAPLEN,
            promisc("on"),
            option("method", "ring|frames|recvmmsg|recv", "ring", "how packets are received"),
            option("tx_copies", "on|off", "on", "receive packets that the host sends too"),
            option("timestamp", "software|hardware", "software", "the clock of the packets' times"),
            option("fanout", "hash|lb|cpu|rollover|rnd|qm|bpf", "hash", "how queues share packets"),
            option("fanout_flags", "defrag,rollover", "", "flags of the fanout"),
            option("fanout_prog", "FILE", "", "program of fanout=bpf"),
            option("blocks", "N", "32", "blocks of a ring"),
            option("block_size", "BYTES", "1M", "size of a block"),
            option("block_timeout", "TIME", "10ms", "when the kernel hands over a partial block"),
            option("buffer", "BYTES", "64M", "socket buffer of recv and recvmmsg"),
            option("batch", "N", "64", "packets of a call of recvmmsg or sendmmsg"),
            option("send", "sendmmsg|sendto|ring", "sendmmsg", "how packets are sent"),
            option(
                "qdisc",
                "normal|bypass",
                "normal",
                "send through the queueing discipline, or past it",
            ),
            option("cooked", "on|off", "off", "of any: a LINUX_SLL2 header before each packet"),
            BUSY_POLL,
            LATENCY,
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Xdp,
        prefix: "xdp",
        queues: true,
        name: "IFACE",
        about: "takes packets from the driver before the host, and sends",
        options: &[
            FILTER,
            SNAPLEN,
            promisc("off"),
            option(
                "action",
                "take|drop|pass",
                "take",
                "packets come to the port, or are only counted",
            ),
            option(
                "method",
                "af_xdp|ring",
                "",
                "receive by sockets, or by copies of the XDP program",
            ),
            option("send", "af_xdp|live", "af_xdp", "send by sockets, or by live frames"),
            option("mode", "native|zero-copy|copy|skb", "", "require this mode of XDP"),
            option("timestamp", "xdp|hardware|off", "xdp", "the clock of the packets' times"),
            ring_size("", "buffers of a queue's sockets, or packets in its ring"),
            BUSY_POLL,
            LATENCY,
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Mirror,
        prefix: "mirror",
        queues: true,
        name: "IFACE",
        about: "copies of received packets, made before the host's stack",
        options: &[
            FILTER,
            SNAPLEN,
            promisc("on"),
            XDP_MODE,
            option("timestamp", "xdp|off", "xdp", "the clock of the packets' times"),
            ring_size("16384", "packets in a queue's ring"),
            LATENCY,
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Live,
        prefix: "live",
        queues: true,
        name: "IFACE",
        about: "sends only: the fastest way without zero-copy",
        options: &[
            ring_size("2048", "packets in a queue's kernel ring"),
            option("cpu", "N", "", "CPU of the first queue's thread"),
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Host,
        prefix: "host",
        queues: true,
        name: "IFACE",
        about: "the host's side: what it sends there, and what it receives",
        options: &[
            option("fallback", "pass|drop", "pass", "the host's packets after a kill"),
            option("hook", "tcx|clsact", "", "where the host's packets are taken"),
            option("flows", "N", "0", "maximum of flows that a program can leave to the host"),
            XDP_MODE,
            ring_size("4096", "packets that wait for a queue"),
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Tap,
        prefix: "tap",
        queues: true,
        name: "IFACE",
        about: "a TAP device, created if it does not exist",
        options: &[
            option("persist", "on|off", "off", "keep the device when the port closes"),
            option("up", "on|off", "on", "set the device up"),
            option("mtu", "BYTES", "", "MTU of the device"),
            ring_size("", "packets that wait for a queue"),
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Memif,
        prefix: "memif",
        queues: false,
        name: "SOCKET",
        about: "shared memory with another process, DPDK or VPP",
        options: &[
            option("role", "server|client", "", "own the socket, or connect"),
            option("id", "N", "0", "number of the interface on the socket"),
            option("secret", "TEXT", "", "must be that of the peer"),
            option("queues", "N", "", "queues in each direction"),
            ring_size("1024", "entries of each ring"),
            option("buffer", "BYTES", "2112", "size of each buffer"),
            option("interrupt", "on|off", "on", "wake a sleeping receiver"),
            option("sealed", "on|off", "on", "accept only memory that the client cannot shrink"),
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Monitor,
        prefix: "monitor",
        queues: false,
        name: "[NAME/]PORT",
        about: "copies of the packets of a running switch's or forwarder's port",
        options: &[
            FILTER,
            option("snaplen", "BYTES", "2016", "bytes to keep of each packet"),
            ring_size("8192", "packets in each thread's ring"),
            option("socket", "PATH", "", "another control socket"),
            LATENCY,
            SLOTS,
        ],
    },
    KindSpec {
        kind: Kind::Pcap,
        prefix: "pcap",
        queues: false,
        name: "FILE",
        about: "a capture file; - is standard input",
        options: &[FILTER, SNAPLEN, SLOTS],
    },
    KindSpec {
        kind: Kind::Null,
        prefix: "null",
        queues: true,
        name: "",
        about: "an endless source, and a sink that discards everything",
        options: &[option("size", "BYTES", "60", "size of a packet"), SLOTS],
    },
];

impl Kind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|spec| spec.kind)
    }

    /// Returns the word before the colon.
    pub fn prefix(self) -> &'static str {
        self.spec().prefix
    }

    /// Returns the form of the name after the colon: "IFACE", "FILE".
    pub fn name_form(self) -> &'static str {
        self.spec().name
    }

    /// Returns what a port of this kind is, in a few words.
    pub fn about(self) -> &'static str {
        self.spec().about
    }

    /// Returns the options of a port of this kind.
    pub fn options(self) -> &'static [PortOption] {
        self.spec().options
    }

    /// Returns true if [`OpenOptions::queues`](crate::port::OpenOptions::queues) sets the number of queues of
    /// a port of this kind. The interface, the file or the monitored command determines that of the others.
    pub fn takes_queue_count(self) -> bool {
        !matches!(self, Self::Xdp | Self::Mirror | Self::Monitor | Self::Pcap)
    }

    pub(super) fn spec(self) -> &'static KindSpec {
        // Every kind has a row, which a test checks.
        KINDS.iter().find(|spec| spec.kind == self).unwrap_or(&KINDS[0])
    }
}
