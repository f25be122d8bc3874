//! The clients of a server that have not answered its HELLO yet. All may answer at any time, so that a silent
//! one holds up no other.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::channel::{Channel, ChannelEnd, Listener, WAITING, wait_first};
use super::handshake::{
    ANSWER_TIMEOUT, Connection, HANDSHAKE_TIMEOUT, LATE, Settings, Talk, as_greeted_server,
};

/// Connected clients, each with the end of its time for the handshake; the oldest is first.
#[derive(Debug, Default)]
pub struct WaitingClients(Vec<(Channel, Instant)>);

impl WaitingClients {
    /// Waits for the next event: greets a client that connects, or runs the handshake with one that answers.
    /// `None` if a client was greeted, or `wake` is readable.
    ///
    /// # Errors
    /// A handshake has failed or took too long, or the system has too few resources.
    pub fn serve(
        &mut self,
        listener: &Listener,
        settings: &Settings,
        wake: BorrowedFd<'_>,
    ) -> Result<Option<(Channel, Connection)>, ChannelEnd> {
        let ends = self.0.first().map(|(_, end)| *end);
        let left = ends.map(|end| end.saturating_duration_since(Instant::now()));
        let clients = self.0.iter().map(|(channel, _)| channel.as_fd());
        // The listener is last, so that clients that keep connecting hold up none that answers.
        let files: Vec<_> = [wake].into_iter().chain(clients).chain([listener.as_fd()]).collect();
        match wait_first(&files, left.unwrap_or(Duration::MAX))? {
            Some(0) => Ok(None),
            Some(file) if file <= self.0.len() => {
                let (channel, _) = self.0.remove(file - 1);
                // It answered in time, but the handshake of another one may have run since.
                let end = Instant::now() + ANSWER_TIMEOUT;
                let talk = Talk { channel: &channel, wake, end };
                let connection = as_greeted_server(&talk, settings)?;
                Ok(Some((channel, connection)))
            }
            Some(_) => self.greet(listener, settings).map(|()| None),
            None if left.is_some_and(|left| left.is_zero()) => {
                self.0.remove(0).0.disconnect(LATE);
                Err(ChannelEnd::Late)
            }
            None => Ok(None),
        }
    }

    /// Disconnects all clients.
    pub fn turn_away(&mut self, reason: &str) {
        self.0.drain(..).for_each(|(channel, _)| channel.disconnect(reason));
    }

    fn greet(&mut self, listener: &Listener, settings: &Settings) -> Result<(), ChannelEnd> {
        let Some(channel) = listener.accept().map_err(ChannelEnd::System)? else { return Ok(()) };
        if self.0.len() >= WAITING as usize {
            self.0.remove(0).0.disconnect("too many clients wait for a handshake");
        }
        let end = Instant::now() + HANDSHAKE_TIMEOUT;
        settings.greet(&channel)?;
        self.0.push((channel, end));
        Ok(())
    }
}
