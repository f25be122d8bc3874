//! The control socket of a port, in a thread of its own that connects and reconnects.
//!
//! Queues read one number once per batch. It changes when a connection begins or ends, and stays in their
//! cache otherwise. A queue that sees it change takes its rings of the new peer: it sends on them at once,
//! and receives on them after it has drained the old peer's rings.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};
use crate::file::without_signals;
use crate::link::netns;
use sluicegate_memif::{
    Address, Channel, ChannelEnd, Connection, Listener, Pair, ProtocolError, Settings,
    WaitingClients, as_client, wait,
};

/// The interval of attempts to connect while no server listens.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of attempts to connect to a peer that has refused.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of unread notices kept; later ones are dropped.
const MAX_NOTICES: usize = 64;

/// The reason for a client beside the one that a server has.
const ALREADY_CONNECTED: &str = "already connected";

/// The role of a port at its socket.
#[derive(Debug)]
pub(super) enum Endpoint {
    /// Waits for clients.
    Server(Listener),
    /// Connects; first over an existing channel, if there is one.
    Client { first: Option<Channel> },
}

/// State shared by the control thread and the queues.
#[derive(Debug)]
pub(super) struct ControlState {
    /// Changes with every connection that begins or ends. The control thread stores it with release order,
    /// and the queues load it with acquire order: a queue that sees the end of a connection sees all
    /// packets that the peer had published. The rings themselves are read under the lock.
    changes: AtomicU32,
    state: Mutex<ConnectionState>,
    /// Wakes the control thread.
    wake: EventFd,
    /// Wakes waiting queues.
    nudges: Vec<EventFd>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    stop: bool,
    /// The number of the current or the last connection.
    connection: u32,
    /// True if a peer is connected.
    connected: bool,
    /// Rings of the connection that queues have not taken yet.
    pairs: Vec<Option<Pair>>,
    /// The protocol violation that a queue found.
    breach: Option<ProtocolError>,
    notices: VecDeque<String>,
}

/// The control thread, which runs as long as there are queues.
#[derive(Debug)]
pub(super) struct ControlSocket {
    shared: Arc<ControlState>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Starts to serve or to connect, for `settings.queues` queues. `name` is for messages.
    pub(super) fn start(
        name: String,
        (address, netns): (Address, Option<String>),
        settings: Settings,
        endpoint: Endpoint,
    ) -> Result<Self> {
        let event = || {
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(|error| Error::system("create", "an event", error))
        };
        let queues = settings.queues;
        let shared = Arc::new(ControlState {
            changes: AtomicU32::new(0),
            state: Mutex::default(),
            wake: event()?,
            nudges: (0..queues).map(|_| event()).collect::<Result<_>>()?,
        });
        let worker = ControlThread {
            name,
            address,
            netns,
            settings,
            endpoint,
            waiting: WaitingClients::default(),
            shared: Arc::clone(&shared),
            last_message: String::new(),
        };
        let builder = std::thread::Builder::new().name("memif".into());
        let thread = without_signals(|| builder.spawn(move || worker.run()))
            .map_err(|e| Error::start("a thread for the control socket", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns a number that changes with every connection that begins or ends.
    #[inline]
    pub(super) fn changes(&self) -> u32 {
        self.shared.changes.load(Ordering::Acquire)
    }

    /// Returns a queue's news: the number of the last change that they include, the connection's number,
    /// and the queue's new rings, if there are any.
    pub(super) fn take(&self, queue: usize) -> (u32, u32, Option<Pair>) {
        let mut state = self.shared.state();
        let pair = state.pairs.get_mut(queue).and_then(Option::take);
        (self.changes(), state.connection, pair)
    }

    /// Ends a connection whose peer has broken the protocol, unless it has already ended.
    pub(super) fn break_off(&self, connection: u32, breach: ProtocolError) {
        let mut state = self.shared.state();
        if state.connected && state.connection == connection {
            state.breach.get_or_insert(breach);
            // Under the lock, so that the connection still exists and no later handshake is woken.
            let _ = self.shared.wake.write(1);
        }
    }

    /// Returns the next notice for the user, each once.
    pub(super) fn take_notice(&self) -> Option<String> {
        self.shared.state().notices.pop_front()
    }

    /// Clears a queue's event. Call it before a sleep, and look for changes after it. A queue that sees a change
    /// must not clear the event, because its program may be about to sleep.
    pub(super) fn clear_nudge(&self, queue: usize) {
        let _ = self.shared.nudges[queue].read();
    }

    /// Returns a descriptor that is readable when something has changed for a queue.
    pub(super) fn nudge(&self, queue: usize) -> BorrowedFd<'_> {
        self.shared.nudges[queue].as_fd()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        let _ = self.shared.wake.write(1);
        if let Some(thread) = self.thread.take() {
            // Waits, so that the socket's file is removed before the port is.
            let _ = thread.join();
        }
    }
}

impl ControlState {
    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        // The state is consistent between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, notice: String) {
        let notices = &mut self.state().notices;
        if notices.len() < MAX_NOTICES {
            notices.push_back(notice);
        }
    }

    /// Announces a connection, or that there is none, to the queues.
    fn announce(&self, pairs: Vec<Pair>) {
        let mut state = self.state();
        state.connected = !pairs.is_empty();
        state.connection = state.connection.wrapping_add(u32::from(state.connected));
        state.pairs = pairs.into_iter().map(Some).collect();
        state.breach = None;
        self.changes.fetch_add(1, Ordering::Release);
        // After the change: a queue that clears the event and then looks for changes sees it.
        for nudge in &self.nudges {
            let _ = nudge.write(1);
        }
    }

    /// Returns whether to stop, and the violation that a queue reported.
    fn orders(&self) -> (bool, Option<ProtocolError>) {
        let _ = self.wake.read();
        let mut state = self.state();
        (state.stop, state.breach.take())
    }
}

/// The control thread.
struct ControlThread {
    name: String,
    address: Address,
    netns: Option<String>,
    settings: Settings,
    endpoint: Endpoint,
    /// A server's clients before their handshake.
    waiting: WaitingClients,
    shared: Arc<ControlState>,
    /// The last message reported while no peer was connected, to report it only once.
    last_message: String,
}

impl ControlThread {
    fn run(mut self) {
        while !self.shared.orders().0 {
            let made = match &self.endpoint {
                Endpoint::Server(_) => self.serve(),
                Endpoint::Client { .. } => self.connect(),
            };
            match made {
                Ok(Some((channel, connection))) => self.connected(&channel, connection),
                Ok(None) => {}
                Err(ended) => self.refused(ended),
            }
        }
    }

    fn say(&self, text: &str) {
        self.shared.say(format!("{}: {text}", self.name));
    }

    /// Reports a message unless it was the last one reported.
    fn say_once(&mut self, text: String) {
        if self.last_message != text {
            self.say(&text);
            self.last_message = text;
        }
    }

    /// Reports why a connection failed, if that is of interest to users.
    fn refused(&mut self, ended: ChannelEnd) {
        let is_ours = matches!(ended, ChannelEnd::System(_));
        let text = match ended {
            // The peer only probed the socket, or the port is ending.
            ChannelEnd::Stopped | ChannelEnd::Closed => return,
            ChannelEnd::Told(reason) => format!("the peer refuses: {reason}"),
            ChannelEnd::ProtocolError(breach) => {
                format!("a peer is refused: {breach}{}", remedy(&breach))
            }
            ChannelEnd::Late => "a peer is refused: handshake took too long".into(),
            ChannelEnd::System(error) => format!("cannot connect: {error}"),
        };
        self.say_once(text);
        // A server continues with the next client at once, unless it lacks a resource itself: then the same
        // client is still waiting.
        if is_ours || matches!(self.endpoint, Endpoint::Client { .. }) {
            self.rest(REFUSED_RETRY_INTERVAL);
        }
    }

    /// Waits until a queue or the port wakes the thread, or the time has expired.
    fn rest(&self, time: Duration) {
        let _ = wait([self.shared.wake.as_fd()], time);
    }

    /// Waits for clients, and connects to the first that answers. None if none has answered yet.
    fn serve(&mut self) -> Result<Option<(Channel, Connection)>, ChannelEnd> {
        let Endpoint::Server(listener) = &self.endpoint else { return Ok(None) };
        self.waiting.serve(listener, &self.settings, self.shared.wake.as_fd())
    }

    /// Connects to a server. None if none is listening yet.
    fn connect(&mut self) -> Result<Option<(Channel, Connection)>, ChannelEnd> {
        let Endpoint::Client { first } = &mut self.endpoint else { return Ok(None) };
        let channel = match first.take() {
            Some(channel) => channel,
            None => match netns::run_in(self.netns.as_deref(), || Ok(self.address.connect())) {
                Ok(Ok(channel)) => channel,
                Ok(Err(Errno::EACCES)) => return Err(ChannelEnd::System(Errno::EACCES)),
                _ => {
                    self.say_once("nobody listens there; waiting for a server".into());
                    self.rest(RETRY_INTERVAL);
                    return Ok(None);
                }
            },
        };
        let wake = self.shared.wake.as_fd();
        let connection = as_client(&channel, &self.settings, wake)?;
        Ok(Some((channel, connection)))
    }

    /// Serves a connection until it ends.
    fn connected(&mut self, channel: &Channel, connection: Connection) {
        let Connection { peer, pairs } = connection;
        let there = pairs.iter().filter(|pair| pair.rx.is_some() || pair.tx.is_some()).count();
        let fewer = match there < pairs.len() {
            true => format!("; it has {there} of {} queues", pairs.len()),
            false => String::new(),
        };
        self.shared.announce(pairs);
        self.waiting.turn_away(ALREADY_CONNECTED);
        self.say(&format!("connected to {peer}{fewer}"));
        let why = self.watch(channel);
        self.shared.announce(Vec::new());
        // A new peer may have the same error.
        self.last_message.clear();
        match why {
            ChannelEnd::Stopped => {}
            ChannelEnd::ProtocolError(breach) => {
                let remedy = remedy(&breach);
                self.say(&format!("{peer} broke the protocol and was cut off: {breach}{remedy}"));
                self.rest(RETRY_INTERVAL);
            }
            ChannelEnd::Told(reason) if !reason.is_empty() => {
                self.say(&format!("{peer} disconnected: {reason}; waiting"));
            }
            _ => self.say(&format!("{peer} disconnected; waiting")),
        }
    }

    /// Waits for the end of a connection. Returns the reason.
    fn watch(&self, channel: &Channel) -> ChannelEnd {
        let wake = self.shared.wake.as_fd();
        let listener = match &self.endpoint {
            Endpoint::Server(listener) => listener.as_fd(),
            Endpoint::Client { .. } => wake,
        };
        loop {
            let [told, woken, called] = match wait([channel.as_fd(), wake, listener], Duration::MAX)
            {
                Ok(readable) => readable,
                Err(ended) => return ended,
            };
            if woken {
                match self.shared.orders() {
                    (true, _) => {
                        channel.disconnect("the port was closed");
                        return ChannelEnd::Stopped;
                    }
                    (false, Some(breach)) => {
                        channel.disconnect(&breach.0);
                        return breach.into();
                    }
                    (false, None) => {}
                }
            }
            // A peer that connects right after the client has ended may be seen before the client's end is.
            if told || called && matches!(wait([channel.as_fd()], Duration::ZERO), Ok([true])) {
                return channel.hear_end();
            }
            if called && let Endpoint::Server(listener) = &self.endpoint {
                match listener.accept() {
                    // The server already has a client, and can have only one.
                    Ok(Some(other)) => other.disconnect(ALREADY_CONNECTED),
                    Ok(None) => {}
                    // No descriptor is free to accept it, and it is still waiting.
                    Err(_) => self.rest(RETRY_INTERVAL),
                }
            }
        }
    }
}

/// Returns the user's remedy for a peer that was rejected or disconnected.
fn remedy(breach: &ProtocolError) -> &'static str {
    match &breach.0 {
        said if said.contains("F_SEAL_SHRINK") => {
            "; sealed=off takes it, from a peer that is trusted not to shrink it"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_of_a_disconnected_peer_is_ignored() {
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let shared = Arc::new(ControlState {
            changes: AtomicU32::new(0),
            state: Mutex::default(),
            wake: event(),
            nudges: vec![event()],
        });
        let control = ControlSocket { shared: Arc::clone(&shared), thread: None };
        let complain = |connection| control.break_off(connection, ProtocolError("it lies".into()));
        let connect = || {
            shared.announce(vec![Pair::default()]);
            control.take(0).1
        };
        let first = connect();
        complain(first);
        assert!(shared.wake.read().is_ok(), "the thread is woken");
        let heard = shared.orders().1;
        assert_eq!(heard.map(|breach| breach.0).as_deref(), Some("it lies"));
        for (sentence, another) in [("no peer is connected", false), ("another is connected", true)]
        {
            let old = connect();
            shared.announce(Vec::new());
            if another {
                connect();
            }
            complain(old);
            assert!(shared.wake.read().is_err(), "{sentence}: nobody is woken");
            assert!(shared.orders().1.is_none(), "{sentence}");
        }
    }
}
