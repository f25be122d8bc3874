//! What is changed under a port while it is open.

use std::time::{Duration, Instant};

use sluicegate::link::{Lab, Shape};
use sluicegate::port::Port;
use sluicegate::ring::Wait;
use sluicegate::{Error, Result};

use super::mirror::{frame, open, receive, send};
use super::{lab, run};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits at all queues until there is something to tell or an error; lets packets go.
fn wait_for_word(port: &mut Port) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        for queue in &mut port.queues {
            queue.wait_rx(Wait::Sleep, Duration::from_millis(20))?;
            queue.sync_rx()?;
            let slots = queue.rx().available();
            queue.rx_mut().release(slots);
            if let Some(notice) = queue.take_notice() {
                return Ok(notice);
            }
        }
    }
    panic!("nothing was said");
}

/// A lab whose interfaces can have three queues, and have `queues`.
fn lab_with(queues: u32) -> Option<Lab> {
    lab()?;
    let lab = Lab::scratch_with(Shape::Pair, 3).unwrap();
    set_queues(&lab, "left", queues);
    set_queues(&lab, "right", queues);
    Some(lab)
}

fn set_queues(lab: &Lab, host: &str, queues: u32) {
    run(lab, host, &format!("ethtool -L {host}0 rx {queues} tx {queues}"));
}

#[test]
fn queues_that_are_new_are_told_of_once() {
    for name in ["xdp:right0?method=af_xdp", "xdp:right0?mode=skb", "xdp:right0", "mirror:right0"] {
        let Some(lab) = lab_with(1) else { return };
        let mut port = open(&lab, name).unwrap();
        assert_eq!(port.queues.len(), 1, "{name}");
        set_queues(&lab, "right", 3);
        let notice = wait_for_word(&mut port).unwrap();
        let expected = "right0 has 3 receive queues now, 1 when this was opened";
        assert!(notice.starts_with(expected), "{name}: {notice}");
        let queue = &mut port.queues[0];
        let until = Instant::now() + Duration::from_millis(700);
        while Instant::now() < until {
            queue.check().unwrap();
            assert_eq!(queue.take_notice(), None, "{name}: said once");
        }
        // What comes to the port's own queue still comes.
        send(&lab, &[frame(1, 0, 60)]);
        assert_eq!(receive(queue, 1).len(), 1, "{name}");
        // Who has named queues has not asked for others.
        drop(port);
        set_queues(&lab, "right", 1);
        let mut named = open(&lab, &format!("{}/0", name.split('?').next().unwrap())).unwrap();
        set_queues(&lab, "right", 2);
        let until = Instant::now() + Duration::from_millis(700);
        while Instant::now() < until {
            named.queues[0].wait_rx(Wait::Sleep, Duration::from_millis(50)).unwrap();
        }
        assert_eq!(named.queues[0].take_notice(), None, "{name}");
    }
}

#[test]
fn a_queue_that_is_no_more_is_said_to_be_gone() {
    for name in ["mirror:right0", "xdp:right0"] {
        let Some(lab) = lab_with(2) else { return };
        let mut port = open(&lab, name).unwrap();
        assert_eq!((port.method, port.queues.len()), ("ring", 2), "{name}");
        // With a program on right0, left0 may not send by more queues than that receives by.
        set_queues(&lab, "left", 1);
        set_queues(&lab, "right", 1);
        let error = wait_for_word(&mut port).unwrap_err();
        assert!(matches!(error, Error::Gone { .. }), "{name}: {error}");
        let text = error.to_string();
        let expected = "queue 1 of right0 is gone: the interface has 1 receive";
        assert!(text.starts_with(expected), "{name}: {text}");
        // The other goes on, and the one that is back, too.
        send(&lab, &[frame(1, 0, 60)]);
        assert_eq!(receive(&mut port.queues[0], 1).len(), 1, "{name}");
        set_queues(&lab, "right", 2);
        let deadline = Instant::now() + PATIENCE;
        while port.queues[1].check().is_err() {
            assert!(Instant::now() < deadline, "{name}: it is back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_kernel_keeps_a_queue_that_has_a_socket() {
    let Some(lab) = lab_with(2) else { return };
    let mut port = open(&lab, "xdp:right0?method=af_xdp").unwrap();
    set_queues(&lab, "left", 1);
    let fewer = lab.exec("right", &["ethtool", "-L", "right0", "rx", "1", "tx", "1"]);
    assert!(!fewer.unwrap().success(), "it was let go: see that the port notices, then");
    for queue in &mut port.queues {
        queue.check().unwrap();
    }
    port.queues.remove(1);
    let end = Instant::now() + PATIENCE;
    let fewer = || lab.exec("right", &["ethtool", "-L", "right0", "rx", "1", "tx", "1"]).unwrap();
    while !fewer().success() {
        assert!(Instant::now() < end, "its socket has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    send(&lab, &[frame(1, 0, 60)]);
    assert_eq!(receive(&mut port.queues[0], 1).len(), 1, "the other goes on");
}
