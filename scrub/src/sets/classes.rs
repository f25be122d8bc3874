//! Classes: the combinations of sets that addresses are in.
//!
//! A table of prefixes holds a class of 15 bits for each prefix, and a class leads to the sets, a bit each, and to the
//! protected network. So an address in several sets carries all of them, and a packet needs one look-up however many
//! sets exist.

use std::collections::HashMap;

use crate::image::Image;

/// A combination of sets; [`NONE`](Self::NONE) is no set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class(u16);

/// The sets of an address, a bit each.
pub type SetBits = u64;

/// The memberships of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The sets that have it.
    pub sets: SetBits,
    /// The number of its protected network, from 1; 0 for none. A longer prefix decides.
    pub network: u16,
}

impl Membership {
    /// Returns the memberships of an address with these and those of a longer prefix.
    pub fn and_longer(self, longer: Self) -> Self {
        let network = if longer.network == 0 { self.network } else { longer.network };
        Self { sets: self.sets | longer.sets, network }
    }
}

impl Class {
    /// No set.
    pub const NONE: Self = Self(0);

    /// Returns the class of a number from a table.
    pub(super) fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the number, below [`MAX_CLASSES`].
    pub(super) fn bits(self) -> u16 {
        self.0
    }
}

/// Maximum of classes.
pub const MAX_CLASSES: usize = 1 << 15;

/// More combinations of sets than there are classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the networks overlap in more than {MAX_CLASSES} combinations of sets: use fewer sets")]
pub struct TooManyClasses;

/// All combinations in use.
#[derive(Debug)]
pub struct Classes {
    members: Vec<Membership>,
    numbers: HashMap<Membership, Class>,
}

impl Default for Classes {
    fn default() -> Self {
        let none = Membership::default();
        Self { members: vec![none], numbers: HashMap::from([(none, Class::NONE)]) }
    }
}

impl Classes {
    /// Returns the class of memberships.
    ///
    /// # Errors
    /// There are too many.
    pub fn class_of(&mut self, membership: Membership) -> Result<Class, TooManyClasses> {
        if let Some(known) = self.numbers.get(&membership) {
            return Ok(*known);
        }
        if self.members.len() == MAX_CLASSES {
            return Err(TooManyClasses);
        }
        let class = Class(self.members.len() as u16);
        self.members.push(membership);
        self.numbers.insert(membership, class);
        Ok(class)
    }

    /// Returns the class of a prefix in another of this class.
    ///
    /// # Errors
    /// There are too many.
    pub fn nested(&mut self, around: Class, longer: Membership) -> Result<Class, TooManyClasses> {
        self.class_of(self.membership(around).and_longer(longer))
    }

    /// Returns the memberships of a class.
    pub fn membership(&self, class: Class) -> Membership {
        self.members[usize::from(class.0)]
    }

    /// Appends `struct scrub_class` of each class to an image; `profile_of` returns the profile of a protected network.
    /// Returns the first line.
    pub fn append(&self, image: &mut Image, profile_of: &impl Fn(u16) -> u16) -> u32 {
        image.append(self.members.iter().map(|it| it.encode(profile_of)))
    }
}

impl Membership {
    /// Encodes `struct scrub_class`.
    pub(super) fn encode(self, profile_of: &impl Fn(u16) -> u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.sets.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.network.to_ne_bytes());
        bytes[10..12].copy_from_slice(&profile_of(self.network).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(sets: SetBits) -> Membership {
        Membership { sets, network: 0 }
    }

    #[test]
    fn a_combination_has_one_class_and_no_sets_have_none() {
        let mut classes = Classes::default();
        assert_eq!(classes.class_of(sets(0)), Ok(Class::NONE));
        let one = classes.class_of(sets(1)).unwrap();
        let both = classes.nested(one, sets(2)).unwrap();
        assert_eq!(classes.class_of(sets(3)), Ok(both));
        assert_eq!(classes.membership(both), sets(3));
    }

    #[test]
    fn the_longest_protected_network_decides() {
        let outer = Membership { sets: 1, network: 5 };
        assert_eq!(outer.and_longer(sets(2)), Membership { sets: 3, network: 5 });
        assert_eq!(outer.and_longer(Membership { sets: 0, network: 6 }).network, 6);
    }

    #[test]
    fn too_many_combinations_are_an_error() {
        let mut classes = Classes::default();
        for number in 0..MAX_CLASSES as u64 {
            assert!(classes.class_of(sets(number)).is_ok());
        }
        assert_eq!(classes.class_of(sets(1 << 40)), Err(TooManyClasses));
        assert!(classes.class_of(sets(7)).is_ok(), "known ones stay");
    }
}
