//! Reads text files whole: rules, filters, results of earlier runs.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sluicegate::error::{Error, Result};

/// Maximum size. A device or a pipe may have no end.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a file.
///
/// # Errors
/// It cannot be read, is too long, or is no text in UTF-8.
pub fn read(path: &Path) -> Result<String> {
    let failed = |error| Error::path("read", path, error);
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    if read.map_err(failed)? as u64 > MAX_BYTES {
        let error = failed(io::Error::other("it has more than 16 MiB"));
        return Err(error.remedy("name a text file that is shorter"));
    }
    String::from_utf8(bytes)
        .map_err(|_| failed(io::Error::other("it is no text in UTF-8")).remedy("name a text file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero: it has more than 16 MiB; name"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "udp port 53 # größer").unwrap();
        assert_eq!(read(&path).unwrap(), "udp port 53 # größer");
        std::fs::write(&path, b"udp\xff").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("no text in UTF-8"), "{error}");
    }
}
