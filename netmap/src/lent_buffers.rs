//! The buffers that a program in another process holds: one bit each.
//!
//! The program returns a buffer by its number, and may write any number. The thread that clears the number's
//! bit gets the buffer. A bit that is already clear means that the buffer was returned twice, or that the
//! program never had it.

use sluicegate_base::ring::{AtomicU32, Ordering};

const BITS: u32 = u32::BITS;

/// The set of buffers lent to one program, over all its rings.
#[derive(Debug)]
pub(crate) struct LentBuffers {
    words: Box<[AtomicU32]>,
}

impl LentBuffers {
    /// Creates an empty set, for `buffers` buffers.
    pub(crate) fn none_of(buffers: u32) -> Self {
        Self { words: (0..buffers.div_ceil(BITS)).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Lends a buffer to the program. Release: pairs with `take_back` by any ring, and publishes the last
    /// holder's writes.
    #[inline]
    pub(crate) fn lend(&self, buffer: u32) {
        let before = self.word(buffer).fetch_or(bit(buffer), Ordering::Release);
        debug_assert!(before & bit(buffer) == 0, "buffer {buffer} has two holders");
    }

    /// Takes a buffer back for the caller; false if the program did not hold it. Acquire: pairs with `lend`.
    #[inline]
    pub(crate) fn take_back(&self, buffer: u32) -> bool {
        let word = self.words.get((buffer / BITS) as usize);
        word.is_some_and(|it| it.fetch_and(!bit(buffer), Ordering::Acquire) & bit(buffer) != 0)
    }

    /// Takes all buffers back.
    pub(crate) fn drain(&self) -> Vec<u32> {
        let words = self.words.iter().zip((0..).step_by(BITS as usize));
        let taken = words.map(|(word, first)| (word.swap(0, Ordering::Acquire), first));
        let buffers = taken.flat_map(|(word, first)| {
            (0..BITS).filter(move |i| word >> i & 1 != 0).map(move |i| first + i)
        });
        buffers.collect()
    }

    #[inline]
    fn word(&self, buffer: u32) -> &AtomicU32 {
        &self.words[(buffer / BITS) as usize]
    }
}

#[inline]
fn bit(buffer: u32) -> u32 {
    1 << (buffer % BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_once() {
        let held = LentBuffers::none_of(70);
        for buffer in [2, 31, 32, 69] {
            held.lend(buffer);
            assert!(held.take_back(buffer) && !held.take_back(buffer), "{buffer}");
        }
        assert!(!held.take_back(3), "it was never lent");
        assert!(!held.take_back(u32::MAX), "no such buffer");
        held.lend(5);
        held.lend(64);
        assert_eq!(held.drain(), [5, 64]);
        assert_eq!(held.drain(), []);
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A buffer's byte, which only its holder may write. So loom detects two holders.
    struct Byte(UnsafeCell<u8>);

    // SAFETY: loom checks that two threads never write it at once.
    unsafe impl Send for Byte {}
    // SAFETY: as above.
    unsafe impl Sync for Byte {}

    #[test]
    fn loom_a_number_given_back_to_two_rings_is_one_rings() {
        loom::model(|| {
            let shared = Arc::new((LentBuffers::none_of(8), Byte(UnsafeCell::new(0))));
            shared.1.0.with_mut(|_| ());
            shared.0.lend(3);
            let others = Arc::clone(&shared);
            let take = |(held, byte): &(LentBuffers, Byte)| {
                let is_mine = held.take_back(3);
                if is_mine {
                    byte.0.with_mut(|_| ());
                }
                is_mine
            };
            let other = thread::spawn(move || take(&others));
            let mine = take(&shared);
            assert!(mine ^ other.join().unwrap(), "one has it, and one is refused");
        });
    }

    #[test]
    fn loom_the_next_holder_of_a_buffer_sees_what_the_last_one_wrote() {
        loom::model(|| {
            let shared = Arc::new((LentBuffers::none_of(8), Byte(UnsafeCell::new(0))));
            let others = Arc::clone(&shared);
            let other = thread::spawn(move || {
                others.1.0.with_mut(|_| ());
                others.0.lend(3);
            });
            // The program may return the buffer before it has it.
            if shared.0.take_back(3) {
                shared.1.0.with_mut(|_| ());
            }
            other.join().unwrap();
        });
    }
}
