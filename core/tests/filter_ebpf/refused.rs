//! What has no translation is refused with the reason, and nothing is appended.

use sluicegate::filter::ebpf::{Assembler, Reg};
use sluicegate::filter::{Filter, Frame, translate};
use sluicegate::port::LINKTYPE_ETHERNET;

#[test]
fn what_cannot_be_translated_is_refused_with_the_reason() {
    let usual = Frame::default();
    let in_scratch = Frame { data: Reg::R2, end: Reg::R3, ..usual };
    let rows = [
        ("a plain filter is fine", "udp", usual, None),
        ("data in registers that calls clear is fine without calls", "udp", in_scratch, None),
        ("a loop", "ip6 protochain 17", usual, Some("loops")),
        ("the direction", "inbound", usual, Some("direction")),
        ("the interface", "ifindex 3", usual, Some("number of the interface")),
        (
            "registers that calls clear",
            "udp",
            Frame { fragments: true, ..in_scratch },
            Some("registers from R6"),
        ),
        ("a stack area above the stack", "udp", Frame { stack: -8, ..usual }, Some("stack area")),
        ("a crooked stack area", "udp", Frame { stack: -101, ..usual }, Some("stack area")),
        (
            "no registers to work with",
            "udp",
            Frame { ctx: Reg::R1, data: Reg::R2, end: Reg::R3, ..usual },
            Some("no registers"),
        ),
    ];
    for (sentence, expression, frame, reason) in rows {
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
        let mut asm = Assembler::new();
        let [pass, reject] = asm.labels();
        let outcome = translate(filter.program(), &mut asm, &frame, pass, reject);
        match (outcome, reason) {
            (Ok(()), None) => {}
            (Err(error), Some(reason)) => {
                assert!(error.to_string().contains(reason), "{sentence}: {error}");
                asm.exit();
                assert_eq!(asm.finish().unwrap().len(), 1, "{sentence}: nothing was appended");
            }
            (outcome, _) => panic!("{sentence}: {outcome:?}"),
        }
    }
}
