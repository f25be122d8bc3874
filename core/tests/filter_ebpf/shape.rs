//! The cost of a filter in the hot path: instructions, and comparisons with the packet's end.

use sluicegate::filter::Filter;
use sluicegate::port::LINKTYPE_ETHERNET;

use crate::machines::xdp_program;

/// `if dst > src goto` on 64 bits: how the packet's end is compared with.
const JUMP_IF_GREATER: u8 = 0x2d;

#[test]
fn few_checks_are_made() {
    // What stands around a filter here: three instructions before, two for each end behind.
    let rows: &[(&str, &str, usize, usize)] = &[
        ("everything passes without a look", "", 5, 0),
        ("one load, one check", "ip", 14, 1),
        ("one check for all loads of the only passing way", "ip proto 17 and ip[8] = 64", 18, 1),
        ("one check for IPv4, two more for IPv6 and what comes before UDP there", "udp", 29, 3),
        ("ports are found through X, which stays the same", "ip and udp src port 9", 30, 2),
        ("two loads that both ways need, by one check", "ip and udp and udp[0:4] = 9", 30, 2),
        ("the usual filter", "udp port 9", 52, 5),
        ("what no packet is long enough for", "ether[0x7fffffff] = 1", 5, 0),
    ];
    let mut wrong = Vec::new();
    for (sentence, expression, insns, checks) in rows {
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
        let program = xdp_program(filter.program(), false);
        let made = program.iter().filter(|insn| insn.code == JUMP_IF_GREATER).count();
        if program.len() > *insns || made > *checks {
            wrong.push(format!(
                "{sentence}: '{expression}': {} insns, {made} checks",
                program.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
