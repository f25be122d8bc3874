//! Filters without a translation are refused with the reason, and nothing is appended.

use sluicegate::filter::ebpf::Assembler;
use sluicegate::filter::{Filter, Frame, translate};
use sluicegate::port::LINKTYPE_ETHERNET;

#[test]
fn what_cannot_be_translated_is_refused_with_the_reason() {
    let rows = [
        ("a plain filter is fine", "udp", None),
        ("a loop", "ip6 protochain 17", Some("loops")),
        ("the direction", "inbound", Some("direction")),
        ("the interface", "ifindex 3", Some("number of the interface")),
    ];
    for (sentence, expression, reason) in rows {
        let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
        let mut asm = Assembler::new();
        let [pass, reject] = asm.labels();
        let outcome = translate(filter.program(), &mut asm, &Frame::new(false), pass, reject);
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
