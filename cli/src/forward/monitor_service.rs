//! Lets `monitor:NAME/PORT` watch a running forwarder: the packets that one port receives and sends.
//!
//! ```text
//!   control socket: watch PORT ──> a ring for each thread ──> Watchers of the thread, between rounds
//! ```

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate::control::{Answer, Server, Service, socket_path};
use sluicegate::error::{Error, Result};
use sluicegate::monitor::{WatchRequest, Writer};
use sluicegate::port::PortName;
use sluicegate::ring::{Direction, Packet, now_ns};

use crate::notice::{answer, failure};

/// The time in which a thread that is not blocked executes requests.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The control socket of a forwarder.
#[derive(clap::Args, Clone, Debug)]
pub struct MonitorArgs {
    /// Allow monitor:NAME/eth1, through /run/sluice/forward/NAME/control.sock
    #[arg(long, value_name = "NAME", conflicts_with = "in_kernel")]
    name: Option<String>,

    /// Control socket for monitor:eth1?socket=PATH
    #[arg(long, value_name = "PATH", conflicts_with_all = ["name", "in_kernel"])]
    control: Option<PathBuf>,
}

impl MonitorArgs {
    /// Opens the control socket, if one was asked for.
    ///
    /// # Errors
    /// Another process listens there, or this one may not.
    pub fn listen(&self) -> Result<Option<Server>> {
        let named = self.name.as_ref().map(|name| socket_path("forward", name)).transpose()?;
        self.control.clone().or(named).map(|path| Server::bind(&path)).transpose()
    }
}

/// A request to a thread about its watchers. The sender waits until the request is dropped.
type WatcherRequest = Box<dyn FnOnce(&mut Vec<Watcher>) + Send>;

/// A client's ring in one thread.
#[derive(Debug)]
struct Watcher {
    number: u64,
    side: usize,
    writer: Writer,
}

/// The watchers of one thread.
#[derive(Default)]
pub struct Watchers {
    requests: Option<Receiver<WatcherRequest>>,
    watchers: Vec<Watcher>,
}

impl Watchers {
    /// Executes the requests received since the last call.
    pub fn run_requests(&mut self) {
        while let Some(request) =
            self.requests.as_ref().and_then(|requests| requests.try_recv().ok())
        {
            request(&mut self.watchers);
        }
    }

    /// Returns true if the port of a side is watched.
    #[inline]
    pub fn is_watched(&self, side: usize) -> bool {
        self.watchers.iter().any(|watcher| watcher.side == side)
    }

    /// Offers packets of a side's port to its watchers.
    #[cold]
    pub fn show<'a>(
        &mut self,
        side: usize,
        direction: Direction,
        packets: impl Iterator<Item = Packet<'a>>,
    ) {
        let now_ns = now_ns();
        for packet in packets {
            for watcher in self.watchers.iter_mut().filter(|watcher| watcher.side == side) {
                watcher.writer.offer(&packet, direction, now_ns);
            }
        }
    }

    /// Publishes the offered packets, once per round.
    pub fn publish(&mut self) {
        self.watchers.iter_mut().for_each(|watcher| watcher.writer.publish());
    }
}

/// The forwarder's side of its control socket.
pub struct MonitorService {
    server: Server,
    threads: ThreadHandles,
}

/// The control socket's handles of the forwarding threads.
struct ThreadHandles {
    ports: [PortName; 2],
    requests: Vec<Sender<WatcherRequest>>,
    /// The watching clients.
    clients: Vec<u64>,
}

impl MonitorService {
    /// Creates the service for these two ports.
    pub fn new(server: Server, ports: [&PortName; 2]) -> Self {
        let ports = ports.map(PortName::clone);
        Self { server, threads: ThreadHandles { ports, requests: Vec::new(), clients: Vec::new() } }
    }

    /// Creates the watchers of one more thread.
    pub fn thread(&mut self) -> Watchers {
        let (requests, received) = channel();
        self.threads.requests.push(requests);
        Watchers { requests: Some(received), watchers: Vec::new() }
    }

    /// Answers the pending requests. Waits only for the forwarding threads.
    pub fn serve(&mut self) {
        self.server.serve(&mut self.threads);
    }
}

impl Service for ThreadHandles {
    fn answer(&mut self, client: u64, request: &str) -> Answer {
        if serde_json::from_str::<Value>(request).is_ok_and(|it| it["do"] == "show") {
            let ports = names(&self.ports).map(|name| json!({"name": name}));
            return answer(json!({"ports": ports}));
        }
        if !request.starts_with("watch ") {
            let error = Error::Usage(
                "a forwarder answers two requests: watch PORT SNAPLEN CELLS [FILTER], and \
                 {\"do\":\"show\"}"
                    .into(),
            );
            return answer(failure(&error));
        }
        request.parse().and_then(|watch| self.begin(client, &watch)).unwrap_or_else(answer)
    }

    fn left(&mut self, client: u64) {
        self.clients.retain(|there| *there != client);
        self.end(client);
    }
}

impl ThreadHandles {
    /// Gives each thread a separate ring, and answers when all threads write. Fails if a thread does not
    /// begin in time, because its packets would be missing without notice.
    fn begin(&mut self, client: u64, watch: &WatchRequest) -> Result<Answer> {
        let side = side(&self.ports, &watch.port)?;
        if self.clients.contains(&client) {
            return Err(Error::Usage(
                "this connection watches a port already: take another for each port".into(),
            ));
        }
        let (mut writers, mut files) = (Vec::new(), Vec::new());
        for _ in &self.requests {
            let (writer, its_files) = Writer::new(watch)?;
            writers.push(writer);
            files.extend(its_files);
        }
        let (done, all_done) = channel::<()>();
        for (thread, writer) in self.requests.iter().zip(writers) {
            let (watcher, done) = (Watcher { number: client, side, writer }, done.clone());
            send_request(thread, move |there| {
                there.push(watcher);
                drop(done);
            });
        }
        drop(done);
        // The channel carries no messages: it disconnects when the last request is dropped.
        if all_done.recv_timeout(ANSWER_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            self.end(client);
            return Err(Error::system("watch", &*watch.port, ErrorKind::TimedOut)
                .remedy("a thread of the forwarder is held up by one of its ports"));
        }
        self.clients.push(client);
        Ok(Answer { line: format!("watching {}", watch.port), files, keep: true })
    }

    /// Makes all threads stop writing for a client; threads that have not begun never begin.
    fn end(&self, client: u64) {
        for thread in &self.requests {
            send_request(thread, move |there| there.retain(|watcher| watcher.number != client));
        }
    }
}

fn send_request(
    thread: &Sender<WatcherRequest>,
    request: impl FnOnce(&mut Vec<Watcher>) + Send + 'static,
) {
    // A thread that has ended has no watchers.
    let _ = thread.send(Box::new(request));
}

/// Returns the names of the ports: short ones, or with their kinds if both have the same.
fn names(ports: &[PortName; 2]) -> [String; 2] {
    let [first, second] = ports;
    match first.display_name() == second.display_name() {
        true => [first.short(), second.short()],
        false => [first.display_name().to_owned(), second.display_name().to_owned()],
    }
}

/// Returns the side of the port with this name: its short name if that names only one port, or the full name.
fn side(ports: &[PortName; 2], name: &str) -> Result<usize> {
    let names = names(ports);
    let is = |side: &usize| names[*side] == name || ports[*side].short() == name;
    [0, 1].into_iter().find(is).ok_or_else(|| {
        let [first, second] = &names;
        Error::Usage(format!("no port '{name}'; available: {first}, {second}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_of_a_stuck_thread_fails_and_does_not_begin_later() {
        let (requests, received) = channel();
        let ports = ["xdp:eth0", "eth1"].map(|name| name.parse().unwrap());
        let mut threads = ThreadHandles { ports, requests: vec![requests], clients: Vec::new() };
        let mut thread = Watchers { requests: Some(received), watchers: Vec::new() };
        let request = "watch eth0 64 8";
        let answer = threads.answer(1, request);
        assert!(answer.files.is_empty() && answer.line.contains("held up"), "{}", answer.line);
        thread.run_requests();
        assert!(!thread.is_watched(0));

        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| threads.answer(1, request));
            while !asked.is_finished() {
                thread.run_requests();
                std::thread::yield_now();
            }
            asked.join().unwrap()
        });
        // The thread's ring, and the socket that wakes its reader.
        assert_eq!((answer.files.len(), answer.line.as_str()), (2, "watching eth0"));
        assert!(thread.is_watched(0) && !thread.is_watched(1));
    }

    #[test]
    fn short_names_of_ports_hold_unless_both_are_the_same() {
        let ports = |names: [&str; 2]| names.map(|name| name.parse().unwrap());
        for (names, name, expected) in [
            (["xdp:eth0/0-1", "eth1"], "eth0", Some(0)),
            (["xdp:eth0", "eth1?snaplen=64"], "eth1", Some(1)),
            (["xdp:eth0", "eth1"], "packet:eth1", Some(1)),
            (["xdp:eth0", "host:eth0"], "eth0", None),
            (["xdp:eth0", "host:eth0"], "host:eth0", Some(1)),
            (["xdp:eth0", "pcap:/tmp/all.pcapng"], "all", Some(1)),
            (["xdp:eth0", "eth1"], "eth2", None),
        ] {
            assert_eq!(side(&ports(names), name).ok(), expected, "{name} of {names:?}");
        }
        let error = side(&ports(["xdp:eth0", "host:eth0"]), "eth0").unwrap_err().to_string();
        assert!(error.contains("available: xdp:eth0, host:eth0"), "{error}");
    }
}
