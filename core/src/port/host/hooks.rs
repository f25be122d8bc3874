//! Hooks for programs that take the host's packets: tcx, or filters on `clsact`.
//!
//! A link holds a tcx program, and is closed when its owner exits. A filter stays: once its owner is dead,
//! it applies the fallback until a process removes it. The filter's handle records whether the `clsact`
//! discipline was made for it, so that the process that removes the filter also removes the discipline if
//! necessary. Filters of other programs are not changed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::program::NAME;
use crate::link::{FilterPlace, Netlink, TcHook, Then};
use crate::xdp::bpf::{self, TcxProgram};

/// The type of hook to which a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// Linux 6.6.
    Tcx,
    /// Filters on the queueing discipline `clsact`.
    Clsact,
}

impl Hook {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// Priorities after the filters of others. There are two, so that a new filter can be added before an old
/// one is removed.
const PRIORITIES: [u16; 2] = [0xfff0, 0xfff1];
/// The handle of a filter on a discipline that already existed.
const BESIDE_OTHERS: u32 = 1;
/// The handle of a filter whose discipline was made for it.
const ALONE: u32 = 2;

/// Programs attached to an interface until this is dropped.
#[derive(Debug)]
pub(super) struct Hooks {
    interface: u32,
    netlink: Netlink,
    attachment: Attachment,
}

#[derive(Debug)]
enum Attachment {
    Links(Vec<OwnedFd>),
    Filters(Vec<FilterPlace>),
}

impl Hooks {
    /// Attaches programs to an interface of this thread's network namespace, after those of others. Then
    /// removes the programs of a dead owner.
    pub(super) fn put(
        interface: u32,
        hook: Hook,
        programs: &[(TcHook, &OwnedFd)],
    ) -> io::Result<Self> {
        let mut netlink = Netlink::open(None).map_err(io::Error::other)?;
        let attachment = match hook {
            Hook::Tcx => Attachment::Links(
                programs
                    .iter()
                    .map(|(hook, program)| bpf::tcx_attach(program.as_fd(), interface, *hook))
                    .collect::<io::Result<_>>()?,
            ),
            Hook::Clsact => Attachment::Filters(put_filters(&mut netlink, interface, programs)?),
        };
        let mut hooks = Self { interface, netlink, attachment };
        let leftovers = hooks.leftovers()?;
        remove(&mut hooks.netlink, interface, &leftovers)?;
        Ok(hooks)
    }

    /// Returns our filters that another owner left behind.
    fn leftovers(&mut self) -> io::Result<Vec<FilterPlace>> {
        let mut found = filters(&mut self.netlink, self.interface)?;
        if let Attachment::Filters(ours) = &self.attachment {
            found.retain(|place| !ours.contains(place));
        }
        Ok(found)
    }

    /// Returns true if the programs are still attached.
    pub(super) fn are_there(&mut self) -> io::Result<bool> {
        match &self.attachment {
            Attachment::Links(links) => {
                let mut attached = links.iter().map(|link| bpf::tcx_interface(link.as_fd()));
                attached.try_fold(true, |all, interface| Ok(all && interface? != 0))
            }
            Attachment::Filters(ours) => {
                let found = filters(&mut self.netlink, self.interface)?;
                Ok(ours.iter().all(|place| found.contains(place)))
            }
        }
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        // The next owner, or `sluice detach`, removes filters that this call cannot remove; links are
        // closed automatically.
        if let Attachment::Filters(places) = &self.attachment {
            let _ = remove(&mut self.netlink, self.interface, places);
        }
    }
}

/// Removes all our programs from an interface of this thread's network namespace, even those in use.
/// Returns false if there were none.
pub(super) fn clear(interface: u32) -> io::Result<bool> {
    let mut any = false;
    for hook in [TcHook::Egress, TcHook::Ingress] {
        for found in bpf::tcx_programs(interface, hook)? {
            match detach_ours(found) {
                // Its owner has exited in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => any |= other?,
            }
        }
    }
    let mut netlink = Netlink::open(None).map_err(io::Error::other)?;
    let places = filters(&mut netlink, interface)?;
    remove(&mut netlink, interface, &places)?;
    Ok(any || !places.is_empty())
}

/// Returns true if an interface of this thread's network namespace has filters of ours.
pub(super) fn any_filters(interface: u32) -> io::Result<bool> {
    let mut netlink = Netlink::open(None).map_err(io::Error::other)?;
    Ok(!filters(&mut netlink, interface)?.is_empty())
}

/// Detaches a program if it is ours and held by a link.
fn detach_ours(found: TcxProgram) -> io::Result<bool> {
    let Some(link) = found.link else { return Ok(false) };
    let program = bpf::program(found.program)?;
    if !bpf::program_name(program.as_fd())?.starts_with(NAME) {
        return Ok(false);
    }
    bpf::detach(bpf::link(link)?.as_fd()).map(|()| true)
}

/// Adds all filters, or none of them.
fn put_filters(
    netlink: &mut Netlink,
    interface: u32,
    programs: &[(TcHook, &OwnedFd)],
) -> io::Result<Vec<FilterPlace>> {
    let made = netlink.add_clsact(interface)?;
    let mut places = Vec::new();
    let added = filters(netlink, interface).and_then(|old| {
        let alone = made || old.iter().any(|place| place.handle == ALONE);
        let handle = if alone { ALONE } else { BESIDE_OTHERS };
        programs.iter().try_for_each(|&(hook, program)| {
            let taken = |priority: &u16| {
                old.iter().any(|place| place.hook == hook && place.priority == *priority)
            };
            let free = PRIORITIES.into_iter().find(|priority| !taken(priority));
            let priority = free.ok_or_else(|| io::Error::from_raw_os_error(libc::EEXIST))?;
            let suffix = if hook == TcHook::Egress { "out" } else { "in" };
            let place = FilterPlace { hook, priority, handle, name: format!("{NAME}_{suffix}") };
            netlink.add_filter(interface, &place, program.as_fd(), Then::AsProgramSays)?;
            places.push(place);
            Ok(())
        })
    });
    if let Err(error) = added {
        // The first error is the one to report.
        let _ = remove(netlink, interface, &places);
        if made {
            let _ = remove_discipline(netlink, interface);
        }
        return Err(error);
    }
    Ok(places)
}

/// Returns our filters on an interface.
fn filters(netlink: &mut Netlink, interface: u32) -> io::Result<Vec<FilterPlace>> {
    let mut found = netlink.filters(interface, TcHook::Egress)?;
    found.extend(netlink.filters(interface, TcHook::Ingress)?);
    found.retain(|place| place.name.starts_with(NAME));
    Ok(found)
}

/// Removes our filters. With the last one, removes the discipline if it was made for them.
fn remove(netlink: &mut Netlink, interface: u32, places: &[FilterPlace]) -> io::Result<()> {
    for place in places {
        match netlink.delete_filter(interface, place) {
            // Another process has removed it, or the interface was removed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
            other => other?,
        }
    }
    match places.iter().any(|place| place.handle == ALONE) {
        true => remove_discipline(netlink, interface),
        false => Ok(()),
    }
}

/// Removes the discipline if it has no filters.
fn remove_discipline(netlink: &mut Netlink, interface: u32) -> io::Result<()> {
    for hook in [TcHook::Ingress, TcHook::Egress] {
        if !netlink.filters(interface, hook).is_ok_and(|found| found.is_empty()) {
            return Ok(());
        }
    }
    netlink.delete_clsact(interface)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::filter::ebpf::{Assembler, Reg};
    use crate::link::{interface, netns};
    use crate::port::host::program;
    use crate::tests;

    #[test]
    fn programs_that_are_refused_leave_nothing() {
        let Some(lab) = tests::lab() else { return };
        netns::run_in(Some(&lab.netns("right")), || {
            let right0 = interface(None, "right0").unwrap().index;
            let good = program::gate().unwrap();
            let bad = OwnedFd::from(File::open("/dev/null").unwrap());
            for programs in
                [&[(TcHook::Egress, &bad)][..], &[(TcHook::Egress, &good), (TcHook::Ingress, &bad)]]
            {
                assert!(Hooks::put(right0, Hook::Clsact, programs).is_err());
                let mut netlink = Netlink::open(None).unwrap();
                assert!(netlink.add_clsact(right0).unwrap(), "the discipline was removed");
                assert!(Hooks::put(right0, Hook::Clsact, programs).is_err());
                assert_eq!(netlink.filters(right0, TcHook::Egress).unwrap(), []);
                netlink.delete_clsact(right0).expect("it existed before, and stays");
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn filters_are_there_until_they_are_taken_away() {
        let Some(lab) = tests::lab() else { return };
        netns::run_in(Some(&lab.netns("right")), || {
            let right0 = interface(None, "right0").unwrap().index;
            let mut asm = Assembler::new();
            asm.mov(Reg::R0, -1);
            asm.exit();
            let program = bpf::load_tc(c"test", &asm.finish().unwrap()).unwrap();
            let mut netlink = Netlink::open(None).unwrap();
            assert_eq!(netlink.filters(right0, TcHook::Egress).unwrap(), [], "no room for any");
            assert!(netlink.add_clsact(right0).unwrap());
            assert!(!netlink.add_clsact(right0).unwrap(), "it exists");
            for (hook, then) in
                [(TcHook::Egress, Then::AsProgramSays), (TcHook::Ingress, Then::Enter(right0))]
            {
                let name = format!("test-{hook:?}");
                let place = FilterPlace { hook, priority: 100, handle: 2, name };
                netlink.add_filter(right0, &place, program.as_fd(), then).unwrap();
                assert_eq!(netlink.filters(right0, hook).unwrap(), std::slice::from_ref(&place));
                netlink.delete_filter(right0, &place).unwrap();
                assert_eq!(netlink.filters(right0, hook).unwrap(), []);
            }
            assert_eq!(netlink.clsact_drops(right0).unwrap(), Some(0));
            netlink.delete_clsact(right0).unwrap();
            assert!(netlink.add_clsact(right0).unwrap(), "it was removed");
            Ok(())
        })
        .unwrap();
    }
}
