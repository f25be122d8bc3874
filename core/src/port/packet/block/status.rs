//! The hand-over of a block, or of a frame, between the kernel and us, by its status word alone.

use sluicegate_base::ring::{AtomicU32, Ordering};

/// The status word of one block.
pub(in crate::port::packet) struct BlockStatus<'a>(&'a AtomicU32);

impl<'a> BlockStatus<'a> {
    pub(in crate::port::packet) fn of(status: &'a AtomicU32) -> Self {
        Self(status)
    }

    /// The status if the block is ours. Acquire: pairs with the kernel's barrier before its
    /// store of USER (prb_close_block, smp_wmb), which publishes the headers and packets in
    /// the block.
    #[inline]
    pub(in crate::port::packet) fn ours(&self) -> Option<u32> {
        let status = self.0.load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then_some(status)
    }

    /// Gives the block back. Release: pairs with the kernel's read of the status, on which its
    /// writes into the block depend (prb_dispatch_next_block, then smp_rmb in prb_open_block);
    /// all our accesses are done by then.
    #[inline]
    pub(in crate::port::packet) fn give_back(&self) {
        self.0.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// Every interleaving of the kernel's side and ours. Run with
/// `RUSTFLAGS="--cfg loom" cargo test -p sluicegate --lib --target-dir target/loom -- loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::collections::VecDeque;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A block: its status, and a payload whose accesses loom checks for races.
    struct Block {
        status: AtomicU32,
        payload: UnsafeCell<[u32; 2]>,
    }

    fn ring(blocks: usize) -> Arc<Vec<Block>> {
        let block = || Block {
            status: AtomicU32::new(libc::TP_STATUS_KERNEL),
            payload: UnsafeCell::new([0; 2]),
        };
        Arc::new((0..blocks).map(|_| block()).collect())
    }

    /// Plays the kernel: fills the next block if it is its own (af_packet.c, prb_open_block and
    /// prb_close_block). False if it is not: then it would drop packets.
    fn fill(block: &Block, number: u32) -> bool {
        if block.status.load(Ordering::Acquire) != libc::TP_STATUS_KERNEL {
            return false;
        }
        // A header and a packet, one after the other: half a block can be seen if anything can.
        // SAFETY: loom checks that nobody else accesses the payload meanwhile.
        block.payload.with_mut(|payload| unsafe { (*payload)[0] = number });
        block.payload.with_mut(|payload| unsafe { (*payload)[1] = number });
        block.status.store(libc::TP_STATUS_USER, Ordering::Release);
        true
    }

    /// Moves `numbers` blocks' worth through a ring; the reader holds up to `most_held` blocks
    /// and looks into each again before it gives it back.
    fn pass(blocks: usize, numbers: u32, most_held: usize) {
        loom::model(move || {
            let ring = ring(blocks);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || {
                for number in 0..numbers {
                    while !fill(&kernels[number as usize % blocks], number) {
                        thread::yield_now();
                    }
                }
            });
            // SAFETY: loom checks that the kernel does not write meanwhile.
            let look = |at: usize| ring[at].payload.with(|payload| unsafe { *payload });
            let mut held = VecDeque::new();
            for number in 0..numbers {
                let at = number as usize % blocks;
                if held.len() == most_held {
                    let (at, number): (usize, u32) = held.pop_front().unwrap();
                    assert_eq!(look(at), [number; 2], "unchanged while held");
                    BlockStatus::of(&ring[at].status).give_back();
                }
                while BlockStatus::of(&ring[at].status).ours().is_none() {
                    thread::yield_now();
                }
                assert_eq!(look(at), [number; 2], "whole, and in order");
                held.push_back((at, number));
            }
            kernel.join().unwrap();
        });
    }

    #[test]
    fn loom_one_block_goes_back_and_forth() {
        pass(1, 3, 1);
    }

    #[test]
    fn loom_blocks_are_whole_in_order_and_untouched_while_held() {
        pass(2, 4, 1);
        pass(2, 4, 2);
        pass(3, 4, 2);
    }

    /// The kernel does not wait: with no free block it drops, and the blocks that do come are
    /// whole all the same.
    #[test]
    fn loom_a_kernel_that_drops_never_touches_a_block_of_ours() {
        loom::model(|| {
            let ring = ring(2);
            let kernels = Arc::clone(&ring);
            let kernel = thread::spawn(move || {
                let mut next = 0;
                (1..=4)
                    .filter(|&number| {
                        let filled = fill(&kernels[next], number);
                        next = (next + usize::from(filled)) % 2;
                        filled
                    })
                    .collect::<Vec<u32>>()
            });
            let mut seen = Vec::new();
            let mut next = 0;
            let mut look = || {
                let block = &ring[next];
                let handover = BlockStatus::of(&block.status);
                let Some(_) = handover.ours() else { return false };
                // SAFETY: loom checks that the kernel does not write meanwhile.
                let [header, packet] = block.payload.with(|payload| unsafe { *payload });
                assert_eq!(header, packet, "never half a block");
                seen.push(header);
                handover.give_back();
                next = (next + 1) % 2;
                true
            };
            look();
            look();
            let filled = kernel.join().unwrap();
            while look() {}
            assert_eq!(seen, filled, "what was filled is seen once, in order");
        });
    }
}
