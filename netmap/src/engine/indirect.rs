//! Slots with NS_INDIRECT. Their bytes are at an address of the program, which the engine does not read.

use super::EngineOptions;
use super::ring::SlotHead;
use crate::abi::flags;

/// Finds the indirect slots of a transmit ring, which are dropped, and logs the first.
#[derive(Debug)]
pub(super) struct IndirectSlots {
    options: EngineOptions,
    logged: bool,
}

impl IndirectSlots {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self { options: options.clone(), logged: false }
    }

    /// Returns true if a slot is indirect.
    #[inline]
    pub(super) fn drops(&mut self, slot: SlotHead) -> bool {
        let is_indirect = slot.flags & flags::INDIRECT != 0;
        if is_indirect && !std::mem::replace(&mut self.logged, true) {
            self.options.say(format_args!(
                "slots with NS_INDIRECT are dropped: copy the packet into the slot's buffer instead"
            ));
        }
        is_indirect
    }
}
