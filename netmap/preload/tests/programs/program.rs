//! Programs in C: compiled once for a test, and run under the library.

use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use sluicegate::link::Lab;
use tempfile::TempDir;

use crate::{child, lines};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs");

/// Compiled programs, in a folder that goes with them.
pub struct Programs {
    folder: TempDir,
    /// The socket of the server that they use; `off` without one.
    server: OsString,
}

impl Programs {
    /// Compiles programs. Returns none, and says why, without a compiler.
    pub fn build(names: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
            compiler.arg(folder.path().join(name)).arg(format!("{SOURCES}/{name}.c"));
            let Ok(built) = compiler.output() else {
                println!("skipped: needs cc; get it by scripts/setup.sh");
                return None;
            };
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        Some(Self { folder, server: "off".into() })
    }

    /// Makes the programs use a server.
    pub fn with_server(mut self, socket: &Path) -> Self {
        self.server = socket.into();
        self
    }

    pub fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join(name));
        command.args(arguments).env("LD_PRELOAD", library());
        command.env("SLUICE_NETMAP_SERVER", &self.server);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    /// Returns a path in the folder where no file is.
    pub fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        // Another part of the test may have made it.
        let _ = std::fs::remove_file(&path);
        path.into_os_string().into_string().unwrap()
    }

    /// Makes a FIFO. Returns its path.
    pub fn fifo(&self, name: &str) -> String {
        let path = self.path(name);
        mkfifo(&*path, Mode::S_IRWXU).unwrap();
        path
    }

    /// Runs a program to its end, which must be a success. Returns its output.
    pub fn run(&self, name: &str, arguments: &[&str]) -> String {
        end(name, self.command(name, arguments).spawn().unwrap())
    }

    /// Runs a program on a host of a lab to its end, which must be a success. Returns its output.
    pub fn run_on(&self, (lab, host): (&Lab, &str), name: &str, arguments: &[&str]) -> String {
        end(name, lab.spawn(host, &mut self.command(name, arguments)).unwrap())
    }

    /// Starts a program on a host of a lab, and returns when it has registered its ports.
    pub fn start(
        &self,
        (lab, host): (&Lab, &str),
        name: &str,
        arguments: &[&str],
    ) -> RunningProgram {
        RunningProgram::when_ready(
            name,
            lab.spawn(host, &mut self.command(name, arguments)).unwrap(),
        )
    }

    /// Starts a program, and returns when it has registered its ports.
    pub fn start_here(&self, name: &str, arguments: &[&str]) -> RunningProgram {
        RunningProgram::when_ready(name, self.command(name, arguments).spawn().unwrap())
    }
}

impl RunningProgram {
    /// Waits until a program has registered its ports.
    pub fn when_ready(name: &str, mut child: Child) -> Self {
        let (_, output) = lines::until(child.id(), child.stdout.take().unwrap(), "ready");
        Self { name: name.into(), child, output }
    }
}

/// Waits for a program's end, which must be a success. Returns its output.
fn end(name: &str, child: Child) -> String {
    let output = child::end(child);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{name}: {}: {said}", output.status);
    said
}

/// A program that has registered its ports.
pub struct RunningProgram {
    name: String,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RunningProgram {
    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, which must be a success. Returns its output since it was ready.
    pub fn end(self) -> String {
        let Self { name, mut child, mut output } = self;
        let (said, status) = child::limited(child.id(), move || {
            let mut said = String::new();
            output.read_to_string(&mut said).unwrap();
            (said, child.wait().unwrap())
        });
        assert!(status.success(), "{name}: {status}: {said}");
        said
    }
}

/// The library that cargo has built for this test: beside it.
pub fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libsluice_netmap.so");
    assert!(library.exists(), "{}", library.display());
    library
}
