//! A running scrubber: its program on one or several interfaces, and the present policy.

mod candidate;
mod counter_names;
mod edited;
mod memory;
mod report;
mod samples;

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sluicegate::error::{Error, Result};
use sluicegate::link::{self, Interface};
use sluicegate::xdp::Mode as AttachMode;
use sluicegate::xdp::resident::{ModeRequest, Resident, ScrubStage};

use crate::policy::Policy;
use crate::program::{
    self, AnswerCache, Cookies, Count, Handover, LoadedTables, Mode, NextHopWriter, Program,
    ReturnPath, random_number,
};
use crate::tables::Tables;
pub use candidate::{Candidate, TimedFrame};
pub use counter_names::CounterNames;
pub use edited::{AddedRule, EditedPolicy, Removed, SESSION, Until};
pub use memory::Memory;
use memory::ensure_available;
pub(crate) use report::Names;
pub use report::{NamedCause, NamedCount, Report, StageName};
use samples::Samples;
pub use samples::{NewSamples, Sample};

/// Why nothing works that needs the host's sockets.
const NOT_HOST: &str = "packets that pass do not go to this host";

/// Sources and others that limits tell apart, by default.
pub const LIMIT_KEYS: u32 = 1 << 20;

/// How a scrubber runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the program works.
    pub mode: Mode,
    /// How the program is attached to the interfaces.
    pub attach: ModeRequest,
    /// Sources and others that limits tell apart; as many sources can be verified, and twice as many TCP flows known.
    pub limit_keys: u32,
    /// How long packets of unknown TCP flows pass when their protection begins.
    pub learning_time: Duration,
    /// Packets that pass go to this host, whose kernel may complete TCP connections.
    pub is_host: bool,
    /// Where packets to protected networks leave. Without, they go to the host, as all others that pass.
    pub return_path: Option<ReturnPath>,
    /// Connections are handed over as on kernels before Linux 6.9, for tests.
    #[doc(hidden)]
    pub kernel_cookies: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            attach: ModeRequest::default(),
            limit_keys: LIMIT_KEYS,
            learning_time: Duration::from_secs(60),
            is_host: true,
            return_path: None,
            kernel_cookies: false,
        }
    }
}

/// A running scrubber. It stops when it is dropped, if its program is not kept.
#[derive(Debug)]
pub struct Scrubber {
    /// The hand-over of connections, or the reason why the kernel does not complete them.
    // Before the stages: their next owner writes the same settings.
    handover: std::result::Result<Handover, String>,
    stages: Vec<ScrubStage>,
    interfaces: Vec<Interface>,
    /// Why an interface is not in native mode.
    fallbacks: Vec<(String, String)>,
    /// The program of the return path's interface: most drivers send redirected frames only with one.
    returns_by: Option<(Resident, Interface)>,
    /// This host's addresses at the start.
    own_addresses: Vec<IpAddr>,
    /// The cache of answers, or the reason why it stays empty.
    answer_cache: std::result::Result<AnswerCache, String>,
    // Before the program: closing its buffer uses the descriptor of the program's map.
    samples: Samples,
    program: Program,
    policy: Policy,
    memory: Memory,
    learning_time: Duration,
    /// Counts of earlier policies.
    earlier: Report,
}

/// Sets the program's mode and tables. Returns the last counters of the tables before.
fn begin(
    program: &mut Program,
    policy: &Policy,
    tables: &LoadedTables,
    options: &Options,
    is_adopted: bool,
) -> Result<Vec<Count>> {
    // An earlier owner's flows are known.
    if !is_adopted || !policy.knows_flows() || program.learn_until() == 0 {
        learn_flows(program, policy, options.learning_time);
    }
    program.switch_with(options.mode, tables)
}

/// Prepares the kernel for connections of SYN cookies. The error is the reason, for users.
fn begin_handover(
    program: &Program,
    interfaces: &[Interface],
    policy: &Policy,
    options: &Options,
) -> std::result::Result<Handover, String> {
    if !options.is_host {
        return Err(NOT_HOST.into());
    }
    let cookies = options.kernel_cookies.then_some(Cookies::Kernel);
    let policy = handed_over(policy, options.mode);
    let handover = program.start_handover(interfaces, policy, cookies);
    handover.map_err(|error| error.to_string())
}

/// Returns the policy for hand-over. A monitor hands nothing over, and changes no setting of the host.
fn handed_over(policy: &Policy, mode: Mode) -> Option<&Policy> {
    (!mode.monitor).then_some(policy)
}

/// Prepares the kernel for a cache of answers. The error is the reason, for users.
fn begin_answer_cache(
    program: &Program,
    interfaces: &[Interface],
    options: &Options,
) -> std::result::Result<AnswerCache, String> {
    if !options.is_host {
        return Err(NOT_HOST.into());
    }
    program.start_answer_cache(interfaces).map_err(|error| error.to_string())
}

/// Describes a policy for `sluice claims`.
fn describe(policy: &Policy) -> String {
    let Policy { networks, sets, rules, .. } = policy;
    format!("{} protected, {} sets, {} rules", networks.len(), sets.len(), rules.len())
}

/// Makes the flows known that are older than their protection.
fn learn_flows(program: &Program, policy: &Policy, time: Duration) {
    let end = || {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock exists");
        (Duration::from(now) + time).as_nanos() as u64
    };
    program.learn_flows_until(if policy.knows_flows() { end() } else { 0 });
}

/// Returns the addresses of the host in this thread's network namespace.
fn own_addresses() -> Result<Vec<IpAddr>> {
    let interfaces = link::interfaces(None)?;
    Ok(interfaces.iter().flat_map(|it| &it.addresses).map(|it| it.ip).collect())
}

/// Fails if a policy protects this host's addresses: what comes to them would be returned, also a session of SSH.
fn can_return(policy: &Policy, own_addresses: &[IpAddr]) -> Result<()> {
    if policy.networks.is_empty() {
        return Err(Error::Usage(
            "the policy names no protected networks, and what this host itself receives would be returned; add \
             [protect.NAME] with networks"
                .into(),
        ));
    }
    let protects = |it: &&IpAddr| {
        policy.networks.iter().flat_map(|network| &network.networks).any(|net| net.contains(*it))
    };
    match own_addresses.iter().find(protects) {
        None => Ok(()),
        Some(address) => Err(Error::Usage(format!(
            "the policy protects {address}, an address of this host, and what this host itself receives would be \
             returned; give [protect.NAME] networks without it"
        ))),
    }
}

/// Joins the program of a return path's interface. In skb mode the kernel sends by any driver.
fn join_return(interface: &Interface, attach: ModeRequest, is_skb: bool) -> Result<Resident> {
    let (resident, fallback) = Resident::join(interface, attach)?;
    // Some drivers have this ability only while they have a program.
    let abilities = link::xdp_abilities(None, interface)?;
    if is_skb || (fallback.is_none() && abilities.is_none_or(|it| it.sends_redirected())) {
        return Ok(resident);
    }
    Err(Error::Usage(format!(
        "{}: its driver does not send frames that XDP redirects; add --mode skb",
        interface.name
    )))
}

impl Scrubber {
    /// Starts to scrub what interfaces of this thread's network namespace receive. Takes over a scrubber that was
    /// [kept](Mode::resident) there; `earlier` is what that one has counted.
    ///
    /// # Errors
    /// Another scrubber or a foreign program on an interface; a missing privilege; too little memory.
    pub fn start(
        interfaces: &[Interface],
        candidate: Candidate,
        options: &Options,
        earlier: Option<&CounterNames>,
    ) -> Result<Self> {
        let Candidate { policy, tables, bytes } = candidate;
        program::restore_settings();
        let own_addresses = own_addresses()?;
        if options.return_path.is_some() {
            can_return(&policy, &own_addresses)?;
        }
        let (mut taken, mut fallbacks) = (Vec::new(), Vec::new());
        for interface in interfaces {
            let (resident, fallback) = Resident::join(interface, options.attach)?;
            let resident = Arc::new(resident);
            let stage = ScrubStage::take(&resident, &describe(&policy))?;
            fallbacks.extend(fallback.map(|reason| (interface.name.clone(), reason)));
            taken.push((stage, resident));
        }
        let kept = taken.iter().map(|(stage, _)| stage.kept()).collect::<Result<Vec<_>>>()?;
        let owned: Vec<_> = kept.iter().flatten().collect();
        let is_adopted = !owned.is_empty();
        let mut program = match owned.len() {
            0 => {
                let memory = Memory::of_tables(bytes, options.limit_keys)?;
                // The kernel has the tables.
                ensure_available("the maps of the scrubber", memory.total() - bytes)?;
                Program::new(options.limit_keys)?
            }
            count if count == interfaces.len() => Program::adopt(&owned)?,
            _ => {
                return Err(Error::Usage(
                    "a scrubber was kept on some of these interfaces only: name those alone, or remove it by \
                     `sluice detach`"
                        .into(),
                ));
            }
        };
        program.set_return_path(options.return_path.clone());
        let is_skb = matches!(options.attach, ModeRequest::Only(AttachMode::Skb))
            || fallbacks.len() == interfaces.len();
        let returns_by = options.return_path.as_ref().map(|path| {
            let interface = path.interface.clone();
            Ok::<_, Error>((join_return(&interface, options.attach, is_skb)?, interface))
        });
        let returns_by = returns_by.transpose()?;
        // One that was kept acts as before until this process owns all its stages.
        let mut last = Vec::new();
        if !is_adopted {
            last = begin(&mut program, &policy, &tables, options, is_adopted)?;
        }
        let samples = Samples::open(&program)?;
        let handover = begin_handover(&program, interfaces, &policy, options);
        let answer_cache = begin_answer_cache(&program, interfaces, options);
        let mut stages = Vec::new();
        for (stage, resident) in taken {
            let cookies = handover.as_ref().ok().map(Handover::cookies);
            let instance =
                program.load_stage(&resident.chain_maps(), cookies, answer_cache.is_ok())?;
            stage.install(instance.as_fd())?;
            stages.push(stage);
        }
        if is_adopted {
            last = begin(&mut program, &policy, &tables, options, is_adopted)?;
        }
        program.set_stages(interfaces.len());
        let earlier = earlier.filter(|_| is_adopted).map(|it| it.report(&last)).unwrap_or_default();
        let memory = Memory::of_tables(bytes, program.limit_keys())?;
        let mut scrubber = Self {
            stages,
            interfaces: interfaces.to_vec(),
            fallbacks,
            own_addresses,
            handover,
            answer_cache,
            returns_by,
            program,
            samples,
            policy,
            memory,
            learning_time: options.learning_time,
            earlier,
        };
        scrubber.release();
        Ok(scrubber)
    }

    /// Keeps the program when this value ends, on all interfaces or on none. Then it works without its process, as its
    /// [`Mode`] says.
    ///
    /// # Errors
    /// It cannot be pinned. Then it is not kept.
    pub fn keep(&mut self) -> Result<()> {
        let mut stages = self.stages.iter().zip(&self.interfaces);
        let by = self.returns_by.as_ref();
        let kept = by
            .map_or(Ok(()), |(resident, interface)| resident.pin_for_scrub(interface))
            .and_then(|()| stages.try_for_each(|(stage, interface)| stage.keep(interface)));
        match kept {
            Ok(()) => self.program.set_kept(true),
            Err(_) => self.release(),
        }
        kept
    }

    /// Makes the program end with this value, even if it was kept. If the process is killed, packets pass.
    pub fn release(&mut self) {
        // The interface's resident program may stay, and run the stage.
        self.program.set_kept(false);
        self.stages.iter().for_each(ScrubStage::release);
        if let Some((resident, _)) = &self.returns_by {
            resident.unpin_of_scrub();
        }
    }

    /// Returns the names of the present counters, and what was counted before, for the next owner of a program that is
    /// kept.
    pub fn counter_names(&self) -> CounterNames {
        CounterNames::of(&self.policy, &self.earlier)
    }

    /// Returns the number of sources and others that limits can tell apart. A program that was kept has its own.
    pub fn limit_keys(&self) -> u32 {
        self.program.limit_keys()
    }

    /// Returns a handle that changes the next hop of the return path, from any thread.
    pub fn next_hop_writer(&self) -> NextHopWriter {
        self.program.next_hop_writer()
    }

    /// Returns the interfaces that are not in native mode, and why.
    pub fn fallbacks(&self) -> &[(String, String)] {
        &self.fallbacks
    }

    /// Returns the memory that it needs.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Returns why the kernel does not complete the connections of challenged clients in all modes of the policy.
    pub fn handover_obstacle(&self) -> Option<String> {
        match &self.handover {
            Ok(handover) => handover.obstacle(),
            Err(reason) => Some(reason.clone()),
        }
    }

    /// Returns the SYN cookies of connections that are handed over. None if none can be.
    pub fn cookies(&self) -> Option<Cookies> {
        self.handover.as_ref().ok().map(Handover::cookies)
    }

    /// Returns the number of connections that the kernel has completed.
    pub fn handed_over(&self) -> u64 {
        self.handover.as_ref().map_or(0, Handover::connections)
    }

    /// Returns why no answers are kept, as a rule's `cache` needs.
    pub fn answer_cache_obstacle(&self) -> Option<&str> {
        self.answer_cache.as_ref().err().map(String::as_str)
    }

    /// Returns the present policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Replaces the policy, between two packets. Counts go on.
    ///
    /// # Errors
    /// The policy does not fit; too little memory. Then the earlier policy stays.
    pub fn apply(&mut self, policy: Policy) -> Result<()> {
        self.install(Candidate::build(policy)?)
    }

    /// Replaces the policy as [`apply`](Self::apply) does, by one whose tables exist.
    ///
    /// # Errors
    /// Too little memory. Then the earlier policy stays.
    pub fn install(&mut self, candidate: Candidate) -> Result<()> {
        if self.returns_by.is_some() {
            can_return(&candidate.policy, &self.own_addresses)?;
        }
        let knows_flows = candidate.policy.knows_flows();
        if !knows_flows || candidate.policy.knows_more_flows(&self.policy) {
            learn_flows(&self.program, &candidate.policy, self.learning_time);
        }
        let last = self.program.switch(&candidate.tables)?;
        self.earlier.add(Report::new(&self.policy, &last));
        self.policy = candidate.policy;
        self.update_handover();
        self.memory.tables = candidate.bytes;
        Ok(())
    }

    /// Returns the samples since the last call. Their counters are those of the present policy if this is also called
    /// before each change of the policy.
    pub fn take_samples(&mut self) -> NewSamples {
        self.samples.take()
    }

    /// Returns the frames of recent samples, with zeros for the bytes that were cut.
    pub fn recent_frames(&self) -> Vec<TimedFrame> {
        self.samples.recent()
    }

    /// Returns the function that names counters of the present policy.
    pub fn names(&self) -> impl Fn(u16) -> Option<NamedCause> {
        let names = Names::of(&self.policy);
        move |counter| names.of_counter(counter)
    }

    /// Returns how the program works.
    pub fn mode(&self) -> Mode {
        self.program.mode()
    }

    /// Sets how the program works.
    pub fn set_mode(&mut self, mode: Mode) {
        self.program.set_mode(mode);
        self.update_handover();
    }

    fn update_handover(&self) {
        if let Ok(handover) = &self.handover {
            handover.set_policy(handed_over(&self.policy, self.mode()));
        }
    }

    /// Returns the counts since the start.
    pub fn report(&self) -> Report {
        let mut report = Report::new(&self.policy, &self.program.counts());
        report.add(self.earlier.clone());
        report
    }

    /// Fails if the program is not attached to one of the interfaces any more.
    ///
    /// # Errors
    /// It was detached, or the interface was removed.
    pub fn check_attached(&self) -> Result<()> {
        self.returns_by.as_ref().map_or(Ok(()), |(resident, _)| resident.check_attached())?;
        self.stages.iter().try_for_each(ScrubStage::check_attached)
    }

    /// Returns true if the program is still attached to one of the interfaces, and to the one of the return path: without
    /// that one, what is returned is lost.
    pub fn is_attached(&self) -> bool {
        let returns = self.returns_by.as_ref();
        returns.is_none_or(|(resident, _)| resident.check_attached().is_ok())
            && self.stages.iter().any(|it| it.check_attached().is_ok())
    }
}

/// Makes a policy's tables.
///
/// # Errors
/// The policy does not fit.
pub fn build(policy: &Policy) -> Result<Tables> {
    Tables::build(policy, random_number()).map_err(|error| Error::Usage(error.to_string()))
}
