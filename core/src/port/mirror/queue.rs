//! One queue of copies: a reader of rings, the stage that fills them, and when to look.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::port::QueueStats;
use crate::port::backend::{Backend, WakeSource};
use crate::port::cells::CellIntake;
use crate::port::packet::Promiscuous;
use crate::port::watch::{InterfaceWatch, Looker};
use crate::xdp::copies::WallClock;
use crate::xdp::resident::Stage;
use sluicegate_base::ring::{Readiness, Ring, Wait};

/// A packet that is on its way through the program is in its ring within this time.
const SETTLE: Duration = Duration::from_millis(5);
/// Between two looks at what has become of the interface.
const CHECK: Duration = Duration::from_millis(500);

/// Lets packets into the rings of a port. Each queue holds it until its intake is closed; when the
/// last has released it, nothing is copied any more.
#[derive(Debug)]
pub(super) struct MirrorRx(Arc<Stage>);

impl MirrorRx {
    pub(super) fn of(stage: &Arc<Stage>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(stage)))
    }
}

impl Drop for MirrorRx {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Fills the rings: the stage, as long as queues exist, and the intake.
#[derive(Debug)]
pub(super) struct Filling {
    pub intake: Option<Arc<MirrorRx>>,
    pub stage: Arc<Stage>,
}

/// The state of the interface that packets come from.
#[derive(Debug)]
pub(super) struct QueueContext {
    pub watch: Arc<InterfaceWatch>,
    pub _promiscuous: Option<Arc<Promiscuous>>,
}

/// A queue whose packets are copied into rings.
#[derive(Debug)]
pub(crate) struct CopyQueue {
    number: u32,
    // Before the memory: nothing is copied any more once this is dropped.
    filling: Filling,
    intake: CellIntake,
    clock: WallClock,
    around: QueueContext,
    checked: Instant,
    /// Packets have come since the last check.
    came: bool,
    down: bool,
}

impl CopyQueue {
    pub(super) fn new(
        number: u32,
        intake: CellIntake,
        filling: Filling,
        around: QueueContext,
    ) -> Self {
        let now = Instant::now();
        Self {
            number,
            filling,
            intake,
            clock: WallClock::new(),
            around,
            checked: now,
            came: false,
            // The first look reports an interface that is down already.
            down: false,
        }
    }

    /// Returns true once if the interface is down. Asks the kernel now and then.
    fn is_newly_down(&mut self) -> Result<bool> {
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.check_attached()?;
            self.look_around(Looker::Idle)?;
        }
        let up = self.around.watch.is_up()?;
        let was_down = std::mem::replace(&mut self.down, !up);
        Ok(self.down && !was_down)
    }

    fn look_around(&self, looker: Looker) -> Result<()> {
        self.around.watch.look(self.number, looker).or_else(|error| {
            // A driver that adds queues with the program takes them away with it.
            self.check_attached()?;
            Err(error)
        })
    }

    fn check_attached(&self) -> Result<()> {
        let attached = self.filling.stage.check_attached();
        attached.map_err(|error| self.around.watch.explain(error))
    }
}

impl Backend for CopyQueue {
    fn sync_rx(&mut self, ring: &mut Ring) -> Result<u32> {
        let Self { intake, clock, .. } = self;
        let slots = intake.sync(ring, |ns| clock.wall_ns(ns));
        self.came |= slots > 0;
        Ok(slots)
    }

    /// Looks at what has changed around the rings.
    fn check(&mut self) -> Result<()> {
        // As with sockets: packets prove that the program is attached.
        if !std::mem::replace(&mut self.came, false) {
            self.check_attached()?;
        }
        self.look_around(Looker::Busy)
    }

    fn take_notice(&mut self) -> Option<String> {
        self.around.watch.take_notice()
    }

    /// After the intake was closed: all that was copied has come out.
    fn is_finished(&mut self) -> bool {
        let settled = self.intake.closed().is_some_and(|closed| closed.elapsed() >= SETTLE);
        settled && !self.intake.finds_packets()
    }

    /// From now on nothing is let in. What other queues of the port have is not touched: the
    /// program passes this one's rings by, and the last to close stops it.
    fn stop_rx(&mut self) -> Result<()> {
        if let Some(intake) = self.filling.intake.take() {
            self.intake.close();
            drop(intake);
        }
        Ok(())
    }

    fn stats(&mut self) -> Result<QueueStats> {
        let counts = self.intake.reader().counts();
        Ok(QueueStats {
            received: counts.matched,
            dropped_ring_full: counts.lost,
            ..QueueStats::default()
        })
    }

    fn look(&mut self) -> Result<Option<Readiness>> {
        if self.intake.finds_packets() {
            return Ok(Some(Readiness::Ready));
        }
        Ok(self.is_newly_down()?.then_some(Readiness::Down))
    }

    fn spins(&mut self, wait: Wait) -> bool {
        self.intake.begin_wait(wait)
    }

    fn wake_source(&mut self) -> WakeSource<'_> {
        self.intake.wake_source()
    }

    fn slept(&mut self, ready: bool) -> Result<Readiness> {
        let found = ready && self.intake.is_woken();
        Ok(if found { Readiness::Ready } else { Readiness::TimedOut })
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        // Nobody reads these rings any more: what would come here is the next's, or the host's,
        // although other queues of the port go on.
        let _ = self.stop_rx();
    }
}
