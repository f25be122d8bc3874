//! One queue of copies: a reader of rings, the stage that fills them, and when to look.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::port::QueueStats;
use crate::port::packet::Promiscuous;
use crate::port::wait::{Alarm, Awaited};
use crate::port::watch::{Looker, Watch};
use crate::ring::{Readiness, Ring, Wait};
use crate::xdp::copies::{Reader, WallClock};
use crate::xdp::resident::Stage;

/// As many packets are read before there is another look at how many there are.
const BATCH: u32 = 256;
/// After a look that found packets there is none for this time. To look takes the line of memory
/// that the program writes with every packet away from its CPU: a reader that looked again at
/// once would meet one packet at a time, and slow the program down.
const PAUSE: Duration = Duration::from_micros(50);
/// The first sleep; each is twice as long as the one before as long as nothing comes.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
/// The longest sleep, for each cell that a ring has: at ten million packets a second, the ring is
/// full when the reader wakes up.
const SLEEP_A_CELL: Duration = Duration::from_nanos(100);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// A packet that is on its way through the program is in its ring within this time.
const SETTLE: Duration = Duration::from_millis(5);
/// Between two looks at what has become of the interface.
const CHECK: Duration = Duration::from_millis(500);

/// What lets packets into the rings of a port. Each queue holds it until its intake is closed;
/// when the last has let it go, nothing is copied any more.
#[derive(Debug)]
pub(super) struct Intake(Arc<Stage>);

impl Intake {
    pub(super) fn of(stage: &Arc<Stage>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(stage)))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What fills the rings: the stage, as long as there are queues, and what lets packets in.
#[derive(Debug)]
pub(super) struct Filling {
    pub intake: Option<Arc<Intake>>,
    pub stage: Arc<Stage>,
}

/// What is to be known of the interface that packets come from.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub watch: Arc<Watch>,
    pub _promiscuous: Option<Arc<Promiscuous>>,
}

/// A queue whose packets are copied into rings.
#[derive(Debug)]
pub(crate) struct CopyQueue {
    number: u32,
    // Before the memory: nothing is copied any more when this is gone.
    filling: Filling,
    reader: Reader,
    clock: WallClock,
    around: Surroundings,
    /// No look before then.
    next_look: Instant,
    sleep: Duration,
    longest_sleep: Duration,
    intake_closed: Option<Instant>,
    checked: Instant,
    /// Packets have come since the last check.
    came: bool,
    down: bool,
}

impl CopyQueue {
    pub(super) fn new(
        number: u32,
        reader: Reader,
        filling: Filling,
        cells: u32,
        around: Surroundings,
    ) -> Self {
        let now = Instant::now();
        Self {
            number,
            filling,
            reader,
            clock: WallClock::new(),
            around,
            next_look: now,
            sleep: FIRST_SLEEP,
            longest_sleep: (SLEEP_A_CELL * cells).clamp(FIRST_SLEEP, LONGEST_SLEEP),
            intake_closed: None,
            checked: now,
            came: false,
            // The first look reports an interface that is down already.
            down: false,
        }
    }

    pub(crate) fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        self.reader.give_back(ring);
        if self.reader.unread() < BATCH {
            self.finds_packets();
        }
        let slots = self.reader.fill(ring, &mut self.clock);
        self.came |= slots > 0;
        Ok(slots)
    }

    /// Looks for packets, unless it is too early; true if some are there.
    fn finds_packets(&mut self) -> bool {
        let before = self.reader.unread();
        let now = Instant::now();
        if self.intake_closed.is_none() && now < self.next_look {
            return before > 0;
        }
        let there = self.reader.look();
        if there > before {
            self.next_look = now + PAUSE;
            self.sleep = FIRST_SLEEP;
        }
        there > 0
    }

    /// Whether the interface is down, and this was not returned yet. Asks the kernel now and then.
    fn has_gone_down(&mut self) -> Result<bool> {
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.check_attached()?;
            self.look_around(Looker::Idle)?;
        }
        let up = self.around.watch.is_up()?;
        let was_down = std::mem::replace(&mut self.down, !up);
        Ok(self.down && !was_down)
    }

    /// Looks at what has changed around the rings.
    pub(crate) fn check(&mut self) -> Result<()> {
        // As with sockets: where packets come the program is there.
        if !std::mem::replace(&mut self.came, false) {
            self.check_attached()?;
        }
        self.look_around(Looker::Busy)
    }

    fn look_around(&self, looker: Looker) -> Result<()> {
        self.around.watch.look(self.number, looker).or_else(|gone| {
            // A driver that adds queues with the program takes them away with it.
            self.check_attached()?;
            Err(gone)
        })
    }

    fn check_attached(&self) -> Result<()> {
        let attached = self.filling.stage.check_attached();
        attached.map_err(|error| self.around.watch.explain(error))
    }

    pub(crate) fn take_notice(&self) -> Option<String> {
        self.around.watch.take_notice()
    }

    /// From now on nothing is let in. What other queues of the port have is not touched: the
    /// program passes this one's rings by, and the last to close stops it.
    pub(crate) fn close_intake(&mut self) {
        if let Some(intake) = self.filling.intake.take() {
            self.reader.close();
            drop(intake);
            self.intake_closed = Some(Instant::now());
        }
    }

    /// After the intake was closed: all that was copied has come out.
    pub(crate) fn is_finished(&mut self) -> bool {
        self.intake_closed.is_some_and(|closed| closed.elapsed() >= SETTLE) && !self.finds_packets()
    }

    pub(crate) fn stats(&self) -> QueueStats {
        let counts = self.reader.counts();
        QueueStats { offered: counts.matched, lost_full: counts.lost, ..QueueStats::default() }
    }
}

/// There is nothing to be woken by: looks now and then.
impl Awaited for CopyQueue {
    fn look(&mut self) -> Result<Option<Readiness>> {
        if self.finds_packets() {
            return Ok(Some(Readiness::Ready));
        }
        Ok(self.has_gone_down()?.then_some(Readiness::Down))
    }

    fn spins(&self, _wait: Wait) -> bool {
        true
    }

    fn alarm(&mut self) -> Alarm<'_> {
        let nap = self.sleep;
        self.sleep = (nap * 2).min(self.longest_sleep);
        Alarm::Nap(nap)
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        // Nobody reads these rings any more: what would come here is the next's, or the host's,
        // although other queues of the port go on.
        self.close_intake();
    }
}
