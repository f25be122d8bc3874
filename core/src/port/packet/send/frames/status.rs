//! The hand-over of a frame between us and the kernel, by its status word alone.

use sluicegate_base::ring::{AtomicU32, Ordering};

/// The status word of one frame.
pub(super) struct FrameStatus<'a>(&'a AtomicU32);

/// The state of a frame that the kernel was asked to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel has not taken it.
    Waits,
    /// The kernel has taken it, and may be done with it.
    Taken,
    /// The kernel will not take it, nor any frame behind it.
    Wrong,
}

impl<'a> FrameStatus<'a> {
    pub(super) fn of(status: &'a AtomicU32) -> Self {
        Self(status)
    }

    /// Returns true if the frame is ours to write. Acquire: pairs with the kernel's store of
    /// AVAILABLE when the packet is freed (tpacket_destruct_skb), which comes after the last read
    /// of the frame, by any CPU or card.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        const KERNELS: u32 = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING;
        self.0.load(Ordering::Acquire) & (KERNELS | libc::TP_STATUS_WRONG_FORMAT) == 0
    }

    /// Asks the kernel to send the frame at the next call. Release: pairs with the read of the
    /// status in that call (tpacket_snd, packet_current_frame), and publishes header and packet.
    /// As the call is this thread's own, the order of the program would do.
    #[inline]
    pub(super) fn ask(&self) {
        self.0.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
    }

    /// Returns the state of a requested frame, read after the call. Relaxed: until it [is
    /// ours](Self::is_ours) again nothing is done with the frame on this word.
    #[inline]
    pub(super) fn answer(&self) -> Answer {
        match self.0.load(Ordering::Relaxed) {
            status if status & libc::TP_STATUS_WRONG_FORMAT != 0 => Answer::Wrong,
            status if status & libc::TP_STATUS_SEND_REQUEST != 0 => Answer::Waits,
            _ => Answer::Taken,
        }
    }

    /// Takes back a frame that was asked for and not taken. Relaxed: the kernel takes frames only
    /// when this thread calls it, so there is no other side now.
    pub(super) fn take_back(&self) {
        self.0.store(libc::TP_STATUS_AVAILABLE, Ordering::Relaxed);
    }
}

/// The interleavings of our side and the one that frees packets. Run with
/// `RUSTFLAGS="--cfg loom" cargo test -p sluicegate --lib --target-dir target/loom -- loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A frame: its status, and a packet whose accesses loom checks for races.
    struct Frame {
        status: AtomicU32,
        packet: UnsafeCell<[u32; 2]>,
    }

    fn ring(frames: usize) -> Arc<Vec<Frame>> {
        let frame = || Frame {
            status: AtomicU32::new(libc::TP_STATUS_AVAILABLE),
            packet: UnsafeCell::new([0; 2]),
        };
        Arc::new((0..frames).map(|_| frame()).collect())
    }

    /// Plays send(2) in our own thread: takes the frames that are asked for, from `head` on.
    /// Returns the next head.
    fn tpacket_snd(ring: &[Frame], mut head: usize) -> usize {
        while ring[head].status.load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST {
            ring[head].status.store(libc::TP_STATUS_SENDING, Ordering::Release);
            head = (head + 1) % ring.len();
        }
        head
    }

    /// Sends `numbers` packets by `frames` frames; the card reads and frees them on its own time.
    /// Up to three preemptions: both sides wait for each other by looking again and again, and all
    /// interleavings would take hours.
    fn pass(frames: usize, numbers: u32) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let ring = ring(frames);
            let cards = Arc::clone(&ring);
            let card = thread::spawn(move || {
                for number in 0..numbers {
                    let frame = &cards[number as usize % frames];
                    while frame.status.load(Ordering::Acquire) != libc::TP_STATUS_SENDING {
                        thread::yield_now();
                    }
                    // SAFETY: loom checks that nobody writes the packet meanwhile.
                    let packet = frame.packet.with(|packet| unsafe { *packet });
                    assert_eq!(packet, [number; 2], "whole, in order, and not overwritten");
                    frame.status.store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
                }
            });
            let mut head = 0;
            for number in 0..numbers {
                let at = number as usize % frames;
                let handover = FrameStatus::of(&ring[at].status);
                while !handover.is_ours() {
                    thread::yield_now();
                }
                // SAFETY: loom checks that nobody else accesses the packet meanwhile.
                ring[at].packet.with_mut(|packet| unsafe { (*packet)[0] = number });
                ring[at].packet.with_mut(|packet| unsafe { (*packet)[1] = number });
                handover.ask();
                assert_eq!(handover.answer(), Answer::Waits);
                head = tpacket_snd(&ring, head);
                assert_eq!(handover.answer(), Answer::Taken);
            }
            card.join().unwrap();
        });
    }

    #[test]
    fn loom_a_frame_is_not_written_before_its_packet_has_left() {
        pass(1, 2);
        pass(2, 3);
    }
}
