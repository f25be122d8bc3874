//! Programs that share ports: `serve`, `list`, and `run` with a server.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::*;

/// A user and group without privileges.
const NOBODY: &str = "65534";

/// A server, and the folder that has its socket and programs.
struct Served {
    folder: TempDir,
    server: Running,
}

impl Served {
    /// Starts a server by a command, and waits until it listens.
    fn start(begin: &[&str], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Self::serve(begin, folder.path(), options);
        Self { folder, server }
    }

    fn serve(begin: &[&str], folder: &Path, options: &[&str]) -> Running {
        let socket = folder.join("socket");
        let sluice = env!("CARGO_BIN_EXE_sluice");
        let serve = [sluice, "netmap", "serve", "--socket", socket.to_str().unwrap()];
        let words = [begin, &serve, options].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut server = Running::unawaited(&mut command);
        let line = server.says();
        assert!(line.contains("serving netmap programs at"), "{line}");
        server
    }

    fn socket(&self) -> String {
        self.folder.path().join("socket").to_str().unwrap().to_owned()
    }

    /// Compiles a C program; none, and why, without a compiler.
    fn compile(&self, name: &str) -> Option<String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../netmap/tests/programs");
        let program = self.folder.path().join(name);
        let mut compiler = Command::new("cc");
        compiler.arg("-O2").arg("-o").arg(&program).arg(source.join(format!("{name}.c")));
        let Ok(built) = compiler.output() else {
            eprintln!("skipped: needs cc; get it by scripts/setup.sh");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(program.to_str().unwrap().to_owned())
    }

    /// Starts a program of the server, and waits until it has its port.
    fn start_program(&self, words: &[&str]) -> Running {
        let socket = self.socket();
        let run = [&["netmap", "run", "--server", &socket, "--"], words].concat();
        let mut program = Running::unawaited(&mut sluice(&run));
        program.has_written("ready\n".len());
        program
    }

    fn list(&self) -> Ended {
        run(&["netmap", "list", "--socket", &self.socket()])
    }
}

/// Opens netmap's device in a shell.
const OPEN: &str = "exec 3<>/dev/netmap && echo open";

#[test]
fn a_server_serves_until_a_signal_and_removes_its_socket() {
    let served = Served::start(&[], &[]);
    let socket = served.socket();
    let open = || run(&["netmap", "run", "--server", &socket, "--", "sh", "-c", OPEN]);
    assert_eq!(open().out, "open\n");
    assert_eq!(served.list().out, "no program has a port\n");
    let second = run(&["netmap", "serve", "--socket", &socket]);
    assert_eq!(second.status, Some(1), "{}", second.err);
    assert!(second.err.contains("another server"), "{}", second.err);
    assert_eq!(open().out, "open\n", "the first one goes on");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its own user");
    let ended = served.server.stop();
    assert_eq!((ended.status, &*ended.err), (Some(0), ""));
    assert!(!Path::new(&socket).exists());
    let ended = open();
    assert_ne!(ended.status, Some(0));
    assert!(ended.err.contains("start it by `sluice netmap serve`"), "{}", ended.err);
    let list = run(&["netmap", "list", "--socket", &socket]);
    assert_eq!(list.status, Some(2));
    assert!(list.err.contains(&socket) && list.err.contains("sluice netmap serve"), "{}", list.err);
}

#[test]
fn a_killed_server_ends_its_programs_and_another_takes_its_place() {
    let served = Served::start(&[], &[]);
    let Some(receive) = served.compile("receive") else { return };
    let program = served.start_program(&[&receive, "vale1:a", "10", "/dev/null"]);
    served.server.signal(Signal::SIGKILL);
    let ended = program.end();
    assert_eq!(ended.status, Some(1));
    assert!(ended.err.contains("the server has ended"), "{}", ended.err);
    let server = Served::serve(&[], served.folder.path(), &[]);
    assert_eq!(served.list().out, "no program has a port\n");
    assert_eq!(server.stop().status, Some(0));
}

#[test]
fn the_list_shows_programs_ports_rings_and_memory() {
    let served = Served::start(&[], &[]);
    let Some(receive) = served.compile("receive") else { return };
    let running = ["vale1:a", "vale1:b"]
        .map(|port| served.start_program(&[&receive, port, "10", "/dev/null"]));
    let list = served.list().out;
    for (program, port) in running.iter().zip(["vale1:a", "vale1:b"]) {
        let line = format!("{:>7}  receive          {port}\n", program.pid());
        assert!(list.contains(&line), "{line}{list}");
        for ring in
            ["rx 0     1,024       0       0       0", "tx 0     1,024       0       0   1,023"]
        {
            assert!(list.contains(&format!("{port:<20}  {ring}  1\n")), "{ring}: {list}");
        }
    }
    assert!(list.contains("133 MiB    65,536"), "{list}");
    let json = run(&["netmap", "list", "--socket", &served.socket(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["command"], "netmap list");
    assert_eq!(json["files"][0]["pid"], running[0].pid());
    for program in running {
        program.signal(Signal::SIGKILL);
        program.end();
    }
    eventually("the ports are closed", || served.list().out == "no program has a port\n");
}

#[test]
fn a_server_of_one_run_ends_with_its_program() {
    let shell = |line: &str| run(&["netmap", "run", "--shared", "--", "sh", "-c", line]);
    let line = format!("{OPEN}; echo $SLUICE_NETMAP_SERVER; exit 7");
    let ended = shell(&line);
    assert_eq!((ended.status, &*ended.err), (Some(7), ""), "{}", ended.out);
    let socket = PathBuf::from(ended.out.lines().nth(1).unwrap());
    assert!(ended.out.starts_with("open\n"), "{}", ended.out);
    eventually("its socket and folder are removed", || !socket.parent().unwrap().exists());
    // Its processes share ports.
    let served = Served::start(&[], &[]);
    let (Some(send), Some(receive)) = (served.compile("send"), served.compile("receive")) else {
        return;
    };
    let credits = served.folder.path().join("credits");
    let credits = credits.to_str().unwrap();
    let line = format!(
        "mkfifo {credits}; {receive} vale1:b 5000 {credits} & while ! {sluice} netmap list --socket \
         $SLUICE_NETMAP_SERVER | grep -q vale1:b; do :; done; {send} vale1:a 5000 60 {credits}; wait",
        sluice = env!("CARGO_BIN_EXE_sluice")
    );
    let ended = shell(&line);
    assert!(ended.out.contains("received 5000, repeated 0, wrong 0"), "{ended:?}");
}

#[test]
fn a_killed_program_s_server_ends() {
    let line = "echo $SLUICE_NETMAP_SERVER >&2; exec sleep 100";
    let mut running =
        Running::unawaited(&mut sluice(&["netmap", "run", "--shared", "--", "sh", "-c", line]));
    let socket = PathBuf::from(running.says().trim_end());
    assert!(socket.exists());
    running.signal(Signal::SIGKILL);
    running.end();
    eventually("its socket and folder are removed", || !socket.parent().unwrap().exists());
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    refused(&["netmap", "run", "--server", "x", "--filter", "udp", "--", "true"], "--filter");
    refused(&["netmap", "run", "--server", "x", "--shared", "--", "true"], "--shared");
    refused(&["netmap", "run", "--shared", "--filter", "udp prot", "--", "true"], "udp prot");
    refused(&["netmap", "serve", "--group", "no-such-group"], "no-such-group");
    refused(&["netmap", "serve", "--until-exit", "0"], "--until-exit");
}

#[test]
fn a_program_without_privileges_uses_a_card_by_its_group() {
    let Some(lab) = lab_with(&["setpriv"]) else { return };
    let enter = ["ip", "netns", "exec", &lab.netns("right")];
    let group = nix::unistd::Group::from_gid(65534.into()).unwrap().unwrap().name;
    let served = Served::start(&enter, &["--group", &group]);
    let (Some(send), Some(receive)) = (served.compile("send"), served.compile("receive")) else {
        return;
    };
    // Where this user may read it.
    let library =
        Path::new(env!("CARGO_BIN_EXE_sluice")).with_file_name("deps/libsluice_netmap.so");
    let copy = served.folder.path().join("library.so");
    std::fs::copy(library, &copy).unwrap();
    let all = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(served.folder.path(), all).unwrap();
    let credits = served.folder.path().join("credits");
    nix::unistd::mkfifo(&credits, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    std::fs::set_permissions(&credits, PermissionsExt::from_mode(0o666)).unwrap();
    let (credits, socket) = (credits.to_str().unwrap(), served.socket());
    let program = |groups: [&str; 2]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, groups[0], groups[1], "--clear-groups"]);
        command.args([&receive, "right0", "5000", credits]);
        command.env("LD_PRELOAD", &copy).env("SLUICE_NETMAP_SERVER", &socket);
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        Running::unawaited(&mut command)
    };
    let refused = program(["--regid", "65533"]).end();
    assert!(refused.err.contains("Permission denied"), "{}", refused.err);
    let mut receiver = program(["--regid", NOBODY]);
    receiver.has_written("ready\n".len());
    let words = [env!("CARGO_BIN_EXE_sluice"), "netmap", "run", "--"];
    let sent = on(&lab, "left", &[&words[..], &[&send, "left0", "5000", "60", credits]].concat());
    assert_eq!(sent.out, "sent 5000\n", "{}", sent.err);
    let received = receiver.end();
    assert_eq!(received.out, "received 5000, repeated 0, wrong 0\n", "{}", received.err);
}
