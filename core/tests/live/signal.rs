//! The signal that interrupts a run of live frames.

#![allow(unsafe_code)]

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::alone::is_alone;
use super::stream::send_and_expect;
use super::{lab, receiver, sender};

extern "C" fn own(_: libc::c_int) {}

/// Installs a handler, and returns the one before.
fn install(handler: SigHandler) -> SigHandler {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, which a signal handler may do.
    unsafe { sigaction(Signal::SIGURG, &action) }.unwrap().handler()
}

#[test]
fn the_program_s_own_handler_stays() {
    // The handler is the process's, and is looked at once.
    if !is_alone("signal::the_program_s_own_handler_stays") {
        return;
    }
    let Some(lab) = lab() else { return };
    install(SigHandler::Handler(own));
    let mut to = receiver(&lab);
    let mut from = sender(&lab, "");
    send_and_expect(&mut from.queues[0], &mut to.queues[0], (0, 1000), |_| 60);
    from.queues[0].close_tx().unwrap();
    drop(from);
    let own: extern "C" fn(libc::c_int) = own;
    let after = install(SigHandler::SigDfl);
    let is_own = matches!(after, SigHandler::Handler(it) if std::ptr::fn_addr_eq(it, own));
    assert!(is_own, "{after:?}");
}
