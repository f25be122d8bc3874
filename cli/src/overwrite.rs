//! Rejects an output file that is also an input: opening it would delete its packets unread.

use std::fs::File;
use std::io::{stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sluicegate::error::{Error, Result};
use sluicegate::port::{Kind, PortName};

/// Refuses to write to a file that one of the ports is read from, by whatever name it is called: a
/// link's, or that of a standard stream.
///
/// # Errors
/// It is one of them.
pub fn refuse<'a>(sources: impl IntoIterator<Item = &'a PortName>, output: &Path) -> Result<()> {
    let Some(written) = identity(output, stdout()) else { return Ok(()) };
    let files = sources.into_iter().filter(|source| source.kind() == Kind::Pcap);
    for source in files {
        if identity(Path::new(source.name()), stdin()) == Some(written) {
            return Err(Error::Usage(format!(
                "{} is read, and {} is the same file: write to another",
                source.short(),
                output.display()
            )));
        }
    }
    Ok(())
}

/// Device and inode of a regular file; `-` is a stream. None of what is not there, and so is nobody
/// else's.
fn identity(path: &Path, stream: impl AsFd) -> Option<(u64, u64)> {
    let metadata = match path == Path::new("-") {
        true => File::from(stream.as_fd().try_clone_to_owned().ok()?).metadata(),
        false => path.metadata(),
    };
    let metadata = metadata.ok()?;
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::stdin;

    use super::*;

    #[test]
    fn a_file_is_known_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.pcap"), "").unwrap();
        std::fs::write(path("b.pcap"), "").unwrap();
        std::fs::hard_link(path("a.pcap"), path("hard")).unwrap();
        std::os::unix::fs::symlink("a.pcap", path("soft")).unwrap();
        let port = |name: &str| format!("pcap:{}", path(name).display()).parse().unwrap();
        let (a, b): (PortName, PortName) = (port("a.pcap"), port("b.pcap"));
        for (sentence, output, same) in [
            ("its own name", "a.pcap", true),
            ("a hard link", "hard", true),
            ("a symbolic link", "soft", true),
            ("a name with a detour", "./a.pcap", true),
            ("another file", "other.pcap", false),
        ] {
            assert_eq!(refuse([&b, &a], &path(output)).is_err(), same, "{sentence}");
        }
        assert!(refuse([&a], &path("b.pcap")).is_ok());
        assert!(refuse([&"null:".parse().unwrap()], &path("a.pcap")).is_ok(), "no file is read");
        assert_eq!(identity(Path::new("/dev/null"), stdin()), None, "a device keeps nothing");
    }
}
