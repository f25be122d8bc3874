//! A host for examples: it has its own `/run`, network and files, the interfaces that examples name, and
//! packets on them.
//!
//! ```text
//!   far: far0 …  ── packets of all kinds ──> eth0 …: the host, where commands run
//! ```

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use sluicegate::link::{self, Address, Ethtool, Mac, Netlink, VethEnd};

use super::files;
use crate::support::eventually;

/// The host, until its standard input ends: its mounts and devices vanish with it.
const HOST: &str = "set -e\n\
    mount -t tmpfs tmpfs /run\n\
    mount -t sysfs sysfs /sys\n\
    mount -t bpf bpf /sys/fs/bpf\n\
    ip link set lo up\n\
    ip netns add far\n\
    echo ready\n\
    cat\n";
/// The interface that has addresses and routes, as one of a lab's hosts.
const ADDRESSED: &str = "eth1";
/// Packets that have come from the feeders before a command is told to end.
const ENOUGH: u64 = 50;
/// Packets a second of each feeder.
const RATE: &str = "500pps";

/// A host and its processes.
pub struct World<'a> {
    host: Child,
    folder: &'a Path,
    /// Namespaces and interfaces that packets come in by, and leave by.
    wires: Vec<(String, String)>,
    feeders: Vec<Child>,
    background: Vec<(String, Child)>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Result {
    pub status: Option<ExitStatus>,
    pub text: String,
}

impl<'a> World<'a> {
    /// A host with these interfaces, on which packets come in.
    pub fn new(interfaces: &[String], folder: &'a Path) -> Self {
        let mut host = Command::new("unshare");
        host.args(["--mount", "--net", "sh", "-c", HOST]).stdin(Stdio::piped());
        let mut host = host.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "the host begins");
        let mut world =
            Self { host, folder, wires: Vec::new(), feeders: Vec::new(), background: Vec::new() };
        for (number, name) in interfaces.iter().enumerate() {
            world.wire(number, name);
        }
        world
    }

    /// The path of one of the host's namespaces, as it is seen from here.
    fn netns(&self, name: &str) -> String {
        format!("/proc/{}/root/run/netns/{name}", self.host.id())
    }

    fn own_netns(&self) -> String {
        format!("/proc/{}/ns/net", self.host.id())
    }

    /// Joins an interface to the far side.
    fn wire(&mut self, number: usize, name: &str) {
        let (here, far, there) = (self.own_netns(), self.netns("far"), format!("far{number}"));
        let ends = [(&here, name), (&far, there.as_str())];
        let mut netlink = Netlink::open(Some(&here)).unwrap();
        let mac = |side| Some(Mac([2, 0, 198, 18, side, number as u8]));
        let near_end = VethEnd { name, netns: None, mac: mac(1) };
        let far_end = VethEnd { name: &there, netns: Some(&far), mac: mac(2) };
        netlink.add_veth(&near_end, &far_end, 1).unwrap();
        for (netns, interface) in ends {
            let mut ethtool = Ethtool::open(Some(netns)).unwrap();
            ethtool.set_gro(interface, true).unwrap();
            ethtool.set_transmit_checksums(interface, false).unwrap();
        }
        for (netns, interface) in ends {
            Netlink::open(Some(netns)).unwrap().set_up(interface, true).unwrap();
        }
        if name == ADDRESSED {
            for (own, gateway, to) in [
                (("198.18.0.1", 24), "198.18.0.2", ("198.18.0.0", 15)),
                (("2001:db8:18::1", 64), "2001:db8:18::2", ("2001:db8::", 32)),
            ] {
                let address =
                    |(ip, prefix): (&str, u8)| Address { ip: ip.parse().unwrap(), prefix };
                let gateway = gateway.parse().unwrap();
                netlink.add_address(name, address(own)).unwrap();
                netlink.add_route(name, address(to), gateway).unwrap();
                netlink.add_neighbour(name, gateway, mac(2).unwrap()).unwrap();
            }
        }
        self.wires.push((here, name.to_owned()));
        self.feed(&format!("--netns far {there}"));
    }

    /// Counts the packets of the lab that the host has, too.
    pub fn watch_lab(&mut self) {
        self.wires.push((self.netns("lab-left"), "left0".into()));
        self.wires.push((self.netns("lab-right"), "right0".into()));
    }

    /// Makes packets come to the lab's right host.
    pub fn feed_lab(&mut self) {
        self.watch_lab();
        self.feed("--netns lab-left left0");
    }

    fn feed(&mut self, from: &str) {
        let spec = self.folder.join(files::MIX);
        let options =
            format!("--method sendmmsg --rate {RATE} --duration 2m --spec {}", spec.display());
        let feeder = self.shell(&format!("exec sluice generate {from} {options}")).spawn();
        self.feeders.push(feeder.unwrap());
    }

    /// Runs a line beside those that follow, which are typed once it has begun.
    pub fn start(&mut self, line: &str) {
        let mut child = self.shell(line).spawn().unwrap();
        if is_ours(line) {
            eventually(line, || {
                ours(child.id()).is_some_and(catches_interrupts)
                    || child.try_wait().unwrap().is_some()
            });
        }
        self.background.push((line.to_owned(), child));
    }

    /// Ends the background commands. Returns the lines with our command, and how they ended.
    pub fn end_background(&mut self) -> Vec<(String, Option<ExitStatus>)> {
        let ended = self.background.drain(..).filter_map(|(line, mut child)| {
            let is_other = !is_ours(&line);
            let mut status = None;
            let mut interrupted = false;
            eventually(&line, || {
                if !interrupted && is_other {
                    // It ignores interrupts if the test does.
                    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
                    interrupted = true;
                } else if !interrupted && ours(child.id()).is_some_and(catches_interrupts) {
                    interrupt(child.id());
                    interrupted = true;
                }
                status = child.try_wait().unwrap();
                status.is_some()
            });
            (!is_other).then_some((line, status))
        });
        ended.collect()
    }

    /// Waits until a background command has made this file.
    pub fn has(&self, file: &str) {
        let path = format!("/proc/{}/root{file}", self.host.id());
        eventually(file, || Path::new(&path).exists());
    }

    /// A shell that runs a line on the host, and tells the status of the commands that fail in it.
    fn shell(&self, line: &str) -> Command {
        let folder = self.folder.display();
        let line = format!("set -o pipefail; cd {folder}; {line}");
        let mut command = Command::new("nsenter");
        let host = self.host.id().to_string();
        command.args(["--target", &host, "--mount", "--net", "bash", "-c", &line]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.join("bin").display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command
    }

    /// Runs a line to its end; interrupts it after enough packets.
    pub fn run(&self, line: &str) -> Result {
        let output = self.folder.join("output");
        let file = std::fs::File::create(&output).unwrap();
        let mut command = self.shell(line);
        let sent_before = self.packets().1;
        let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let shell = child.id();
        let prints = prints_at_once(line);
        let mut begun = None;
        let mut status = None;
        let mut interrupted = false;
        eventually(line, || {
            status = child.try_wait().unwrap();
            if status.is_some() || interrupted {
                return status.is_some();
            }
            let mut enough = || {
                if prints {
                    return std::fs::metadata(&output).unwrap().len() > 0;
                }
                let (received, sent) = self.packets();
                let since = *begun.get_or_insert(received);
                received >= since + ENOUGH && (!sends(line) || sent > sent_before)
            };
            if ours(shell).is_some_and(catches_interrupts) && enough() {
                interrupt(shell);
                interrupted = true;
            }
            false
        });
        let text = String::from_utf8_lossy(&std::fs::read(&output).unwrap()).into_owned();
        Result { status, text }
    }

    /// Packets that have come in and left by the wires.
    fn packets(&self) -> (u64, u64) {
        let stats = self.wires.iter().filter_map(|(netns, name)| {
            link::interface(Some(netns), name)
                .ok()
                .map(|it| (it.stats.rx_packets, it.stats.tx_packets))
        });
        stats.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        let background = self.background.drain(..).map(|(_, child)| child);
        for mut child in background.chain(self.feeders.drain(..)) {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
        drop(self.host.stdin.take());
        let _ = self.host.wait();
    }
}

/// Interrupts our command in a line; the reader of a pipe still gets what is in it.
fn interrupt(line: u32) {
    let process = Pid::from_raw(ours(line).unwrap_or(line) as i32);
    // It may have ended meanwhile.
    let _ = kill(process, Signal::SIGINT);
}

/// Returns true if a command prints something at once; others need packets.
fn prints_at_once(line: &str) -> bool {
    ["top", "bench", "netmap serve"].iter().any(|it| line.starts_with(&format!("sluice {it}")))
}

/// Returns true if the process stays `sluice`: `lab exec` becomes another command.
fn is_ours(line: &str) -> bool {
    !line.starts_with("sluice lab exec")
}

fn sends(line: &str) -> bool {
    line.starts_with("sluice generate") || line.starts_with("sluice replay")
}

/// Our command: a process, or one below it.
fn ours(process: u32) -> Option<u32> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}"));
    if read("comm").is_ok_and(|name| name == "sluice\n") {
        return Some(process);
    }
    let children = read(&format!("task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).find_map(ours)
}

/// Returns true once SIGINT no longer kills a process: it has a handler, or reads signals from a
/// descriptor.
fn catches_interrupts(process: u32) -> bool {
    let of = |file: &str| format!("/proc/{process}/{file}");
    let status = std::fs::read_to_string(of("status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
    let caught = u64::from_str_radix(caught.unwrap_or("0"), 16).unwrap_or(0);
    let files = std::fs::read_dir(of("fd")).into_iter().flatten().flatten();
    let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    caught >> (Signal::SIGINT as u32 - 1) & 1 == 1
        || files.any(|file| file.as_os_str() == "anon_inode:[signalfd]")
}
