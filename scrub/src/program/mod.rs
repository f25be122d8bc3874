//! The XDP program: loading, the present policy's tables, counters.
//!
//! ```text
//!              generation & 1
//!   params     [ 0 | 1 ]     one policy's parameters, and the filter of rules, each
//!   images     [ 0 | 1 ]     its other tables
//!   counters   [ 0 | 1 ]     one policy's counters each
//! ```
//!
//! A packet reads the generation once, so one policy decides on it. A new policy is written to the other side, and the
//! switch is one write. Then the kernel waits until no packet uses the old side (an update of a map of maps waits for an
//! RCU grace period: kernel/bpf/syscall.c, `maybe_wait_bpf_programs`), its counters are final, and its tables are freed.

mod answer_cache;
pub mod cost;
mod counts;
mod handover;
mod image_map;
mod kernel_cookie;
mod load;
mod rehearse;
mod return_path;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, PerfBuffer, PerfBufferBuilder};
use sluicegate::error::{Error, Result};
use sluicegate::link::Interface;
use sluicegate::xdp::live::SharedCounters;
use sluicegate::xdp::resident::{ChainMaps, KeptProgram};

use crate::counters::COUNTERS;
use crate::policy::Policy;
use crate::tables::Tables;
pub use answer_cache::AnswerCache;
pub use counts::Count;
pub use handover::{Cookies, Handover};
use image_map::Images;
pub use kernel_cookie::restore_settings;
use return_path::NEXT_HOP_WORDS;
pub use return_path::{Gre, MIN_MSS, NextHop, NextHopWriter, ReturnPath, fitting_mss};

/// Words of `struct scrub_control`.
const CONTROL_WORDS: usize = 13;
/// The map of `struct scrub_control`. Its number is the version of all maps: their layout, flags, and the places of
/// entries.
const CONTROL: &str = ".data.scrub6";
/// The word of `learn_until`.
const LEARN_UNTIL: usize = 10;
/// The word of `stages`.
const STAGES: usize = 11;
/// The word of `segments`.
const SEGMENTS: usize = 12;
/// Keys of a line of limits.
const KEYS_PER_LINE: u32 = 4;
/// Lines of flows for each line of limits.
const FLOW_LINES: u32 = 2;

/// How the program works, whatever the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Decides, counts and samples, but drops nothing.
    pub monitor: bool,
    /// Acts without a living owner, once it is [kept](Program::set_kept).
    pub resident: bool,
    /// Drops everything without a living owner, once it is [kept](Program::set_kept).
    pub fail_closed: bool,
    /// Samples one of this number of dropped packets; 0 for none.
    pub sample_dropped: u32,
    /// As `sample_dropped`, of passed packets.
    pub sample_passed: u32,
}

/// A policy's tables in the kernel. Several programs may use them.
#[derive(Debug)]
pub struct LoadedTables {
    /// The segments of the image.
    segments: Vec<MapHandle>,
    /// Copied at each switch.
    params: Vec<u8>,
}

impl LoadedTables {
    /// Copies tables into the kernel.
    ///
    /// # Errors
    /// The kernel refuses, for lack of memory for instance.
    pub fn load(tables: &Tables) -> Result<Self> {
        let segments = image_map::create(&tables.image);
        let segments = segments.map_err(|error| load::failed("copy a policy to", error))?;
        Ok(Self { segments, params: tables.params.clone() })
    }
}

/// The program's maps, which all its instances share.
pub struct Program {
    object: Object,
    control: SharedCounters,
    counters: SharedCounters,
    /// Where the program for BPF_PROG_RUN reports the cause.
    cause: SharedCounters,
    return_path: Option<ReturnPath>,
    next_hop: NextHopWriter,
    cpus: usize,
    mode: Mode,
    /// The mode may outlive its owner.
    is_kept: bool,
    generation: u32,
    limit_lines: u32,
    /// Secrets of the keys of limits, sources, flows, SYNs and meters.
    secrets: [u64; 3],
    cookie_key: [u64; 2],
    /// New tables begin with empty limits, sources and flows.
    forgets: bool,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Program {
    /// Makes the maps; `limit_keys` is the number of sources and others that limits can tell apart.
    ///
    /// # Errors
    /// A missing privilege, or too little memory.
    pub fn new(limit_keys: u32) -> Result<Self> {
        Self::with(None, limit_keys, None, false)
    }

    fn with(
        program: Option<&str>,
        limit_keys: u32,
        path: Option<ReturnPath>,
        caches_answers: bool,
    ) -> Result<Self> {
        let (limit_lines, cpus) = (limit_lines(limit_keys), possible_cpus()?);
        let lines = (limit_lines, limit_lines * FLOW_LINES);
        let object = load::maps(program, cpus as u32, lines, caches_answers, path.as_ref())?;
        let mut program = Self {
            mode: Mode::default(),
            generation: 0,
            limit_lines,
            secrets: std::array::from_fn(|_| random_number()),
            cookie_key: [random_number(), random_number()],
            forgets: program.is_some(),
            ..Self::over(object, cpus)?
        };
        program.write_control();
        program.set_return_path(path);
        Ok(program)
    }

    /// Returns the bytes of the maps that [`new`](Self::new) makes.
    ///
    /// # Errors
    /// libbpf cannot read the program.
    pub fn map_bytes(limit_keys: u32) -> Result<u64> {
        let limit_lines = limit_lines(limit_keys);
        load::map_bytes(possible_cpus()? as u32, limit_lines, limit_lines * FLOW_LINES)
    }

    /// Takes over the maps of a program that an earlier owner kept at some stages, with its tables, limits and counters.
    ///
    /// # Errors
    /// It is another version of the program, or none of this crate; it is kept at other stages, too; or not all of them
    /// have the same program.
    pub fn adopt(kept: &[&KeptProgram]) -> Result<Self> {
        let cpus = possible_cpus()?;
        let Some(object) = load::kept_maps(kept)? else {
            return Err(Error::Usage(
                "these interfaces have the scrubber of another version of sluice, or a scrubber each: name one interface, \
                 or remove the scrubber of each by `sluice detach IFACE`"
                    .into(),
            ));
        };
        let program = Self::over(object, cpus)?;
        if program.control.get(STAGES) != kept.len() as u64 {
            return Err(Error::Usage(
                "the scrubber that was kept there has other interfaces, too: name all of them, or remove it by \
                 `sluice detach`"
                    .into(),
            ));
        }
        let word = |at: usize| halves_of(program.control.get(at));
        let [(generation, monitor), (resident, fail_closed)] = [word(1), word(2)];
        let ((sample_dropped, sample_passed), (limit_mask, _)) = (word(3), word(4));
        let [monitor, resident, fail_closed] = [monitor, resident, fail_closed].map(|it| it != 0);
        Ok(Self {
            mode: Mode { monitor, resident, fail_closed, sample_dropped, sample_passed },
            generation,
            limit_lines: limit_mask + 1,
            secrets: [5, 6, 7].map(|at| program.control.get(at)),
            cookie_key: [8, 9].map(|at| program.control.get(at)),
            ..program
        })
    }

    /// Maps the memory of loaded maps.
    fn over(object: Object, cpus: usize) -> Result<Self> {
        let shared = |map: &str, words| {
            let fd = load::map(&object, map).as_fd().try_clone_to_owned();
            let shared = fd.and_then(|fd| SharedCounters::over(fd, words));
            shared.map_err(|error| Error::system("map", format!("the scrubber's {map}"), error))
        };
        Ok(Self {
            control: shared(CONTROL, CONTROL_WORDS)?,
            counters: shared("scrub_counters", cpus * 2 * usize::from(COUNTERS) * 2)?,
            cause: shared(".data.rehearse", 1)?,
            return_path: None,
            next_hop: NextHopWriter(Arc::new(shared(".data.return", NEXT_HOP_WORDS)?)),
            object,
            cpus,
            mode: Mode::default(),
            is_kept: false,
            generation: 0,
            limit_lines: 0,
            secrets: [0; 3],
            cookie_key: [0; 2],
            forgets: false,
        })
    }

    /// Loads an instance for the stage of an interface's resident program. It hands connections over by the cookies of
    /// [`start_handover`](Self::start_handover), if any, and answers from the cache if
    /// [`start_answer_cache`](Self::start_answer_cache) fills it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn load_stage(
        &self,
        chain: &ChainMaps<'_>,
        cookies: Option<Cookies>,
        caches_answers: bool,
    ) -> Result<OwnedFd> {
        load::stage(&self.object, chain, cookies, caches_answers, self.return_path.as_ref())
    }

    /// Keeps what sockets of this thread's network namespace answer to A2S queries, on interfaces there.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.6, or refuses.
    pub fn start_answer_cache(&self, interfaces: &[Interface]) -> Result<AnswerCache> {
        AnswerCache::start(&self.object, interfaces)
    }

    /// Completes connections whose SYNs an instance answered by cookies, on interfaces of this thread's network namespace.
    /// Without `cookies`, they are the best that the kernel supports; without a policy, nothing is handed over yet.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.0, or refuses.
    pub fn start_handover(
        &self,
        interfaces: &[Interface],
        policy: Option<&Policy>,
        cookies: Option<Cookies>,
    ) -> Result<Handover> {
        Handover::start(&self.object, interfaces, policy, cookies)
    }

    /// Sets the return path of instances that are loaded after this.
    pub fn set_return_path(&mut self, path: Option<ReturnPath>) {
        if let Some(path) = &path {
            self.next_hop.set(&path.next_hop);
        }
        self.return_path = path;
    }

    /// Returns a handle that changes the next hop of the return path, from any thread.
    pub fn next_hop_writer(&self) -> NextHopWriter {
        self.next_hop.clone()
    }

    /// Writes the control value, except the time.
    fn write_control(&self) {
        let Mode { monitor, resident, fail_closed, sample_dropped, sample_passed } = self.mode;
        let [resident, fail_closed] = [resident, fail_closed].map(|it| it && self.is_kept);
        let pairs = [
            (self.generation, monitor.into()),
            (resident.into(), fail_closed.into()),
            (sample_dropped, sample_passed),
            (self.limit_lines - 1, self.limit_lines * FLOW_LINES - 1),
        ];
        let pairs = pairs.map(|(first, second)| word_of(first, second));
        let values = pairs.into_iter().chain(self.secrets).chain(self.cookie_key);
        for (word, value) in (1..LEARN_UNTIL).zip(values) {
            self.control.set(word, value);
        }
    }

    /// Sets the number of stages at which the program is installed, for [`adopt`](Self::adopt).
    pub fn set_stages(&self, stages: usize) {
        self.control.set(STAGES, stages as u64);
    }

    /// Sets how the program works, from the next packet on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.write_control();
    }

    /// Sets whether the program, without a living owner, acts or drops as its mode says. If not, it passes all.
    pub fn set_kept(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
        self.write_control();
    }

    /// Returns how the program works.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets the key of the cookies in answers to SYNs. Those of the earlier key become invalid.
    pub fn set_cookie_key(&mut self, key: [u64; 2]) {
        self.cookie_key = key;
        self.write_control();
    }

    /// Returns the number of sources and others that limits can tell apart.
    pub fn limit_keys(&self) -> u32 {
        self.limit_lines.saturating_mul(KEYS_PER_LINE)
    }

    /// Opens the buffers of samples: `pages` for each CPU. Reading calls `sample` for each one (`struct scrub_sample` and the
    /// frame's first bytes), and `lost` with the number of lost ones.
    ///
    /// # Errors
    /// Too little memory.
    pub fn open_samples(
        &self,
        pages: usize,
        mut sample: impl FnMut(&[u8]) + 'static,
        mut lost: impl FnMut(u64) + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let map = load::map(&self.object, "scrub_samples");
        let builder = PerfBufferBuilder::new(&map).pages(pages);
        let builder = builder.sample_cb(move |_, record| sample(record));
        let buffer = builder.lost_cb(move |_, count| lost(count)).build();
        buffer.map_err(|error| load::failed("open the samples of", error))
    }

    /// Sets the time until which packets of unknown flows pass, so that flows from before the start become known. In ns of
    /// CLOCK_MONOTONIC.
    pub fn learn_flows_until(&self, time_ns: u64) {
        self.control.set(LEARN_UNTIL, time_ns);
    }

    /// Returns the time that [`learn_flows_until`](Self::learn_flows_until) has set; 0 if flows were never to be known.
    pub(crate) fn learn_until(&self) -> u64 {
        self.control.get(LEARN_UNTIL)
    }

    /// Sets the time until which SYN cookies may come back; a running program that answers by cookies does so itself.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn expect_cookies_until(&self, time_ns: u64) -> Result<()> {
        let words = [time_ns, 0, 0].map(u64::to_ne_bytes);
        self.put(handover::SHARED, 0, words.as_flattened())
    }

    /// Sets the time that all stages read, in ns; 0 for the kernel's clock.
    pub fn set_time(&self, now_ns: u64) {
        self.control.set(0, now_ns);
    }

    /// Switches to new tables. When it returns, no packet uses the old ones. Returns the old ones' counters, which are
    /// final; those of the new tables begin at 0.
    ///
    /// # Errors
    /// The kernel refuses, for lack of memory for instance. Then the old tables stay in use.
    pub fn install(&mut self, tables: &Tables) -> Result<Vec<Count>> {
        self.switch(&LoadedTables::load(tables)?)
    }

    /// Switches as [`install`](Self::install) does, to tables that the kernel has already.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn switch(&mut self, tables: &LoadedTables) -> Result<Vec<Count>> {
        let failed = |error| load::failed("write the tables of", error);
        let side = (self.generation + 1) & 1;
        self.put("scrub_params", side, &tables.params)?;
        let images = Images::of(&load::map(&self.object, "scrub_images")).map_err(failed)?;
        let (old, count) = (self.control.get(SEGMENTS), tables.segments.len());
        let put = images.put(side, &tables.segments);
        put.inspect_err(|_| drop(images.remove(side, count))).map_err(failed)?;
        // If this process is killed before the end, the next switch removes what either side may have.
        self.control.set(SEGMENTS, old.max(count as u64));
        self.clear_counts(side);
        self.generation += 1;
        if self.forgets {
            self.secrets = std::array::from_fn(|_| random_number());
        }
        // Pairs with the program's read of the generation: then it finds the parameters and empty counters.
        fence(Ordering::Release);
        self.write_control();
        // Changes nothing, but waits for packets of the old side, which still read its tables. Then these are freed. If this
        // failed, they would stay until the next switch, and the new tables would hold all the same.
        if images.put(side, &tables.segments[..1]).is_ok() {
            let _ = images.remove(side ^ 1, old as usize);
            self.control.set(SEGMENTS, count as u64);
        }
        Ok(self.counts_of(side ^ 1))
    }

    /// Switches as [`switch`](Self::switch) does, and sets how the program works with the new tables.
    ///
    /// # Errors
    /// As [`install`](Self::install). Then the mode stays, too.
    pub fn switch_with(&mut self, mode: Mode, tables: &LoadedTables) -> Result<Vec<Count>> {
        let earlier = std::mem::replace(&mut self.mode, mode);
        self.switch(tables).inspect_err(|_| self.mode = earlier)
    }

    fn put(&self, map: &str, key: u32, value: &[u8]) -> Result<()> {
        let put = load::map(&self.object, map).update(&key.to_ne_bytes(), value, MapFlags::ANY);
        put.map_err(|error| load::failed("write a map of", error))
    }
}

/// Returns the number of keys for which a program has room if it is made for `limit_keys`.
pub fn limit_keys(limit_keys: u32) -> u32 {
    limit_lines(limit_keys).saturating_mul(KEYS_PER_LINE)
}

fn possible_cpus() -> Result<usize> {
    libbpf_rs::num_possible_cpus().map_err(|error| load::failed("count", error))
}

/// Returns the lines that hold this number of keys of limits.
fn limit_lines(limit_keys: u32) -> u32 {
    limit_keys.div_ceil(KEYS_PER_LINE).max(2).next_power_of_two()
}

/// Returns a number that nobody can guess.
pub(crate) fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the two values of 32 bits that are a word, in their order in memory.
fn halves_of(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// Returns the word of two values of 32 bits that follow each other in memory.
fn word_of(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}
