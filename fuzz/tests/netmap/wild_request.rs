//! Requests of a program in its memory: mostly valid parts, in any combination, with wild ones between.

use bolero::TypeGenerator;
use sluicegate_netmap::abi::ioctls::{NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF};

use crate::memory::Memory;

pub const ARGUMENT: u64 = 0x1_0000;
pub const BODY: u64 = 0x2_0000;
const OPTIONS: u64 = 0x3_0000;
/// Bytes of the longest argument and of the longest body.
const ARGUMENT_BYTES: usize = 272;
const BODY_BYTES: usize = 64;
/// Bytes of a header of an option.
const OPTION_BYTES: usize = 24;

/// Address of an option.
pub fn option_address(index: usize) -> u64 {
    OPTIONS + 0x100 * index as u64
}

#[derive(Clone, Debug, TypeGenerator)]
pub struct WildRequest {
    ioctl: u8,
    argument: WildAddress,
    version: u8,
    kind: u8,
    has_reserved_bit: u8,
    pub name: WildName,
    body: WildAddress,
    mode: u8,
    has_wild_fields: u8,
    fields: Vec<WildField>,
    options_at: WildAddress,
    has_options: u8,
    options: Vec<WildOption>,
}

/// An address of a structure: mostly its own.
#[derive(Clone, Copy, Debug, TypeGenerator)]
struct WildAddress {
    pick: u8,
    wild: u64,
}

/// The name of a port. None is that of an interface of this machine.
#[derive(Clone, Debug, TypeGenerator)]
pub enum WildName {
    Empty,
    Interface(u8),
    Switch { switch: u8, port: u8 },
    Pipe { parent: u8, id: u8, is_slave: bool },
    PipeOfSwitch { switch: u8, port: u8, id: u8, is_slave: bool },
    Text(Vec<u8>),
}

/// A number written over the bytes of the body, or of a legacy request.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum WildField {
    Small { at: u8, value: u8 },
    Bit { at: u8, bit: u8 },
    Wide { at: u8, value: u64 },
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct WildOption {
    kind: u8,
    size: WildSize,
    next: WildNext,
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum WildSize {
    Zero,
    Small(u8),
    Wild(u64),
}

/// The next option: mostly the next in order.
#[derive(Clone, Copy, Debug, TypeGenerator)]
struct WildNext {
    pick: u8,
    wild: u64,
}

impl WildAddress {
    fn address(self, own: u64) -> u64 {
        match self.pick {
            0..8 => 0,
            8..16 => self.wild,
            _ => own,
        }
    }
}

impl WildName {
    fn bytes(&self) -> Vec<u8> {
        // Mostly few switches, sometimes more than netmap has.
        let small = |switch: u8| if switch < 224 { switch % 3 } else { switch % 10 };
        let bracket = |is_slave: bool| if is_slave { '}' } else { '{' };
        match self {
            Self::Empty => Vec::new(),
            Self::Interface(number) => format!("q{}", number % 4).into_bytes(),
            // The last ones are interfaces that the requests create.
            Self::Switch { switch, port: port @ 128.. } => {
                format!("vale{}:q{}", small(*switch), port % 4).into_bytes()
            }
            Self::Switch { switch, port } => {
                format!("vale{}:{}", small(*switch), port % 8).into_bytes()
            }
            Self::Pipe { parent, id, is_slave } => {
                format!("q{}{}{}", parent % 4, bracket(*is_slave), id % 4).into_bytes()
            }
            Self::PipeOfSwitch { switch, port, id, is_slave } => {
                format!("vale{}:{}{}{}", small(*switch), port % 8, bracket(*is_slave), id % 4)
                    .into_bytes()
            }
            Self::Text(text) => [b"q", &text[..]].concat(),
        }
    }
}

impl WildField {
    fn write(self, bytes: &mut [u8]) {
        let (at, value, count) = match self {
            Self::Small { at, value } => (at, u64::from(value % 16), 1),
            Self::Bit { at, bit } => (at, 1 << (bit % 64), 8),
            Self::Wide { at, value } => (at, value, 8),
        };
        // Even offsets: every field begins at one.
        let at = (usize::from(at) % bytes.len()) & !1;
        for (byte, value) in bytes[at..].iter_mut().zip(value.to_ne_bytes()).take(count) {
            *byte = value;
        }
    }
}

impl WildOption {
    fn bytes(self, index: usize, count: usize) -> [u8; OPTION_BYTES] {
        let next = match self.next.pick {
            0..8 => option_address(self.next.wild as usize % count),
            8..12 => self.next.wild,
            _ if index + 1 < count => option_address(index + 1),
            _ => 0,
        };
        let size = match self.size {
            WildSize::Zero => 0,
            WildSize::Small(size) => size.into(),
            WildSize::Wild(size) => size,
        };
        let mut bytes = [0xEE; OPTION_BYTES];
        bytes[..8].copy_from_slice(&next.to_ne_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.kind % 128).to_ne_bytes());
        bytes[16..].copy_from_slice(&size.to_ne_bytes());
        bytes
    }
}

impl WildRequest {
    pub fn ioctl(&self) -> u32 {
        match self.ioctl {
            0..60 => NIOCREGIF,
            60..100 => NIOCGINFO,
            100 => NIOCCONFIG,
            101 => 0,
            _ => NIOCCTRL,
        }
    }

    pub fn argument(&self) -> u64 {
        self.argument.address(ARGUMENT)
    }

    /// Returns the addresses of all structures.
    pub fn addresses(&self) -> Vec<u64> {
        [ARGUMENT, BODY].into_iter().chain((0..self.options.len()).map(option_address)).collect()
    }

    /// Returns the memory of a program that makes the request.
    pub fn place(&self) -> Memory {
        let memory = Memory::default();
        memory.place(BODY, &self.body_bytes());
        memory.place(ARGUMENT, &self.argument_bytes());
        for (index, option) in self.options.iter().enumerate() {
            memory.place(option_address(index), &option.bytes(index, self.options.len()));
        }
        memory
    }

    /// Returns a body: half of the time one of a registration with nothing but a mode.
    fn body_bytes(&self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        body[36] = self.mode();
        self.write_fields(&mut body);
        body
    }

    /// Returns a mode: mostly all rings of the card.
    fn mode(&self) -> u8 {
        if self.mode < 192 { 1 } else { self.mode % 9 }
    }

    fn write_fields(&self, bytes: &mut [u8]) {
        if self.has_wild_fields < 128 {
            self.fields.iter().for_each(|field| field.write(bytes));
        }
    }

    fn argument_bytes(&self) -> [u8; ARGUMENT_BYTES] {
        let mut bytes = [0; ARGUMENT_BYTES];
        let version: u16 = if self.version < 250 { 14 + u16::from(self.version % 2) } else { 13 };
        if self.ioctl() == NIOCCTRL {
            let has_options = self.has_options < 48 && !self.options.is_empty();
            let options = if has_options { self.options_at.address(OPTIONS) } else { 0 };
            bytes[..2].copy_from_slice(&version.to_ne_bytes());
            bytes[2..4].copy_from_slice(&self.reqtype().to_ne_bytes());
            bytes[4] = u8::from(self.has_reserved_bit == 1);
            bytes[72..80].copy_from_slice(&options.to_ne_bytes());
            bytes[80..88].copy_from_slice(&self.body_address().to_ne_bytes());
            self.write_name(&mut bytes[8..72]);
        } else {
            self.write_name(&mut bytes[..16]);
            bytes[52] = self.mode();
            self.write_fields(&mut bytes[20..60]);
            bytes[16..18].copy_from_slice(&version.to_ne_bytes());
            let command = if self.kind < 128 { 0 } else { self.kind % 14 };
            bytes[42..44].copy_from_slice(&u16::from(command).to_ne_bytes());
        }
        bytes
    }

    /// Returns the type: half of the time that of a registration.
    fn reqtype(&self) -> u16 {
        if self.kind < 128 { 1 } else { u16::from(self.kind % 17) }
    }

    /// Returns the body's address: mostly null for the types without one.
    fn body_address(&self) -> u64 {
        self.body.address(if matches!(self.reqtype(), 9 | 14 | 15) { 0 } else { BODY })
    }

    fn write_name(&self, field: &mut [u8]) {
        for (byte, value) in field.iter_mut().zip(self.name.bytes()) {
            *byte = value;
        }
    }
}
