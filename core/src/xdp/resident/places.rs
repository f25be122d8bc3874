//! Places in the chain: who has them, and what is left there of those who were killed.
//!
//! The kernel takes a dead owner's sockets out of `sluice_owned` and `sluice_alive`, so that its
//! place does nothing and can be had. What it does not take away, the program in its place with
//! all the memory that it knows, the interface that it forwards to, its mark and its entry among the
//! owners, whoever joins next does.

use std::io;
use std::os::fd::AsFd;

use super::owner::{OWNER_BYTES, Owner, OwnerEntry};
use super::shared::{CLAIMS, COUNTERS, DROP, FLOWS, FORWARD, MIRRORS, has_program};
use super::{Claimed, Resident};
use crate::error::Result;
use crate::filter::ebpf::Reg::*;
use crate::filter::ebpf::{Assembler, Helper, Size, xdp_action, xdp_md};
use crate::xdp::bpf::{self, Write};

/// A packet to run a program on: longer than the shortest that the kernel takes, 14 bytes.
const PACKET_BYTES: usize = 64;
/// Where a map's key stands on the stack.
const KEY: i16 = -8;

/// All that somebody can have, in the order in which they see a packet; but what `sluice_direct` gives
/// to sockets, counted at places of claims, it gives behind FORWARD.
fn places() -> impl Iterator<Item = u32> {
    COUNTERS.chain(MIRRORS).chain(FLOWS).chain(CLAIMS).chain([FORWARD, DROP])
}

/// Places that have an owner that lives, at one moment.
#[derive(Clone, Copy, Debug)]
struct LivePlaces(u64);

impl LivePlaces {
    fn has(self, place: u32) -> bool {
        self.0 & 1 << place != 0
    }
}

impl Resident {
    /// The stages that somebody has, in the order in which they see a packet.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn claims(&self) -> Result<Vec<Claimed>> {
        let held = self.held()?;
        let mut claims = Vec::new();
        for place in places().filter(|&place| held.has(place)) {
            // None: somebody is taking or leaving it just now.
            if let Some(OwnerEntry { owner, before }) = self.entry(place)? {
                let tally = self.tallies.of_place(place).since(before);
                claims.push(Claimed { place, owner, tally });
            }
        }
        Ok(claims)
    }

    /// Who has a stage. One that was killed stays until somebody joins.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn owner(&self, stage: u32) -> Result<Option<Owner>> {
        Ok(self.entry(stage)?.map(|entry| entry.owner))
    }

    fn entry(&self, place: u32) -> Result<Option<OwnerEntry>> {
        let mut bytes = [0; OWNER_BYTES];
        let found = bpf::read_entry(self.owners.as_fd(), place, &mut bytes);
        let failed = |error| self.failed("read who has a claim on", error);
        Ok(if found.map_err(failed)? { OwnerEntry::from_bytes(&bytes) } else { None })
    }

    /// Which places have owners that live. Of a map of sockets bpf(2) tells nothing; a program
    /// may look, and is run here once.
    fn held(&self) -> Result<LivePlaces> {
        let failed = |error| self.failed("look for claims on", error);
        let program = bpf::load(c"sluice_held", &self.looking().map_err(failed)?, false)
            .map_err(|refused| failed(refused.error))?;
        let (_, packet) = bpf::run(program.as_fd(), &[0; PACKET_BYTES]).map_err(failed)?;
        let first = packet.first_chunk().copied().unwrap_or_default();
        Ok(LivePlaces(u64::from_ne_bytes(first)))
    }

    /// A program that writes over its packet's first bytes which places are held, a bit each.
    fn looking(&self) -> io::Result<Vec<crate::filter::ebpf::Insn>> {
        let mut asm = Assembler::new();
        let none = asm.label();
        asm.mov(R6, R1);
        asm.mov(R7, 0);
        for place in places() {
            let free = asm.label();
            asm.store(Size::W, R10 + KEY, place.cast_signed());
            asm.load_map(R1, &self.owned);
            asm.mov(R2, R10);
            asm.add(R2, i32::from(KEY));
            asm.call(Helper::MAP_LOOKUP);
            asm.jeq(R0, 0, free);
            asm.load_constant(R1, 1 << place);
            asm.or(R7, R1);
            asm.place(free);
        }
        asm.load(Size::W, R1, R6 + xdp_md::DATA);
        asm.load(Size::W, R2, R6 + xdp_md::DATA_END);
        asm.mov(R3, R1);
        asm.add(R3, 8);
        asm.jgt(R3, R2, none);
        asm.store(Size::DW, R1 + 0, R7);
        asm.place(none);
        asm.mov(R0, xdp_action::PASS);
        asm.exit();
        asm.finish().map_err(|fault| io::Error::other(fault.to_string()))
    }

    /// Takes away what owners that were killed have left.
    pub(super) fn clean(&self) -> Result<()> {
        let held = self.held()?;
        for place in places().filter(|&place| !held.has(place)) {
            if self.control.is_present(place) || self.entry(place)?.is_some() {
                self.clean_place(place)
                    .map_err(|error| self.failed("clean up the claims on", error))?;
            }
        }
        Ok(())
    }

    /// Takes a place for as long as it takes to empty it: nobody else has it meanwhile.
    fn clean_place(&self, place: u32) -> io::Result<()> {
        let token = bpf::token()?;
        match bpf::put(self.owned.as_fd(), place, &token, Write::New) {
            // It has an owner by now, who has found it empty or made it so.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(()),
            other => other?,
        }
        self.empty(place)?;
        bpf::remove(self.owned.as_fd(), place)
    }

    /// Takes all away that stands in a place, and its entry; to be called by who has it.
    pub(super) fn empty(&self, place: u32) -> io::Result<()> {
        self.control.clear_present(place);
        self.control.clear_direct_of(place);
        bpf::remove(self.alive.as_fd(), place)?;
        bpf::remove(self.out.as_fd(), place)?;
        if has_program(place) {
            bpf::remove(self.stages.as_fd(), place)?;
        }
        bpf::write_entry(self.owners.as_fd(), place, &[0; OWNER_BYTES], Write::Any)
    }
}
