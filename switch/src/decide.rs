//! Where each packet of a batch goes.

use std::time::Instant;

use sluicegate::ring::Packet;

use crate::counts::LossCause;
use crate::frame::{Header, is_group, is_link_local};
use crate::member::Member;
use crate::table::{Learned, PortNumber, Table, Tick};
use crate::vlan::{Form, Vlans};

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// One port gets it.
    To(PortNumber),
    /// All get it but the one it came from.
    Flood,
    /// Nobody gets it.
    Nowhere,
    /// The run has ended.
    AfterEnd,
}

/// The fate of a packet, and the properties that its counting needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub fate: Fate,
    pub slots: u16,
    pub vlan: u16,
    /// Its tag, where it has one.
    pub tag: Option<u16>,
    /// Its bytes on the wire.
    pub bytes: u32,
}

/// Rules of the switch that hold for all ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Knows VLANs: each is a switch of its own.
    pub vlans: bool,
    /// Forwards what is for link-local groups, pause frames excepted.
    pub link_local: bool,
}

/// All that decisions are made of.
pub(crate) struct Decider<'a> {
    pub rules: Rules,
    pub table: &'a mut Table,
    pub members: &'a [Option<Box<Member>>],
    pub now: Tick,
}

/// Where MAC control frames go (IEEE 802.3, 31A): between the ends of a link only.
const PAUSE: u64 = 0x0180_c200_0001;

impl Decider<'_> {
    /// Decides on a packet that has come in at a port, and learns from it.
    #[inline]
    pub fn decide(
        &mut self,
        packet: &Packet<'_>,
        number: PortNumber,
        from: &mut Member,
    ) -> Decision {
        let bytes = packet.meta().wire_bytes;
        from.counts.packets += 1;
        from.counts.bytes += u64::from(bytes);
        let slots = packet.slots() as u16;
        let nowhere = Decision { fate: Fate::Nowhere, slots, vlan: 0, tag: None, bytes };
        let header = Header::read(packet.head()).filter(|header| !is_group(header.from));
        let admitted = header.ok_or(LossCause::Malformed).and_then(|header| {
            let vlan = self.admit(&header, packet, &from.config.vlans)?;
            Ok((header, vlan))
        });
        let (header, vlan) = match admitted {
            Ok(admitted) => admitted,
            Err(cause) => {
                from.counts.drop(cause);
                return nowhere;
            }
        };
        self.learn(vlan, header.from, number, from);
        let fate = match self.fate(&header, vlan, number, from) {
            Ok(fate) => fate,
            Err(cause) => {
                from.counts.drop(cause);
                Fate::Nowhere
            }
        };
        Decision { fate, vlan, tag: header.tag, ..nowhere }
    }

    /// The VLAN of a frame that may come in.
    #[inline]
    fn admit(&self, header: &Header, packet: &Packet<'_>, vlans: &Vlans) -> Result<u16, LossCause> {
        if packet.captured_bytes() < packet.meta().wire_bytes as usize {
            return Err(LossCause::Cut);
        }
        if is_link_local(header.to) && !(self.rules.link_local && header.to != PAUSE) {
            return Err(LossCause::LinkLocal);
        }
        if !self.rules.vlans {
            return Ok(0);
        }
        let vlan = vlans.of(header.tag).ok_or(LossCause::Vlan)?;
        // Where the outer tag is taken off, the inner one would lead into another VLAN.
        if header.is_tagged_again && vlans.untagged == Some(vlan) {
            return Err(LossCause::Vlan);
        }
        Ok(vlan)
    }

    /// A port that leaves teaches nothing: what it had is forgotten, and its number may soon be another's.
    #[inline]
    fn learn(&mut self, vlan: u16, mac: u64, number: PortNumber, from: &mut Member) {
        if from.leaving.is_some() {
            return;
        }
        match self.table.learn(vlan, mac, number, self.now) {
            Learned::Same | Learned::New => {}
            Learned::Moved => from.counts.moved += 1,
            Learned::Elsewhere => from.counts.elsewhere += 1,
            Learned::NoRoom => from.counts.unlearned += 1,
        }
    }

    #[inline]
    fn fate(
        &mut self,
        header: &Header,
        vlan: u16,
        number: PortNumber,
        from: &mut Member,
    ) -> Result<Fate, LossCause> {
        let known =
            if is_group(header.to) { None } else { self.table.find(vlan, header.to, self.now) };
        match known {
            Some(port) if port == number => Err(LossCause::SamePort),
            Some(port) if self.reaches(port, vlan, header.tag) => {
                from.counts.forwarded += 1;
                Ok(Fate::To(port))
            }
            Some(_) => Err(LossCause::NoPort),
            None => self.flood(header, vlan, from),
        }
    }

    /// A packet for all others: where there is but one other, it is as if it was known.
    fn flood(&self, header: &Header, vlan: u16, from: &mut Member) -> Result<Fate, LossCause> {
        // The port that it came from has been taken out of the members meanwhile.
        let mut others = (0..self.members.len() as PortNumber)
            .filter(|&port| self.reaches(port, vlan, header.tag));
        let (first, second) = (others.next(), others.next());
        let first = first.ok_or(LossCause::NoPort)?;
        if from.storm.as_mut().is_some_and(|storm| !storm.allow()) {
            return Err(LossCause::Storm);
        }
        from.counts.flooded += 1;
        Ok(if second.is_some() { Fate::Flood } else { Fate::To(first) })
    }

    /// Returns true if a port sends packets of a VLAN.
    fn reaches(&self, port: PortNumber, vlan: u16, tag: Option<u16>) -> bool {
        let member = self.members.get(usize::from(port)).and_then(Option::as_deref);
        member.is_some_and(|member| form(self.rules, member, vlan, tag).is_some())
    }
}

/// How a frame of a VLAN leaves by a port; none if it may not.
#[inline]
pub(crate) fn form(rules: Rules, to: &Member, vlan: u16, tag: Option<u16>) -> Option<Form> {
    match rules.vlans {
        _ if !to.takes() => None,
        true => to.config.vlans.form(vlan, tag),
        false => Some(Form::AsIs),
    }
}

/// The moment as the table has it.
pub(crate) fn tick(start: Instant, now: Instant) -> Tick {
    (now.saturating_duration_since(start).as_millis() / 100) as Tick
}
