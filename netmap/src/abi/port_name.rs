//! The name of a port in a request, as netmap's kernel module parses it: `eth0`, `vale0:1`, `eth0{2`.
//! [`PortExpression`](super::PortExpression) parses the longer form that users write.

use std::fmt;

use nix::errno::Errno;

/// Bytes of `nr_name` in a `struct nmreq_header`, with the zero byte that ends it.
pub(super) const NAME_BYTES: usize = 64;
/// Bytes of a name of an interface, of a switch and of its port, without the zero byte.
const MAX_PART_BYTES: usize = 15;

/// The name of a port in a request; empty for requests without a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortName(String);

/// A port's name taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind<'a> {
    /// An interface or a persistent VALE port; empty if the name is.
    Interface(&'a str),
    /// A port of a VALE switch.
    Vale {
        /// The switch: "vale0".
        switch: &'a str,
        /// The port in the switch: "1".
        port: &'a str,
    },
    /// One end of a pipe.
    Pipe {
        /// The port that the pipe belongs to, which may be a pipe itself.
        parent: PortName,
        /// The end.
        role: PipeRole,
        /// The pipe's name in its parent.
        id: &'a str,
    },
}

/// One end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipeRole {
    /// The end that `{` names.
    Master,
    /// The end that `}` names.
    Slave,
}

impl PortName {
    /// Makes a name of bytes that a zero byte ends, or 63 bytes. Invalid UTF-8 is replaced: no port has such a name.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(NAME_BYTES - 1)];
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Self(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Returns the name in a field of `N` bytes, cut off to fit and ended by a zero byte.
    pub(crate) fn to_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for (byte, value) in bytes[..N - 1].iter_mut().zip(self.0.bytes()) {
            *byte = value;
        }
        bytes
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the name is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the name apart. The last `{`, or without one the last `}`, makes it a pipe; "vale" in front makes it
    /// a port of a switch.
    ///
    /// # Errors
    /// EINVAL if a pipe has no parent or no id, or a switch's name has invalid characters, or a part is too long.
    pub fn kind(&self) -> Result<PortKind<'_>, Errno> {
        let name = self.as_str();
        let pipe = [('{', PipeRole::Master), ('}', PipeRole::Slave)]
            .into_iter()
            .find_map(|(bracket, role)| name.rsplit_once(bracket).map(|parts| (parts, role)));
        match pipe {
            Some((("", _) | (_, ""), _)) => Err(Errno::EINVAL),
            Some(((parent, id), role)) => Ok(PortKind::Pipe { parent: parent.into(), role, id }),
            None if name.starts_with("vale") => vale_port(name).ok_or(Errno::EINVAL),
            None => Ok(PortKind::Interface(name)),
        }
    }
}

/// Takes the name of a switch's port apart.
fn vale_port(name: &str) -> Option<PortKind<'_>> {
    let (switch, port) = name.split_once(':')?;
    let valid = switch.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && switch.len() <= MAX_PART_BYTES
        && port.len() <= MAX_PART_BYTES;
    valid.then_some(PortKind::Vale { switch, port })
}

impl From<&str> for PortName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
