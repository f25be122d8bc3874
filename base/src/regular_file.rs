//! Opens files that have an end: a read of a pipe or a device may wait for ever.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to read it.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Without the flag, a pipe without a writer blocks here.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => {
            let problem = "it is not a regular file; copy its content to one";
            Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_pipe_and_a_device_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/zero")] {
            let error = open(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file; copy"), "{}: {error}", path.display());
        }
        let text = folder.path().join("text");
        std::fs::write(&text, "text").unwrap();
        assert_eq!(open(&text).unwrap().metadata().unwrap().len(), 4);
    }
}
