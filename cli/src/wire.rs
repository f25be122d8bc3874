//! What became of packets that an interface took to send, by its own counters.

use nix::errno::Errno;
use sluicegate::error::Error;
use sluicegate::ledger::{Ledger, Role};

use crate::card::{By, Card};

/// Where the packets went that an interface took. Who else sends there may have his share of it: what
/// is others', or leaves later than is waited for, nobody can tell.
#[derive(Debug, Default)]
pub struct Wire {
    /// Packets that the interface says it has sent, whoever they came from.
    pub interface_sent: u64,
    /// Of those taken, packets that are out.
    pub sent: u64,
    /// Of those taken, packets that still wait in the host's queue.
    pub waiting: u64,
    losses: [(&'static str, u64); 2],
}

/// Threads that sent live frames, for what no counter has of these.
#[derive(Clone, Copy, Debug)]
pub struct LiveThreads {
    pub count: usize,
    /// The interface went down meanwhile.
    pub down: bool,
}

impl Wire {
    /// Of so many packets; none where the interface cannot be asked any more.
    pub fn look(card: &mut Card, taken: u64, live: Option<LiveThreads>) -> Option<Self> {
        let (counted, waiting) = card.sent_of(taken, By::HostQueue)?;
        let waiting = waiting.min(taken.saturating_sub(counted.0));
        Some(Self { waiting, ..Self::of(taken - waiting, counted, live) })
    }

    /// Of so many packets that XDP redirected there, past the host's queue.
    pub fn of_redirected(card: &mut Card, redirected: u64) -> Option<Self> {
        let (counted, _) = card.sent_of(redirected, By::Redirect)?;
        Some(Self::of(redirected, counted, None))
    }

    /// Of packets that the interface sends or drops at once; it says how many it has sent and dropped.
    fn of(taken: u64, (counted, dropped): (u64, u64), live: Option<LiveThreads>) -> Self {
        let sent = taken.min(counted);
        let dropped = dropped.min(taken - sent);
        let unseen =
            live.map_or(("", 0), |threads| threads.unseen(taken - sent - dropped, dropped));
        Self {
            interface_sent: counted,
            sent,
            waiting: 0,
            losses: [("interface_dropped", dropped), unseen],
        }
    }

    /// Those lost, whatever the name.
    pub fn lost(&self) -> u64 {
        self.losses.iter().map(|(_, packets)| packets).sum()
    }

    /// Names what is lost; what is out, each command names itself.
    pub fn account_losses(&self, ledger: &mut Ledger) {
        for (name, packets) in self.losses.iter().filter(|(name, _)| !name.is_empty()) {
            ledger.add(Role::Loss, name, *packets);
        }
    }
}

impl LiveThreads {
    /// Live frames that no counter of the interface has, by the reason: the program that redirects them
    /// does not see what becomes of them. Nobody takes them while the interface is down, which is
    /// noticed half a second later; and a veth counts what it drops of them without a lock, so that
    /// counts are lost where several threads send to one of its queues.
    fn unseen(self, left: u64, dropped: u64) -> (&'static str, u64) {
        match self.down {
            true => ("interface_down", left),
            false if self.count > 1 => ("interface_uncounted", left.min(dropped)),
            false => ("interface_uncounted", 0),
        }
    }
}

/// Whether an interface that is down is what failed.
pub fn is_down(error: &Error) -> bool {
    error.errno() == Some(Errno::ENETDOWN as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interface_took_is_sent_or_has_a_name_as_far_as_its_counters_go() {
        let live = |count, down| Some(LiveThreads { count, down });
        for (counted, threads, sent, lost, sentence) in [
            ((100, 0), None, 100, 0, "all are out"),
            ((90, 10), None, 90, 10, "the rest was dropped"),
            ((200, 30), None, 100, 0, "others send there, too"),
            ((90, 4), None, 90, 4, "nobody knows of six"),
            ((90, 4), live(1, false), 90, 4, "one thread's drops are all counted"),
            ((90, 4), live(2, false), 90, 8, "two threads' may count for one"),
            ((90, 4), live(1, true), 90, 10, "it went down"),
        ] {
            let wire = Wire::of(100, counted, threads);
            assert_eq!((wire.sent, wire.lost()), (sent, lost), "{sentence}");
            assert_eq!(wire.interface_sent, counted.0, "{sentence}");
        }
    }
}
