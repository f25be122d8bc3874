//! The cache of game servers' answers.

use std::rc::Rc;

use sluicegate::link::Shape;

use super::Scrubber;
use crate::support::*;

#[test]
fn the_command_reports_that_no_answers_are_kept() {
    let lab = have(&["ip"]).then(|| lab_of(Shape::Line, 1)).flatten();
    let Some(lab) = lab else { return };
    let rule =
        "[[rule]]\nname = 'game'\nmatch = { dport = 27015 }\nchallenge = 'a2s'\ncache = '2s'\n";
    let reported = |policy: &str, more: &[&str]| {
        let folder = Rc::new(tempfile::tempdir().unwrap());
        let scrubber =
            Scrubber::start_on(["middle", "middle0"], folder, &lab, policy, more, |_| {});
        let ended = scrubber.stop();
        // Without tcx, a scrubber of the host keeps none, too.
        ended.err.contains("no answers are kept") && !ended.err.contains("use Linux 6.6")
    };
    assert!(reported(rule, &["middle1", "--bridge"]));
    assert!(!reported(rule, &["middle1", "--bridge", "--monitor"]));
    assert!(!reported("", &["middle1", "--bridge"]));
    assert!(!reported(rule, &[]));
}
