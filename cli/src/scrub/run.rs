//! `sluice scrub run`: a scrubber from its start to its report.

use std::io::{IsTerminal as _, stderr};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use sluicegate::control::Server;
use sluicegate::error::{Error, Result};
use sluicegate::link::{self, carries_default_route, netns};
use sluicegate::port::{OpenOptions, Port, PortName};
use sluicegate::units;
use sluicegate::xdp::Mode;
use sluicegate::xdp::resident::ModeRequest;
use sluicegate_scrub::policy::{MAX_SETS, Set};
use sluicegate_scrub::program::{self, Cookies};
use sluicegate_scrub::scrubber::{Candidate, EditedPolicy, LIMIT_KEYS, Options, SESSION, Scrubber};

use super::names_file::{self, NamesFile};
use super::report::{self, StatusLines};
use super::return_path::ReturnArgs;
use super::service::ScrubService;
use super::service_manager::notify;
use super::{SocketArgs, read_policy};
use crate::notice::{say, try_say};
use crate::signals::Signals;
use crate::units::{duration_in, interval};

/// Interval between two checks for requests.
const TICK: Duration = Duration::from_millis(20);

/// Options of `run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Interfaces whose received packets are scrubbed
    #[arg(value_name = "IFACE", required = true)]
    interfaces: Vec<String>,

    /// The policy, in TOML
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,

    /// Pass packets from each of two interfaces to the other one, instead of to this host
    #[arg(long)]
    bridge: bool,

    #[command(flatten)]
    return_path: ReturnArgs,

    /// Drop nothing; count and sample what would be dropped
    #[arg(long)]
    monitor: bool,

    /// Stay when the command ends, whatever ends it, until `sluice scrub stop` or `sluice detach`; the next run takes
    /// over
    #[arg(long, conflicts_with_all = ["bridge", "duration"])]
    resident: bool,

    /// If the command is killed, packets pass (open), or the program drops all of them until the next run or
    /// `sluice detach`
    #[arg(long, value_name = "open|closed", default_value = "open", conflicts_with = "resident")]
    fail: Fail,

    /// Network namespace of the interfaces: a name of `ip netns`, a path, or the PID of a process in it
    #[arg(long, value_name = "NETNS")]
    netns: Option<String>,

    /// native (driver) or skb (kernel) [default: native if the driver supports it]
    #[arg(long, value_name = "native|skb")]
    mode: Option<AttachMode>,

    /// Keys of limits, and verified sources; twice as many TCP flows are known
    #[arg(long, value_name = "N", default_value_t = LIMIT_KEYS, value_parser = limit_keys)]
    limit_keys: u32,

    /// Time after the start in which packets of unknown TCP flows pass, so that open connections become known
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = learning_time)]
    learn: Duration,

    /// Stop after this time, unless `sluice scrub confirm` comes first; needed on the interface of the default
    /// route. The SSH session that runs the command passes until then
    #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
    confirm: Option<Duration>,

    /// Stop after this time: 5s, 1m30s
    #[arg(long, value_name = "TIME", value_parser = end_time)]
    duration: Option<Duration>,

    /// Time between status lines [default: 1s on a terminal, 10s elsewhere]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,

    /// Print the result as one JSON object; with --interval, also one per interval
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    socket: SocketArgs,
}

/// The fate of packets if the command is killed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fail {
    Open,
    Closed,
}

/// The mode in which the program is attached.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AttachMode {
    Native,
    Skb,
}

impl RunArgs {
    /// Returns true if lines of JSON go to standard output.
    fn prints_lines(&self) -> bool {
        self.json && self.interval.is_some()
    }
}

/// Parses a number of keys of limits.
pub fn limit_keys(text: &str) -> Result<u32, String> {
    let keys = units::count(text).ok().filter(|n| (64..=1 << 26).contains(n));
    keys.map(|n| n as u32).ok_or_else(|| "use a number from 64 to 67108864".into())
}

/// Times after which something ends; longer ones would overflow the clock.
pub const TIMES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(365 * 86_400);

/// Parses a time after which something ends.
pub fn end_time(text: &str) -> Result<Duration, String> {
    duration_in(TIMES, text, "use a time from 1s to 365d")
}

/// Parses the time for learning.
fn learning_time(text: &str) -> Result<Duration, String> {
    duration_in(Duration::ZERO..=Duration::from_secs(3600), text, "use a time from 0s to 1h")
}

/// Parses a time as [`end_time`] does, in whole seconds, as requests have it.
pub fn whole_seconds(text: &str) -> Result<Duration, String> {
    match end_time(text)? {
        time if time.subsec_nanos() > 0 => Err("use whole seconds".into()),
        time => Ok(time),
    }
}

/// Returns the address of the client of the SSH session that runs the command (ssh(1), SSH_CONNECTION).
fn session() -> Option<IpAddr> {
    client_of(&std::env::var("SSH_CONNECTION").ok()?)
}

fn client_of(connection: &str) -> Option<IpAddr> {
    // A link-local address has a zone: fe80::1%eth0.
    connection.split([' ', '%']).next()?.parse().ok()
}

/// Lets the SSH session pass until it confirms. `guarded` is an interface that carries the default route.
fn set_session(edited: &mut EditedPolicy, guarded: Option<&String>) -> Result<()> {
    let Some(address) = session() else {
        if let Some(name) = guarded {
            say(format_args!(
                "{name} carries the default route, and SSH_CONNECTION is missing: the policy decides on an SSH \
                 session too; keep the variable with: sudo --preserve-env=SSH_CONNECTION"
            ));
        }
        return Ok(());
    };
    check_session_set(edited.sets())?;
    edited.set_session(Some(address));
    Ok(())
}

/// Fails if the set for the SSH session cannot be added to these.
pub fn check_session_set(sets: &[Set]) -> Result<()> {
    if sets.iter().any(|it| it.name == SESSION) {
        let problem = "the policy has a set 'session', the name of the set for the SSH session that --confirm adds";
        return Err(Error::Usage(format!("{problem}; give the policy's set another name")));
    }
    if sets.len() >= MAX_SETS {
        return Err(Error::Usage(format!(
            "the policy has {MAX_SETS} sets, and --confirm adds one for the SSH session; join two sets"
        )));
    }
    Ok(())
}

/// Returns the error of a policy without confirmation on an interface with the default route.
pub fn needs_confirmation(name: &str) -> String {
    format!(
        "{name} carries this host's default route, and a wrong policy may cut you off; add --confirm 60s and confirm with \
         `sluice scrub confirm`"
    )
}

/// Returns the interface by which a wrong policy may cut the user off.
fn guarded(args: &RunArgs) -> Result<Option<&String>> {
    // A monitor drops nothing, but returns.
    let is_harmless = args.monitor && !args.return_path.is_set();
    for name in args.interfaces.iter().filter(|_| !is_harmless) {
        if carries_default_route(args.netns.as_deref(), name)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Scrubs until a signal, the end of the time, or the interface's removal.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let mut edited = EditedPolicy::new(read_policy(&args.policy)?);
    let netns = args.netns.as_deref();
    let guarded = guarded(&args)?;
    match guarded {
        Some(name) if args.confirm.is_none() => {
            let problem = needs_confirmation(name);
            return Err(Error::Usage(format!("{problem}, or try it with --monitor")).into());
        }
        // The host may be reached by another interface, too.
        guarded if args.confirm.is_some() && !args.monitor => set_session(&mut edited, guarded)?,
        _ => {}
    }
    let interfaces = args
        .interfaces
        .iter()
        .map(|name| link::interface(netns, name))
        .collect::<Result<Vec<_>>>()?;
    let return_path = args.return_path.find(&args.interfaces, netns)?;
    let options = Options {
        return_path: return_path.as_ref().map(|(path, _)| path.clone()),
        mode: program::Mode {
            monitor: args.monitor,
            resident: args.resident,
            fail_closed: args.fail == Fail::Closed,
            ..program::Mode::default()
        },
        attach: match args.mode {
            None => ModeRequest::Best,
            Some(AttachMode::Native) => ModeRequest::Only(Mode::Native),
            Some(AttachMode::Skb) => ModeRequest::Only(Mode::Skb),
        },
        limit_keys: args.limit_keys,
        learning_time: args.learn,
        is_host: !args.bridge && return_path.is_none(),
        ..Options::default()
    };
    if args.bridge && interfaces.len() != 2 {
        return Err(Error::Usage("--bridge: name two interfaces".into()).into());
    }
    let mut server = Server::bind(&args.socket.path()?)?;
    let signals = Signals::catch()?;
    let lines = StatusLines::start(args.prints_lines())?;
    let candidate = Candidate::build(edited.policy())?;
    candidate.check(&[])?;
    let mut names = NamesFile::of(&args.socket, server.path());
    let kept = names_file::owner(netns, &interfaces[0]);
    let earlier = kept.and_then(|owner| names.read(owner));
    let start = || Scrubber::start(&interfaces, candidate, &options, earlier.as_ref());
    let scrubber = netns::run_in(netns, start)?;
    names.set_owner(names_file::owner(netns, &interfaces[0]));
    // From here on the policy decides: a blocked output must not hold up its deadline.
    for (interface, reason) in scrubber.fallbacks() {
        try_say(format_args!("{interface}: skb mode, a tenth as fast as native: {reason}"));
    }
    let limit_keys = scrubber.limit_keys();
    if limit_keys != program::limit_keys(args.limit_keys) {
        try_say(format_args!(
            "the scrubber that was kept has {limit_keys} limit keys; to change their number, run `sluice scrub stop` \
             first"
        ));
    }
    if options.is_host && !args.monitor && scrubber.policy().hands_over() {
        say_handover(&scrubber);
    }
    if let Some(reason) = scrubber
        .answer_cache_obstacle()
        .filter(|_| !args.monitor && scrubber.policy().caches_answers())
    {
        try_say(format_args!(
            "A2S queries go on to the server, as no answers are kept: {reason}; remove `cache` from the rules"
        ));
    }
    let watch = return_path
        .map(|(path, resolver)| resolver.watch(path.next_hop, scrubber.next_hop_writer()));
    let next_hop = watch.transpose()?;
    // After the scrubber: packets that it passes go on to the end of the chain, which redirects them.
    let bridge = args.bridge.then(|| bridge(&args)).transpose()?;
    let attach = if args.mode == Some(AttachMode::Skb) { "skb" } else { "native" };
    let (interfaces, policy) = (args.interfaces.clone(), args.policy.clone());
    let mut service = ScrubService::new(scrubber, edited, interfaces, attach, policy, names);
    service.confirmation().guard(guarded.cloned());
    match args.confirm {
        Some(time) => service.confirmation().require_within(time),
        None => service.keep()?,
    }
    report::say_ready(&service.state());
    notify("READY=1");
    let ended = serve(&args, &mut server, &signals, &mut service, &lines);
    notify("STOPPING=1");
    service.end();
    let result = report::run_json(&service.state());
    // The rest may wait for a reader of the output: the policy has ended before, and a signal ends the wait.
    drop((service, bridge, next_hop, signals));
    lines.finish();
    report::publish(&result, args.json)?;
    Ok(ended?)
}

/// Prints what clients lose by the kind of hand-over that this host has.
fn say_handover(scrubber: &Scrubber) {
    match (scrubber.handover_obstacle(), scrubber.cookies()) {
        (Some(reason), _) => try_say(format_args!(
            "challenged clients repeat their first SYN, a second later: no hand-over to the kernel: {reason}"
        )),
        (None, Some(Cookies::Kernel)) => try_say(format_args!(
            "connections of challenged clients have no window scale, SACK and timestamps; and while the scrubber runs, \
             net.ipv4.tcp_syncookies is 2, by which all clients without timestamps have no window scale and SACK: Linux \
             6.9 hands over without these"
        )),
        (None, _) => {}
    }
}

/// Redirects packets that pass, both ways, until the ports are dropped.
fn bridge(args: &RunArgs) -> Result<[Port; 2]> {
    let [a, b] =
        [&args.interfaces[0], &args.interfaces[1]].map(|name| format!("xdp:{name}").parse());
    let (a, b): (PortName, PortName) = (a?, b?);
    let options = OpenOptions { netns: args.netns.clone(), ..OpenOptions::default() };
    Ok([Port::redirect(&a, &b, &options)?, Port::redirect(&b, &a, &options)?])
}

fn serve(
    args: &RunArgs,
    server: &mut Server,
    signals: &Signals,
    service: &mut ScrubService,
    lines: &StatusLines,
) -> Result<()> {
    let start = Instant::now();
    let usual = if stderr().is_terminal() { 1 } else { 10 };
    let interval = args.interval.unwrap_or(Duration::from_secs(usual));
    let mut next_line = start + interval;
    loop {
        server.serve(service);
        service.tick()?;
        let now = Instant::now();
        if service.is_done() || args.duration.is_some_and(|duration| now >= start + duration) {
            return Ok(());
        }
        if now >= next_line {
            lines.print(&service.state());
            next_line = now + interval;
        }
        // Without lines on standard output, its reader gets only the result.
        let ends = match args.prints_lines() {
            true => signals.wait(now + TICK)?,
            false => signals.wait_for_signal(now + TICK)?,
        };
        if ends {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_a_session_is_read_without_its_zone() {
        for (connection, client) in [
            ("198.51.100.77 5022 198.18.0.2 22", Some("198.51.100.77")),
            ("fe80::1%eth0 5022 fe80::2%eth0 22", Some("fe80::1")),
            ("UNKNOWN 65535 UNKNOWN 65535", None),
        ] {
            assert_eq!(client_of(connection), client.map(|it| it.parse().expect("an address")));
        }
    }

    #[test]
    fn times_of_requests_have_whole_seconds() {
        assert_eq!(whole_seconds("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(whole_seconds("2000ms"), Ok(Duration::from_secs(2)));
        for (text, error) in [
            ("1500ms", "use whole seconds"),
            ("1.5s", "use whole seconds"),
            ("0s", "use a time from 1s to 365d"),
        ] {
            assert_eq!(whole_seconds(text), Err(error.into()), "{text}");
        }
    }
}
