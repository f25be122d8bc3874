//! `monitor:NAME/PORT`, the packets that a port of a running switch or forwarder receives and sends, as
//! copies. The watched port never waits: a slow reader loses packets, and they are counted.
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `filter` | a pcap-filter expression, run by the copying process | all |
//! | `snaplen` | maximum bytes kept of a packet | 2016 |
//! | `ring_size` | packets that each ring holds | 8192 |
//! | `socket` | the control socket | the one for NAME |
//! | `latency` | maximum time that a packet waits for a sleeping reader; 0 wakes it at once | see `OpenOptions` |
//! | `slots` | slots in a queue's ring | 512 |
//!
//! `monitor:PORT` is a port of the switch called `switch`. Packets that the port received have the
//! direction [`Direction::In`](sluicegate_base::ring::Direction), packets to send
//! [`Direction::Out`](sluicegate_base::ring::Direction). Each thread that handles packets of the port
//! copies them into its own ring, which is one queue here. The command's owner and root may watch, without
//! other privileges. The port ends when the command exits or removes its port.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::backend::{Backend, WakeSource};
use super::cell_ring_rx::CellRingRx;
use super::interface::described;
use super::name::PortName;
use super::options::{Directions, OpenOptions};
use super::queue::{Port, Queue};
use super::rings::{PoolRequirements, RingMaker};
use super::stats::QueueStats;
use super::wait::is_readable;
use crate::cell_ring::Reader;
use crate::control::{Client, socket_path};
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::{DEFAULT_CELLS, DEFAULT_SNAPLEN, WatchRequest, readers};
use sluicegate_base::ring::{Interface, Readiness, Ring, Wait};

/// Maximum time to wait until the writer reports that it has ended.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands that can be watched, by the names of their sockets' folders.
const WATCHED: [&str; 2] = ["switch", "forward"];

/// A queue with the copied packets of one thread of the watched port.
#[derive(Debug)]
pub(super) struct MonitorQueue {
    rx: CellRingRx,
    /// The connection to the command, which copies packets as long as it exists, and the notice for the first
    /// queue that sees it end unexpectedly.
    client: Option<Arc<(Client, Mutex<Option<String>>)>>,
    notice: Option<String>,
}

pub(super) fn open(name: &PortName, options: &OpenOptions) -> Result<Port> {
    if options.usage != Directions::Receive {
        return Err(name.error("a monitor: port only receives"));
    }
    let (whose, port) = name.name().split_once('/').unwrap_or(("switch", name.name()));
    let slots = name.slots(2..=65_536)?;
    if port.contains(' ') {
        return Err(name.error("a watched port has no blank in its name"));
    }
    let watch = WatchRequest {
        port: port.to_owned(),
        snaplen: name.number("snaplen", 1..=65_535)?.unwrap_or(DEFAULT_SNAPLEN),
        cells: name.count("ring_size", 2..=1 << 20)?.unwrap_or(DEFAULT_CELLS),
        filter: name.option("filter").unwrap_or_default().to_owned(),
    };
    let latency = name.latency(options)?;
    let mut client = connect(name, whose)?;
    let (answer, files) = client.ask(&watch.to_string())?;
    if files.is_empty() {
        return Err(name.error(answer));
    }
    let readers = readers(files, &name.short())?;
    name.check_queue_count(options, readers.len())?;
    let snaplen = readers.iter().map(Reader::snaplen).max().unwrap_or(watch.snaplen);
    let buffer_bytes = snaplen.next_multiple_of(64);
    let pool = PoolRequirements::of_queues(readers.len() as u32, slots, buffer_bytes).pool()?;
    let rings = RingMaker { pool, usage: Directions::Receive, slots };
    let notice = format!("{}: the watched command ended unexpectedly", name.short());
    let client = Arc::new((client, Mutex::new(Some(notice))));
    // The socket's path says more than a name.
    let whose = name.option("socket").unwrap_or(whose);
    let queue = |(number, reader): (usize, Reader)| {
        let comment = format!("port {port} of '{whose}'; timestamps: software");
        let described = Interface { snaplen: reader.snaplen(), ..described(port, comment) };
        let client = Some(Arc::clone(&client));
        let queue = MonitorQueue { rx: CellRingRx::new(reader, latency), client, notice: None };
        let (rx, tx) = rings.make()?;
        Ok(Queue::new(number as u32, rx, tx, queue, vec![described]))
    };
    let queues = readers.into_iter().enumerate().map(queue).collect::<Result<_>>()?;
    Ok(Port::plain(name, queues))
}

/// Connects to the watched command, by the given socket or by the command's name.
fn connect(name: &PortName, whose: &str) -> Result<Client> {
    if let Some(path) = name.option("socket") {
        return Client::connect(Path::new(path));
    }
    let mut found = Vec::new();
    for command in WATCHED {
        match Client::connect(&socket_path(command, whose)?) {
            Ok(client) => found.push(client),
            Err(error) if error.kind() == ErrorKind::Usage => {}
            Err(error) => return Err(error),
        }
    }
    match (found.pop(), found.pop()) {
        (Some(client), None) => Ok(client),
        (None, _) => Err(Error::Usage(format!(
            "no running command has the name '{whose}'; start a switch or a forward with --name {whose}, \
             or name its socket by socket=PATH"
        ))),
        (Some(_), Some(_)) => Err(name.error(
            "both a switch and a forward have that name; select one by \
             socket=/run/sluice/forward/NAME/control.sock",
        )),
    }
}

impl MonitorQueue {
    /// Returns true if the copying process has exited: the socket is readable, and no answer is due.
    fn is_alone(&mut self) -> bool {
        // A command that exits by itself marks its rings first.
        if let Some(client) = self.client.take_if(|it| is_readable(it.0.as_fd()) == Ok(true))
            && self.rx.closed().is_none()
            && !self.rx.reader().has_ended()
        {
            self.notice = client.1.lock().ok().and_then(|mut notice| notice.take());
        }
        self.client.is_none()
    }
}

impl Backend for MonitorQueue {
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        Ok(self.rx.sync(ring, |ns| ns))
    }

    /// Returns true if no more packets will arrive and all copied ones are in the ring.
    fn is_finished(&mut self) -> bool {
        let late = self.rx.closed().is_some_and(|closed| closed.elapsed() >= END_TIMEOUT);
        let over = self.rx.reader().has_ended() || late || self.is_alone();
        over && !self.rx.is_woken()
    }

    fn stop_rx(&mut self) -> Result<()> {
        self.rx.close();
        Ok(())
    }

    fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn stats(&mut self) -> Result<QueueStats> {
        Ok(self.rx.stats())
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        Ok(self.rx.finds_packets().then_some(Readiness::Ready))
    }

    fn spins(&mut self, wait: Wait) -> bool {
        self.rx.begin_wait(wait)
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        self.rx.wake_source()
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        Ok(self.rx.slept(ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Answer, Server, Service};
    use crate::monitor::Writer;

    /// Two watchable threads.
    struct Two(Vec<Writer>);

    impl Service for Two {
        fn answer(&mut self, _: u64, request: &str) -> Answer {
            let watch = request.parse().unwrap();
            let rings = [(); 2].map(|()| Writer::new(&watch).unwrap());
            let (writers, files): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
            self.0.extend(writers);
            let files = files.into_iter().flatten().collect();
            Answer { line: "watching".into(), files, keep: true }
        }

        fn left(&mut self, _: u64) {}
    }

    fn watched_two() -> (Port, Server, Two) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut server = Server::bind(&path).unwrap();
        let name: PortName = format!("monitor:eth0?socket={}", path.display()).parse().unwrap();
        let options = OpenOptions { usage: Directions::Receive, ..OpenOptions::default() };
        let opening = std::thread::spawn(move || Port::open(&name, &options));
        let mut two = Two(Vec::new());
        while !opening.is_finished() {
            server.serve(&mut two);
            std::thread::yield_now();
        }
        (opening.join().unwrap().unwrap(), server, two)
    }

    #[test]
    fn each_ring_is_a_queue_that_says_where_it_is_from() {
        let (port, _server, two) = watched_two();
        assert_eq!((port.queues.len(), two.0.len()), (2, 2));
        for queue in &port.queues {
            let comment = &queue.interfaces()[0].comment;
            assert!(comment.contains("/socket"), "{comment}");
        }
    }

    #[test]
    fn one_queue_reports_a_command_that_was_killed_whichever_ended_before() {
        for (ended, order) in [(0, [0, 1]), (0, [1, 0]), (1, [0, 1]), (1, [1, 0])] {
            let (mut port, server, mut two) = watched_two();
            drop(two.0.remove(ended));
            std::mem::forget(two);
            drop(server);
            let notices = order.map(|queue| {
                let queue = &mut port.queues[queue];
                // A child that another test starts may hold the connection until it executes its program.
                while !queue.is_finished() {
                    std::thread::yield_now();
                }
                queue.take_notice()
            });
            let given: Vec<_> = notices.iter().flatten().collect();
            assert_eq!(given.len(), 1, "{ended} {order:?}: {given:?}");
        }
    }
}
