use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::socket::{Shutdown, shutdown};

use super::*;

/// Answers with the client and the request, and with a file on request. Records which clients left.
#[derive(Default)]
struct Echo {
    asked: u32,
    left: Vec<u64>,
}

impl Service for Echo {
    fn answer(&mut self, client: u64, request: &str) -> Answer {
        self.asked += 1;
        let files = match request {
            "file" => vec![File::open("/proc/self/status").unwrap().into()],
            _ => Vec::new(),
        };
        let line = match request {
            "much" => "m".repeat(8 << 20),
            "left" => format!("{:?}", self.left),
            _ => format!("{client}:{request}"),
        };
        Answer { line, files, keep: request == "keep" }
    }

    fn left(&mut self, client: u64) {
        self.left.push(client);
    }
}

/// Runs a server until `work` returns.
fn with_server(work: impl FnOnce(&Path) + Send) -> Echo {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er.sock");
    let mut server = Server::bind(&path).unwrap();
    let mut echo = Echo::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&path)));
            done.store(true, Ordering::Relaxed);
            result
        });
        while !done.load(Ordering::Relaxed) {
            server.serve(&mut echo);
            std::thread::sleep(Duration::from_millis(1));
        }
        server.serve(&mut echo);
        worker.join().unwrap().unwrap();
    });
    drop(server);
    assert!(!path.exists());
    echo
}

#[test]
fn a_request_is_answered_with_what_goes_along() {
    let echo = with_server(|path| {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut client = Client::connect(path).unwrap();
        assert_eq!(client.ask("hello").unwrap().0, "1:hello");
        let (_, files) = client.ask("file").unwrap();
        let mut text = String::new();
        File::from(files.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert!(text.starts_with("Name:"), "{text}");
        assert_eq!(client.ask("much").unwrap().0.len(), 8 << 20);
    });
    assert_eq!(echo.asked, 3);
}

#[test]
fn who_says_nothing_more_gets_all_answers() {
    with_server(|path| {
        let mut client = UnixStream::connect(path).unwrap();
        client.write_all(b"one\nmuch\ntwo\nhalf a line").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        let answers: Vec<&str> = answers.lines().collect();
        assert_eq!((answers[0], answers[1].len(), answers[2]), ("1:one", 8 << 20, "1:two"));
        assert_eq!(answers.len(), 3, "half a line is no request");
    });
}

#[test]
fn who_is_hostile_or_stuck_harms_nobody() {
    let echo = with_server(|path| {
        let mut endless = UnixStream::connect(path).unwrap();
        let mut stuck = UnixStream::connect(path).unwrap();
        stuck.write_all(b"much\nmuch\nmuch\n").unwrap();
        let mut garbage = UnixStream::connect(path).unwrap();
        garbage.write_all(b"\xff\x00\n").unwrap();
        let many: Vec<_> = (0..MAX_CLIENTS * 2).map(|_| UnixStream::connect(path)).collect();
        endless.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        let line = vec![b'x'; 1 << 20];
        let end = Instant::now() + Duration::from_secs(10);
        while endless.write_all(&line).is_ok() {
            assert!(Instant::now() < end, "it is let go of");
        }
        drop(many);
        let mut client = loop {
            let mut client = Client::connect(path).unwrap();
            if client.ask("hello").is_ok() {
                break client;
            }
            assert!(Instant::now() < end, "there is room again");
        };
        assert!(client.ask("again").is_ok());
    });
    assert!(echo.left.is_empty());
}

#[test]
fn a_client_beyond_the_maximum_is_told_what_to_do() {
    with_server(|path| {
        let kept: Vec<_> = (0..MAX_CLIENTS)
            .map(|_| {
                let mut client = Client::connect(path).unwrap();
                client.ask("keep").unwrap();
                client
            })
            .collect();
        let error = Client::connect(path).unwrap().ask("hello").unwrap_err().to_string();
        assert!(error.contains(&format!("ask {}: ", path.display())), "{error}");
        assert!(error.contains("its maximum of 64 connections: end some"), "{error}");
        drop(kept);
    });
}

#[test]
fn a_request_that_is_too_long_is_answered_by_an_error_and_ends_the_connection() {
    let echo = with_server(|path| {
        for end in ["", "\n", "\nmore\n"] {
            let mut client = UnixStream::connect(path).unwrap();
            let line = "x".repeat(MAX_LINE_BYTES + 1) + end;
            client.write_all(line.as_bytes()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            let error = format!("a request has at most {MAX_LINE_BYTES} bytes");
            assert_eq!(answer, format!("{{\"error\":\"{error}\",\"kind\":\"usage\"}}\n"));
        }
        let longest = "x".repeat(MAX_LINE_BYTES);
        let answer = Client::connect(path).unwrap().ask(&longest).unwrap().0;
        assert!(answer.ends_with(&longest), "{answer}");
    });
    assert_eq!(echo.asked, 1);
}

#[test]
fn who_is_kept_and_goes_is_missed() {
    let echo = with_server(|path| {
        let mut client = Client::connect(path).unwrap();
        client.ask("keep").unwrap();
        drop(client);
        let mut other = Client::connect(path).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while other.ask("left").unwrap().0 != "[1]" {
            assert!(Instant::now() < end, "it is not missed");
        }
    });
    assert_eq!(echo.left, [1]);
}

#[test]
fn a_server_waits_for_the_socket_of_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| Server::bind(&path).map(drop));
        // The server has found the socket in use.
        drop(listener.accept().unwrap());
        shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
        bound.join().unwrap().unwrap();
    });
}

#[test]
fn a_path_is_one_servers_and_what_a_dead_one_left_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let server = Server::bind(&path).unwrap();
    let error = Server::bind(&path).unwrap_err().to_string();
    assert!(error.contains("take another --name"), "{error}");
    drop(server);
    // The state that a killed listener leaves. Another test's child may still hold the socket until it
    // executes its command.
    let listener = UnixListener::bind(&path).unwrap();
    shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
    drop(listener);
    let taken = Server::bind(&path).unwrap();
    let error = Client::connect(&folder.path().join("none")).unwrap_err().to_string();
    assert!(error.starts_with("no running command"), "{error}");
    drop(taken);
    // A file that is not a socket refuses connections as well, but must stay.
    std::fs::write(&path, "a letter").unwrap();
    let error = Server::bind(&path).unwrap_err().to_string();
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a letter");
}
