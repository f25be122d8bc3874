//! Closes netmap files at exit(3), which sends pending packets.
#![allow(unsafe_code)]

use std::sync::Once;

use crate::calls;
use crate::table::{self, Object};

/// Registers the function that ends all ports at exit(3); once for all.
pub fn close_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the function stays loaded as long as the process.
    ONCE.call_once(|| _ = unsafe { libc::atexit(close_all) });
}

/// Closes the files that this process has used since it was forked, which sends what is pending. A signal handler
/// that exits in the middle of a call must not wait for the locks of that call.
extern "C" fn close_all() {
    if calls::is_interrupted() {
        return;
    }
    for fd in table::numbers(0, u32::MAX) {
        let ours = matches!(table::get(fd).as_deref(), Some(Object::Netmap(file)) if file.owner().is_ours());
        if ours {
            drop(table::remove(fd));
        }
    }
}
