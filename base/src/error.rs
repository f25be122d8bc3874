//! Errors: each message names the operation, its object, the reason, and the remedy if one exists.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation, its object, the reason, and the remedy.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{operation} {object}: {source}{}", then(.remedy))]
    System {
        /// The operation, as a verb: "bind", "map".
        operation: &'static str,
        /// Its object: "packet:eth0", "/tmp/a.pcap".
        object: String,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy; empty if none is known.
        remedy: String,
    },

    /// A file cannot be opened, read or written.
    #[error("{operation} {}: {source}{}", .path.display(), then(.remedy))]
    Path {
        /// The operation, as a verb: "open".
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy; empty if none is known.
        remedy: String,
    },

    /// The process lacks a capability.
    #[error("{operation} needs {capability}: {remedy}")]
    Privilege {
        /// The operation: "opening packet:eth0".
        operation: String,
        /// The capability's name: "CAP_NET_RAW".
        capability: &'static str,
        /// How to get it.
        remedy: String,
    },

    /// The kernel or the card lacks a feature.
    #[error("{feature} is not available: {remedy}")]
    Unsupported {
        /// The feature, with the kernel that has it: "PACKET_FANOUT (Linux 3.1)".
        feature: String,
        /// The replacement to use.
        remedy: String,
    },

    /// A port's name or one of its options is invalid.
    #[error("port '{port}': {reason}")]
    Port {
        /// The name as the user wrote it.
        port: String,
        /// The fault, and the valid form.
        reason: String,
    },

    /// A filter expression does not compile.
    #[error("filter '{expression}': {message}{}", at(.column))]
    Filter {
        /// The expression as the user wrote it.
        expression: String,
        /// The compiler's complaint.
        message: String,
        /// The byte at which the expression becomes invalid, counted from 0. The message counts from 1.
        column: Option<usize>,
    },

    /// A file is malformed.
    #[error("{}: {reason} (at byte {offset}{})", .path.display(), of_decompressed(*.decompressed))]
    File {
        /// The file.
        path: PathBuf,
        /// The offset in the file, or in its decompressed content.
        offset: u64,
        /// The file is compressed.
        decompressed: bool,
        /// The fault.
        reason: String,
    },

    /// An interface that was in use has been removed, or the XDP program on it.
    #[error("{object} no longer exist{}: {remedy}", if is_list(.object) { "" } else { "s" })]
    Removed {
        /// The interface, the program, or several interfaces: "left0, right0".
        object: String,
        /// How to continue.
        remedy: String,
    },

    /// Another port has the queues or the interface that a port needs, in this process or in another one.
    #[error("{0}")]
    InUse(String),

    /// Wrong use of the library or of a command.
    #[error("{0}")]
    Usage(String),
}

/// The kinds of errors; each is an exit status of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input is wrong: a name, an option, an expression.
    Usage,
    /// A privilege or a kernel feature is missing.
    Privilege,
    /// The operation failed while running.
    Runtime,
}

/// Prints the same as [`Display`](fmt::Display), for a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Port { .. } | Self::Filter { .. } | Self::InUse(_) | Self::Usage(_) => {
                ErrorKind::Usage
            }
            Self::Privilege { .. } | Self::Unsupported { .. } => ErrorKind::Privilege,
            Self::Path { source, .. } => match source.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::InvalidFilename => ErrorKind::Usage,
                io::ErrorKind::PermissionDenied => ErrorKind::Privilege,
                _ if matches!(source.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) => {
                    ErrorKind::Usage
                }
                _ => ErrorKind::Runtime,
            },
            Self::System { .. } | Self::File { .. } | Self::Removed { .. } => ErrorKind::Runtime,
        }
    }

    /// Makes an error of the system call that just failed, from `errno`.
    pub fn last_os(operation: &'static str, object: impl Into<String>) -> Self {
        Self::system(operation, object, io::Error::last_os_error())
    }

    /// Makes an error of a failed system call, without a remedy unless a limit of open files or memory was
    /// reached.
    pub fn system(
        operation: &'static str,
        object: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        let (object, source) = (object.into(), source.into());
        let remedy = match source.raw_os_error() {
            Some(libc::ENOMEM) => {
                "free some memory, or raise this process's limit: ulimit -v unlimited"
            }
            _ => limit_remedy(&source),
        };
        Self::System { operation, object, source, remedy: remedy.into() }
    }

    /// Reports why a thread or a program did not start.
    pub fn start(object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let error = Self::system("start", object, source);
        match error.errno() {
            // Two commands: dash takes one limit for each.
            Some(libc::EAGAIN) => error.remedy(
                "raise the limits of memory and threads: ulimit -v unlimited; ulimit -u unlimited",
            ),
            _ => error,
        }
    }

    /// Makes an error of a failed operation on a file that the user named: a missing file is a usage error,
    /// a forbidden one a missing privilege.
    pub fn path(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let remedy = path_remedy(&source).into();
        Self::Path { operation, path: path.to_owned(), source, remedy }
    }

    /// Makes an error of a failed operation on an open file: for any reason, the operation failed while
    /// running.
    pub fn open_file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        let remedy = path_remedy(&source);
        Self::system(operation, path.display().to_string(), source).remedy(remedy)
    }

    /// Adds a remedy to a system or path error; other errors stay as they are. That of a reached limit of
    /// open files stays, because no other helps.
    #[must_use]
    pub fn remedy(mut self, text: impl Into<String>) -> Self {
        if let Self::System { remedy, source, .. } | Self::Path { remedy, source, .. } = &mut self
            && limit_remedy(source).is_empty()
        {
            *remedy = text.into();
        }
        self
    }

    /// Names all capabilities that the caller needs in an error about a missing one, because the kernel refuses
    /// one after the other. Other errors stay as they are.
    #[must_use]
    pub fn with_capabilities(self, capabilities: &'static str) -> Self {
        match self {
            Self::Privilege { operation, .. } => {
                let (capability, remedy) = (capabilities, "run it with sudo".into());
                Self::Privilege { operation, capability, remedy }
            }
            other => other,
        }
    }

    /// Makes the error for an interface that was removed while in use, or for several, joined by ", ".
    pub fn removed(object: impl Into<String>) -> Self {
        let object = object.into();
        let remedy = if is_list(&object) {
            "the interfaces were removed; start again when they are back"
        } else {
            "the interface was removed; start again when it is back"
        };
        Self::Removed { object, remedy: remedy.into() }
    }

    /// Returns the kernel's error number, if the kernel reported one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } | Self::Path { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// True for several interfaces. The name of one contains no space.
fn is_list(object: &str) -> bool {
    object.contains(", ")
}

fn path_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOENT) => "name a file that exists",
        Some(libc::EACCES | libc::EPERM) => "run it with sudo, or ask the owner of the file",
        Some(libc::ENOSPC) => "free some space or write elsewhere",
        Some(libc::EDQUOT) => "the quota is used up: free some space or write elsewhere",
        Some(libc::EROFS) => "the file system is read-only: write elsewhere",
        _ => limit_remedy(source),
    }
}

fn limit_remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => "raise this process's limit of open files: ulimit -n 65536",
        Some(libc::ENFILE) => {
            "raise the system's limit of open files: sysctl -w fs.file-max=1000000"
        }
        _ => "",
    }
}

fn then(remedy: &str) -> String {
    if remedy.is_empty() { String::new() } else { format!("; {remedy}") }
}

fn of_decompressed(decompressed: bool) -> &'static str {
    if decompressed { " of the decompressed file" } else { "" }
}

fn at(column: &Option<usize>) -> String {
    column.map_or_else(String::new, |column| format!(" (at column {})", column + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_operation_object_reason_and_remedy() {
        let error =
            Error::system("bind", "packet:eth0", io::Error::from_raw_os_error(libc::ENODEV))
                .remedy("see `sluice capture` for the interfaces there are");
        assert_eq!(
            error.to_string(),
            "bind packet:eth0: No such device (os error 19); \
             see `sluice capture` for the interfaces there are"
        );
        assert_eq!(error.kind(), ErrorKind::Runtime);
        assert_eq!(error.errno(), Some(libc::ENODEV));
    }

    #[test]
    fn a_reached_limit_of_open_files_has_its_own_remedy() {
        let source = || io::Error::from_raw_os_error(libc::EMFILE);
        for error in [
            Error::system("create", "an event", source()),
            Error::path("open", Path::new("/tmp/a.pcap"), source()),
            Error::open_file("read", Path::new("/tmp/a.pcap"), source()),
            Error::path("listen at", Path::new("/tmp/a.sock"), source()).remedy("name another"),
        ] {
            assert!(
                error
                    .to_string()
                    .ends_with("; raise this process's limit of open files: ulimit -n 65536"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_limit_of_threads_has_a_remedy_where_one_is_started() {
        let source = || io::Error::from_raw_os_error(libc::EAGAIN);
        let remedy = "; raise the limits of memory and threads: \
                      ulimit -v unlimited; ulimit -u unlimited";
        assert!(Error::start("a thread", source()).to_string().ends_with(remedy));
        assert!(!Error::system("read", "a socket", source()).to_string().contains("ulimit"));
    }

    #[test]
    fn the_reason_says_who_can_mend_the_error_of_a_path() {
        for (errno, kind, why) in [
            (libc::ENOENT, ErrorKind::Usage, "there is no such file"),
            (libc::EISDIR, ErrorKind::Usage, "it is a directory"),
            (libc::ELOOP, ErrorKind::Usage, "it is a link that is not followed"),
            (libc::ENXIO, ErrorKind::Usage, "it is a pipe without a reader, or a socket"),
            (libc::EACCES, ErrorKind::Privilege, "its owner allows it to others only"),
            (libc::ENOSPC, ErrorKind::Runtime, "the disk is full"),
            (libc::EIO, ErrorKind::Runtime, "the disk fails"),
        ] {
            let source = || io::Error::from_raw_os_error(errno);
            let error = Error::path("open", Path::new("/tmp/a.pcap"), source());
            assert_eq!((error.kind(), error.errno()), (kind, Some(errno)), "{why}");
            let running = Error::open_file("write", Path::new("/tmp/a.pcap"), source());
            assert_eq!(running.kind(), ErrorKind::Runtime, "{why}, while it was written");
        }
    }

    #[test]
    fn a_column_is_shown_counted_from_one() {
        let error = Error::Filter {
            expression: "udp prot 53".into(),
            message: "syntax error".into(),
            column: Some(4),
        };
        assert_eq!(error.to_string(), "filter 'udp prot 53': syntax error (at column 5)");
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
