//! Filter expressions: whatever somebody types compiles or is refused, soon, and what compiles
//! runs on any packet.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bolero::TypeGenerator;
use sluicegate::filter::cbpf::{Alu, Compare, Op, Operand, Size};
use sluicegate::filter::{Filter, Program, explain};

#[path = "../../filter/tests/vlan/kernel_filter.rs"]
mod kernel_filter;

/// The language of pcap-filter(7), more or less.
const WORDS: &[&str] = &[
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp",
    "icmp",
    "sctp",
    "vlan",
    "mpls",
    "pppoes",
    "geneve",
    "ether",
    "host",
    "net",
    "port",
    "portrange",
    "proto",
    "protochain",
    "src",
    "dst",
    "gateway",
    "mask",
    "broadcast",
    "multicast",
    "inbound",
    "outbound",
    "ifindex",
    "less",
    "greater",
    "len",
    "and",
    "or",
    "not",
    "!",
    "&&",
    "||",
    "(",
    ")",
    "((((",
    "))))",
    "[",
    "]",
    ":",
    "+",
    "-",
    "*",
    "/",
    "%",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "=",
    "!=",
    "<",
    ">",
    "<=",
    ">=",
    "0",
    "1",
    "4",
    "80",
    "1-65535",
    "4294967295",
    "4294967296",
    "0xffffffff",
    "198.18.0.1",
    "198.18.0.0/15",
    "2001:db8::1",
    "2001:db8::/32",
    "02:00:00:00:00:01",
    "tcp[tcpflags]",
    "tcp-syn",
    "ip[0]",
    "ether[12:2]",
    "ether[ether[14] & 0xf]",
    "ip[2:2] / ip[0]",
    "\\tcp",
    "'",
    "\"",
    "\\",
    "é",
    "\t",
    "\n",
];

/// Whole questions, to be joined.
const QUESTIONS: &[&str] = &[
    "ip",
    "ip6",
    "vlan",
    "vlan 5",
    "mpls 7",
    "pppoes",
    "not udp",
    "tcp port 80",
    "len > 100",
    "src net 198.18.0.0/15",
    "ip6 host 2001:db8::1",
    "portrange 1-1023",
    "ether multicast",
    "tcp[tcpflags] & tcp-syn != 0",
    "ip[6:2] & 0x1fff = 0",
    "ether[ether[14] & 0xf] = 8",
    "1 << ether[15] = 0x20",
    "ip[2:2] / ip[0] > 3",
    "ip protochain 6",
    "ip6 protochain 17",
    "inbound",
    "ifindex 3",
    "less 64",
    "greater 1500",
    "geneve 5",
    "icmp[icmptype] = icmp-echo",
    "ether[0xfffffff0:4] = 0",
    "(ip or arp)",
    "not (vlan and udp)",
    "ether proto 0x88b5",
];

const LINK_TYPES: &[u16] = &[0, 1, 101, 105, 108, 113, 127, 192, 220, 276, 9999];
/// Nothing that is typed takes so long: it hangs.
const HANGS: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, TypeGenerator)]
struct FilterInput {
    /// Whole questions, not single words.
    questions: bool,
    words: Vec<u8>,
    odd: Option<(u8, char)>,
    repeat: u8,
    link_type: u8,
    packet: Vec<u8>,
    more_on_the_wire: u16,
}

#[test]
fn filter_expression() {
    let watchdog = watchdog();
    bolero::check!().with_type::<FilterInput>().for_each(|input| {
        let mut expression = if input.questions {
            let joints = input.words.iter().map(|&w| if w < 128 { " and " } else { " or " });
            let parts = input.words.iter().map(|&w| QUESTIONS[usize::from(w) % QUESTIONS.len()]);
            parts.zip(joints).take(12).flat_map(|(part, joint)| [part, joint]).collect::<String>()
                + "ip"
        } else {
            let words = input.words.iter().take(40);
            words.map(|&w| WORDS[usize::from(w) % WORDS.len()]).collect::<Vec<_>>().join(" ")
        };
        if let Some((at, character)) = input.odd.filter(|(at, _)| *at < 64) {
            expression.insert(expression.floor_char_boundary(usize::from(at) * 3), character);
        }
        if input.repeat > 250 {
            // Long, and perhaps too long.
            expression = vec![expression; usize::from(input.repeat)].join(" or ");
        }
        watchdog.send(Some(expression.clone())).unwrap();
        try_expression(&expression, input);
        watchdog.send(None).unwrap();
    });
}

fn try_expression(expression: &str, input: &FilterInput) {
    let link_type = LINK_TYPES[usize::from(input.link_type) % LINK_TYPES.len()];
    match Filter::compile(expression, link_type) {
        Ok(filter) => {
            let wire = input.packet.len() as u32 + u32::from(input.more_on_the_wire);
            for end in 0..=input.packet.len().min(64) {
                filter.matches(&input.packet[..end], wire);
            }
            filter.matches(&input.packet, wire);
            if let Ok(kernels) = filter.for_packet_socket() {
                assert!(kernels.len() <= sluicegate::filter::MAX_KERNEL_INSTRUCTIONS);
                let program = Program::new(kernels).unwrap();
                assert!(kernel_filter::takes(&program), "{expression}");
            }
        }
        Err(error) => {
            let _ = (error.to_string(), explain(&error));
        }
    }
}

/// Ends the process with the expression that hangs it.
fn watchdog() -> Sender<Option<String>> {
    let (sender, receiver) = channel::<Option<String>>();
    std::thread::spawn(move || {
        let mut running: Option<String> = None;
        loop {
            match receiver.recv_timeout(HANGS) {
                Ok(next) => running = next,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(expression) = &running {
                        eprintln!("it hangs on: {expression:?}");
                        std::process::abort();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    sender
}
