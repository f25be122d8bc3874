//! The ledger: where every packet went.
//!
//! Packets come in at named places, go out at named places, and are lost at named places.
//! What the names do not cover stands as [`unexplained`](Ledger::unexplained), which is
//! zero when all is well; it can be negative, when more came out than is known to have come in.
//! Where others use the same counters, some packets are [`uncertain`](Role::Uncertain): out or lost.
//! Notes are figures that help to read the rest (the host's own drops, say) and take no part
//! in the sum.

/// The role an entry plays in the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Packets that came in.
    In,
    /// Packets that went where they should.
    Out,
    /// Packets that were lost.
    Loss,
    /// Packets that went out or were lost, and nobody can tell which: the truth lies between `Out` and
    /// `Out` with these.
    Uncertain,
    /// A figure beside the sum.
    Note,
}

/// A named count of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The role it plays in the sum.
    pub role: Role,
    /// Where: "socket ring full", "disk". Unique within a role.
    pub name: &'static str,
    /// How many packets.
    pub packets: u64,
}

/// Where every packet went: in = out + losses + uncertain + unexplained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Adds packets under a name; entries keep the order they were first named in.
    pub fn add(&mut self, role: Role, name: &'static str, packets: u64) {
        match self.entries.iter_mut().find(|e| e.role == role && e.name == name) {
            Some(entry) => entry.packets += packets,
            None => self.entries.push(Entry { role, name, packets }),
        }
    }

    /// Adds all of another ledger's entries.
    pub fn merge(&mut self, other: &Self) {
        for entry in &other.entries {
            self.add(entry.role, entry.name, entry.packets);
        }
    }

    /// The entries of one role, in the order they were named.
    pub fn entries(&self, role: Role) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |e| e.role == role)
    }

    /// The packets of one role.
    pub fn total(&self, role: Role) -> u64 {
        self.entries(role).map(|e| e.packets).sum()
    }

    /// The most packets that can have been sent.
    pub fn max_out(&self) -> u64 {
        self.total(Role::Out) + self.total(Role::Uncertain)
    }

    /// Packets that came in and are neither out nor known to be lost.
    pub fn unexplained(&self) -> i64 {
        let known = self.max_out() + self.total(Role::Loss);
        self.total(Role::In).wrapping_sub(known).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_name_covers_is_unexplained() {
        let mut ledger = Ledger::default();
        ledger.add(Role::In, "socket", 100);
        ledger.add(Role::Out, "file", 90);
        ledger.add(Role::Loss, "disk", 4);
        ledger.add(Role::Loss, "disk", 3);
        ledger.add(Role::Note, "host drops", 1000);
        assert_eq!(ledger.total(Role::Loss), 7);
        assert_eq!(ledger.unexplained(), 3);
        ledger.add(Role::Out, "file", 5);
        assert_eq!(ledger.unexplained(), -2, "more out than in is shown, not hidden");
        ledger.add(Role::In, "socket", 10);
        ledger.add(Role::Uncertain, "sent_or_lost", 8);
        assert_eq!((ledger.max_out(), ledger.unexplained()), (103, 0), "8 of 10 are out or lost");
    }

    #[test]
    fn merging_adds_like_names() {
        let mut left = Ledger::default();
        left.add(Role::In, "socket", 1);
        let mut right = left.clone();
        right.add(Role::Loss, "ring full", 2);
        left.merge(&right);
        assert_eq!(left.total(Role::In), 2);
        assert_eq!(left.entries(Role::Loss).count(), 1);
    }
}
