//! Stages of the chain: taking one, its owner, and cleaning up after owners that were killed.
//!
//! The kernel removes a dead owner's sockets from all maps, so its stage is free and affects no packet: its
//! program finds no socket in `sluice_alive`, or none to redirect to (and counts `missed`). One that only
//! counts may go on counting. The next process that joins removes everything else: the program and the memory it
//! holds, the interface it forwards to, the mark, and the entry in `sluice_owners`.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

use sluicegate_base::ring::now_ns;

use super::shared::{
    CLAIM_LOCK, CLAIMS, COUNTERS, DROP, FLOWS, FORWARD, MIRRORS, SCRUB, TALLY_BYTES, has_program,
};
use super::{MAX_ATTEMPTS, OwnedStage, RETRY_INTERVAL, Resident, StageCounters, privileged};
use crate::error::Result;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Insn, Size, xdp_action, xdp_md};
use crate::link::Interface;
use crate::xdp::bpf::{self, Write};
use crate::xdp::redirects::RedirectSender;

/// Length of a packet to run a program on: longer than the 14 bytes that the kernel requires.
const PACKET_BYTES: usize = 64;
/// Stack offset of a map's key.
const KEY: i16 = -8;

/// An owner's action on the packets of its stage (`enum sluice_kind`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Takes packets to its sockets.
    #[default]
    Take = 1,
    /// Drops packets.
    Drop = 2,
    /// Counts packets and passes them on.
    Pass = 3,
    /// Copies packets.
    Mirror = 4,
    /// Redirects packets to another interface.
    Forward = 5,
    /// Drops packets of attacks and passes the others on.
    Scrub = 6,
}

impl Action {
    const ALL: [Self; 6] =
        [Self::Take, Self::Drop, Self::Pass, Self::Mirror, Self::Forward, Self::Scrub];

    /// Returns the action's name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Mirror => "mirror",
            Self::Forward => "forward",
            Self::Scrub => "scrub",
        }
    }
}

/// The owner of a stage, as `sluice_owners` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Time at which it took the stage, in ns since 1970 (UTC).
    pub since_ns: u64,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// The command's name.
    pub command: String,
    /// The first of its queues.
    pub first_queue: u32,
    /// The number of its queues, from the first on.
    pub queues: u32,
    /// Its action on packets.
    pub action: Action,
    /// Its filter, empty for everything; for [`Action::Scrub`] a description. Truncated if it is very long.
    pub filter: String,
}

/// Bytes of `struct sluice_owner`.
pub(super) const OWNER_BYTES: usize = 512;

/// `struct sluice_owner`.
#[repr(C)]
#[derive(Clone, Copy)]
struct OwnerLayout {
    since_ns: u64,
    pid: u32,
    first_queue: u32,
    queues: u32,
    kind: u32,
    command: [u8; 16],
    reserved: [u64; 3],
    before: StageCounters,
    reserved_of_tally: [u64; 2],
    filter: [u8; 384],
}

const _: () = {
    assert!(size_of::<OwnerLayout>() == OWNER_BYTES);
    assert!(offset_of!(OwnerLayout, kind) == 20);
    assert!(offset_of!(OwnerLayout, before) == 64);
    assert!(offset_of!(OwnerLayout, filter) == 64 + TALLY_BYTES);
};

impl Owner {
    /// Describes this process as an owner from now on.
    pub(crate) fn myself(action: Action, filter: &str, queues: RangeInclusive<u32>) -> Self {
        let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            since_ns: now_ns(),
            pid: std::process::id(),
            command: command.trim_end().to_owned(),
            first_queue: *queues.start(),
            queues: queues.end() - queues.start() + 1,
            action,
            filter: filter.to_owned(),
        }
    }

    /// Returns the owner's queues. The numbers come from another process and may have any value.
    pub(crate) fn range(&self) -> RangeInclusive<u32> {
        self.first_queue..=self.first_queue.saturating_add(self.queues.saturating_sub(1))
    }

    /// Encodes an entry of `sluice_owners`; `before` contains the stage's counters when it was taken.
    fn to_bytes(&self, before: StageCounters) -> [u8; OWNER_BYTES] {
        let mut layout = OwnerLayout {
            since_ns: self.since_ns,
            pid: self.pid,
            first_queue: self.first_queue,
            queues: self.queues,
            kind: self.action as u32,
            command: [0; 16],
            reserved: [0; 3],
            before,
            reserved_of_tally: [0; 2],
            filter: [0; 384],
        };
        put_text(&mut layout.command, &self.command);
        put_text(&mut layout.filter, &self.filter);
        // SAFETY: OwnerLayout is 512 bytes of numbers without padding (asserted above: the
        // fields' sizes add up to it).
        unsafe { std::mem::transmute::<OwnerLayout, [u8; OWNER_BYTES]>(layout) }
    }

    /// Decodes an entry of `sluice_owners`. None if the stage has no owner.
    fn from_bytes(bytes: &[u8; OWNER_BYTES]) -> Option<(Self, StageCounters)> {
        // SAFETY: the sizes are equal, and every bit pattern is an OwnerLayout.
        let layout = unsafe { std::mem::transmute::<[u8; OWNER_BYTES], OwnerLayout>(*bytes) };
        let owner = Self {
            since_ns: layout.since_ns,
            pid: layout.pid,
            command: text(&layout.command),
            first_queue: layout.first_queue,
            queues: layout.queues,
            action: Action::ALL.into_iter().find(|action| *action as u32 == layout.kind)?,
            filter: text(&layout.filter),
        };
        Some((owner, layout.before))
    }
}

/// `sluice (process 4711)`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.command, self.pid)
    }
}

/// Writes as much of a text as fits, followed by a NUL.
fn put_text(to: &mut [u8], text: &str) {
    let bytes = text.floor_char_boundary((to.len() - 1).min(text.len()));
    to[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
}

fn text(from: &[u8]) -> String {
    let bytes = from.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// A stage owned by this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    resident: Arc<Resident>,
    number: u32,
    /// The socket in `sluice_owned` and `sluice_alive`, as long as it is open.
    liveness_socket: OwnedFd,
    /// The stage's counters when it was taken.
    before: StageCounters,
}

impl Stage {
    /// Takes the lowest free stage of a range, possibly one of a dead owner. Build its program for its
    /// [`number`](Self::number); it acts after [`complete`](Self::complete).
    pub(crate) fn take(
        resident: &Arc<Resident>,
        stages: Range<u32>,
        owner: &Owner,
    ) -> Result<Self> {
        let (operation, ports) = match owner.action {
            Action::Mirror => ("copy packets from", "mirrors"),
            Action::Scrub => ("drop attacks on", ""),
            _ => ("take packets from", "ports of this kind"),
        };
        let failed = |error| resident.failed(operation, error);
        let liveness_socket = bpf::liveness_socket().map_err(failed)?;
        let Some(number) = occupy(resident, stages.clone(), &liveness_socket).map_err(failed)?
        else {
            let interface = &resident.interface;
            let (reason, remedy) = match stages.len() {
                1 => {
                    let first = resident.entry(stages.start)?.map(|(owner, _)| owner.to_string());
                    let first = first.as_deref().unwrap_or("another process");
                    let remedy = format!("end it first (`sluice claims {interface}` shows it)");
                    (format!("{first} already does the same there"), remedy)
                }
                most => {
                    let remedy = format!("`sluice claims {interface}` shows them");
                    (format!("it has at most {most} {ports}"), remedy)
                }
            };
            return Err(failed(io::Error::other(reason)).remedy(remedy));
        };
        let kept = match resident.control.is_kept(number) {
            true => resident.entry(number)?,
            false => None,
        };
        if kept.is_none() {
            // A dead owner may have left a program and entries behind.
            resident.empty(number).map_err(failed)?;
        }
        // The counters of a program that was kept go on.
        let before = kept.map_or_else(|| resident.tallies.of_owner(number), |(_, before)| before);
        let entry = owner.to_bytes(before);
        bpf::write_entry(resident.owners.as_fd(), number, &entry, Write::Any).map_err(failed)?;
        Ok(Self { resident: Arc::clone(resident), number, liveness_socket, before })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Installs the stage's program, if it has one, and activates the stage.
    pub(crate) fn complete(&self, program: Option<BorrowedFd<'_>>) -> Result<()> {
        let Self { resident, number, liveness_socket, .. } = self;
        let install = || {
            if let Some(program) = program {
                bpf::put(resident.stages.as_fd(), *number, &program, Write::Any)?;
            }
            bpf::put(resident.alive.as_fd(), *number, liveness_socket, Write::Any)
        };
        install().map_err(|error| resident.failed("take packets from", error))?;
        resident.control.set_present(*number);
        Ok(())
    }

    /// Sets the interface, one of this thread's network namespace, to which the stage forwards. Call it
    /// before [`complete`](Self::complete). When the interface is removed, the kernel removes the entry,
    /// and the host gets the packets.
    pub(crate) fn forward_to(&self, interface: &Interface) -> Result<()> {
        let (out, index) = (self.resident.out.as_fd(), interface.index.to_ne_bytes());
        bpf::write_entry(out, self.number, &index, Write::Any)
            .map_err(|error| privileged(error, "redirect to", &interface.name))
    }

    /// Starts counting the fate of packets that the stage [forwards](Self::forward_to) between two
    /// interfaces. None without CAP_PERFMON or BTF, or if this process already counts those between the two.
    pub(crate) fn count_redirects(
        &self,
        from: &Interface,
        to: &Interface,
    ) -> Option<RedirectSender> {
        let mut sender = RedirectSender::new(self.resident.out.as_fd(), self.number).ok()?;
        sender.forwards(from.index, to.index).ok()?;
        Some(sender)
    }

    /// Returns the interface's resident program.
    pub(crate) fn resident(&self) -> &Resident {
        &self.resident
    }

    /// Deactivates the stage. It may still count a packet that it is processing.
    pub(crate) fn stop(&self) {
        self.resident.control.clear_present(self.number);
        // If this fails, the kernel removes the entry when the liveness socket is closed.
        let _ = bpf::remove(self.resident.alive.as_fd(), self.number);
    }

    /// Fails if the resident program is not attached to the interface any more.
    ///
    /// # Errors
    /// As [`Resident::check_attached`].
    pub(crate) fn check_attached(&self) -> Result<()> {
        self.resident.check_attached()
    }

    /// Returns the stage's counters since it was taken.
    pub(crate) fn tally(&self) -> StageCounters {
        self.resident.tallies.of_owner(self.number).since(self.before)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let resident = &self.resident;
        if resident.control.is_kept(self.number) {
            let _ = bpf::remove(resident.alive.as_fd(), self.number);
            let _ = bpf::remove(resident.owned.as_fd(), self.number);
            return;
        }
        // In this order, because another process may take the stage as soon as it is not owned. If a call
        // fails, the kernel does the work when the liveness socket is closed, or the next process that joins.
        self.stop();
        let _ = resident.empty(self.number);
        let _ = bpf::remove(resident.owned.as_fd(), self.number);
    }
}

/// Lock for taking a stage depending on which others are taken.
#[derive(Debug)]
pub(crate) struct ClaimLock {
    /// The socket in `sluice_owned`, as long as it is open.
    _liveness_socket: OwnedFd,
}

impl ClaimLock {
    /// Waits for the lock, at most a second: a holder only checks and takes a stage.
    pub(crate) fn wait(resident: &Resident) -> Result<Self> {
        let failed = |error| resident.failed("take packets from", error);
        let liveness_socket = bpf::liveness_socket().map_err(failed)?;
        match occupy(resident, CLAIM_LOCK..CLAIM_LOCK + 1, &liveness_socket).map_err(failed)? {
            Some(_) => Ok(Self { _liveness_socket: liveness_socket }),
            None => {
                Err(failed(io::Error::other("another process holds the lock for taking claims"))
                    .remedy("if one is stopped (state T in `ps`), let it go on or end it"))
            }
        }
    }
}

/// Inserts the liveness socket into the lowest free stage of a range. Retries for a second before it returns
/// none: a process that cleans up holds a stage for a moment, longer if it loses its CPU.
fn occupy(
    resident: &Resident,
    stages: Range<u32>,
    liveness_socket: &OwnedFd,
) -> io::Result<Option<u32>> {
    for look in 0..MAX_ATTEMPTS {
        if look > 0 {
            std::thread::sleep(RETRY_INTERVAL);
        }
        for stage in stages.clone() {
            match bpf::put(resident.owned.as_fd(), stage, liveness_socket, Write::New) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                other => return other.map(|()| Some(stage)),
            }
        }
    }
    Ok(None)
}

/// Sockets in `sluice_direct`, one per queue, which get the packets that no other stage took.
#[derive(Debug)]
pub(crate) struct Direct {
    resident: Arc<Resident>,
    /// The stage that counts their packets.
    stage: u32,
    queues: Vec<u32>,
}

impl Direct {
    /// Makes an empty set whose packets are counted at a stage without a program.
    pub(crate) fn new(stage: &Stage) -> Self {
        Self { resident: Arc::clone(&stage.resident), stage: stage.number, queues: Vec::new() }
    }

    /// Gives a queue's packets to a socket bound to it.
    pub(crate) fn add(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<()> {
        bpf::put(self.resident.direct.as_fd(), queue, socket, Write::New).map_err(|error| {
            let taken = error.raw_os_error() == Some(libc::EEXIST);
            let error = self.resident.failed("take packets from", error);
            if taken {
                error.remedy(format!(
                    "another port takes all packets of that queue: `sluice claims {}` shows it",
                    self.resident.interface
                ))
            } else {
                error
            }
        })?;
        self.queues.push(queue);
        self.resident.control.set_direct(queue, self.stage);
        Ok(())
    }

    /// Stops taking packets from a queue.
    pub(crate) fn remove(&mut self, queue: u32) -> Result<()> {
        // Only an entry of its own, because another owner's may have replaced it.
        let Some(at) = self.queues.iter().position(|&ours| ours == queue) else { return Ok(()) };
        self.queues.swap_remove(at);
        // This call alone stops the packets.
        self.resident.control.clear_direct(queue, self.stage);
        bpf::remove_socket(self.resident.direct.as_fd(), queue)
            .map_err(|error| self.resident.failed("take no more packets from", error))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // If this fails, the kernel removes the sockets when they are closed.
        while let Some(&queue) = self.queues.first() {
            let _ = self.remove(queue);
        }
    }
}

/// Returns all stages that can have an owner, in the order in which they process a packet. Claims on all
/// packets are an exception: `sluice_direct` distributes their packets after FORWARD.
fn stages() -> impl Iterator<Item = u32> {
    COUNTERS.chain(MIRRORS).chain(SCRUB).chain(FLOWS).chain(CLAIMS).chain([FORWARD, DROP])
}

impl Resident {
    /// Returns the stages that have a living owner or are kept without one, in the order in which they process a
    /// packet.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn owned_stages(&self) -> Result<Vec<OwnedStage>> {
        let held = self.held()?;
        let mut claims = Vec::new();
        for stage in stages() {
            let is_owned = held & 1 << stage != 0;
            if !is_owned && !self.control.is_kept(stage) {
                continue;
            }
            // None: a process is taking or leaving the stage at this moment.
            if let Some((owner, before)) = self.entry(stage)? {
                let tally = self.tallies.of_owner(stage).since(before);
                claims.push(OwnedStage { stage, owner, tally, is_owned });
            }
        }
        Ok(claims)
    }

    /// Returns the owner of a stage, and the stage's counters when it was taken. The entry of a killed
    /// owner stays until the next process joins.
    pub(super) fn entry(&self, stage: u32) -> Result<Option<(Owner, StageCounters)>> {
        let mut bytes = [0; OWNER_BYTES];
        let found = bpf::read_entry(self.owners.as_fd(), stage, &mut bytes)
            .map_err(|error| self.failed("read who has a claim on", error))?;
        Ok(if found { Owner::from_bytes(&bytes) } else { None })
    }

    /// Returns a bit for each stage with a living owner. bpf(2) cannot read a map of sockets, so a program
    /// reads it in one test run.
    fn held(&self) -> Result<u64> {
        let failed = |error| self.failed("look for claims on", error);
        let program = bpf::load(c"sluice_held", &self.held_program().map_err(failed)?, false)
            .map_err(|refused| failed(refused.error))?;
        let (_, packet) = bpf::run(program.as_fd(), &[0; PACKET_BYTES]).map_err(failed)?;
        Ok(u64::from_ne_bytes(packet.first_chunk().copied().unwrap_or_default()))
    }

    /// Builds a program that overwrites the first 8 bytes of its packet with a bit for each owned stage.
    fn held_program(&self) -> io::Result<Vec<Insn>> {
        let mut asm = Assembler::new();
        let none = asm.label();
        asm.mov(R6, R1);
        asm.mov(R7, 0);
        for stage in stages() {
            let free = asm.label();
            asm.store(Size::W, R10 + KEY, stage.cast_signed());
            bpf::write_lookup(&mut asm, &self.owned, KEY, free);
            asm.load_constant(R1, 1 << stage);
            asm.or(R7, R1);
            asm.place(free);
        }
        asm.load(Size::W, R1, R6 + xdp_md::DATA);
        asm.load(Size::W, R2, R6 + xdp_md::DATA_END);
        asm.mov(R3, R1).add(8).jgt(R2, none);
        asm.store(Size::DW, R1 + 0, R7);
        asm.place(none);
        asm.mov(R0, xdp_action::PASS);
        asm.exit();
        asm.finish().map_err(|fault| io::Error::other(fault.to_string()))
    }

    /// Removes what killed owners left behind.
    pub(super) fn clean(&self) -> Result<()> {
        let held = self.held()?;
        for stage in stages().filter(|&it| held & 1 << it == 0 && !self.control.is_kept(it)) {
            if self.control.is_present(stage) || self.entry(stage)?.is_some() {
                self.clean_stage(stage)
                    .map_err(|error| self.failed("clean up the claims on", error))?;
            }
        }
        Ok(())
    }

    /// Takes ownership of a stage while emptying it.
    fn clean_stage(&self, stage: u32) -> io::Result<()> {
        let liveness_socket = bpf::liveness_socket()?;
        match bpf::put(self.owned.as_fd(), stage, &liveness_socket, Write::New) {
            // A new owner has taken it, and has emptied it.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(()),
            other => other?,
        }
        self.empty(stage)?;
        bpf::remove(self.owned.as_fd(), stage)
    }

    /// Removes a stage's program, mark and entries. Only the stage's owner may call it.
    fn empty(&self, stage: u32) -> io::Result<()> {
        if self.control.is_kept(stage) {
            self.control.set_kept(false);
        }
        self.control.clear_present(stage);
        self.control.clear_direct_of(stage);
        bpf::remove(self.alive.as_fd(), stage)?;
        bpf::remove(self.out.as_fd(), stage)?;
        if has_program(stage) {
            bpf::remove(self.stages.as_fd(), stage)?;
        }
        bpf::write_entry(self.owners.as_fd(), stage, &[0; OWNER_BYTES], Write::Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let owner = Owner {
            since_ns: 1 << 60,
            pid: 4711,
            command: "sluice".into(),
            first_queue: 2,
            queues: 3,
            action: Action::Drop,
            filter: "udp port 53".into(),
        };
        let before = StageCounters {
            packets: 1,
            bytes: 2,
            taken: 3,
            missed: 4,
            dropped: 5,
            dropped_bytes: 6,
        };
        let bytes = owner.to_bytes(before);
        assert_eq!((bytes[64], bytes[104]), (1, 6), "as struct sluice_tally");
        assert_eq!(Owner::from_bytes(&bytes), Some((owner, before)));
        assert_eq!(Owner::from_bytes(&[0; OWNER_BYTES]), None, "no owner");
    }

    #[test]
    fn a_long_filter_is_truncated_between_characters() {
        let owner = Owner {
            since_ns: 0,
            pid: 1,
            command: "a-command-of-more-than-15".into(),
            first_queue: 0,
            queues: 1,
            action: Action::Take,
            filter: "ü".repeat(300),
        };
        let (read, _) = Owner::from_bytes(&owner.to_bytes(StageCounters::default())).unwrap();
        assert_eq!(read.filter, "ü".repeat(191));
        assert_eq!(read.command, "a-command-of-mo");
    }
}
