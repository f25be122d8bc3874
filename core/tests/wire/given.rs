//! Interfaces of the machine's as the two ends of a wire.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::link::{Ethtool, netns};

use crate::child;

/// There is one wire: one test has it.
static TAKEN: Mutex<()> = Mutex::new(());

/// Two interfaces, each in a namespace of its own; they go back when this is dropped.
pub struct Given {
    ends: [End; 2],
    _turn: MutexGuard<'static, ()>,
}

struct End {
    host: &'static str,
    /// "left0".
    name: String,
    /// Its name in the host's namespace.
    outside: String,
    netns: String,
    /// The device behind it, and its driver.
    device: PathBuf,
    driver: PathBuf,
    /// Combined channels that it had, and those it can have.
    queues: u32,
    queues_max: u32,
}

impl Given {
    /// With one queue there is one order, of what is sent and of what comes.
    pub fn take(names: [&str; 2], one_queue: bool) -> Self {
        let turn = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = [("left", names[0], 1), ("right", names[1], 2)];
        let given = Self {
            ends: hosts.map(|(host, name, number)| End::take(host, name, number)),
            _turn: turn,
        };
        if one_queue {
            given.ends.iter().for_each(|end| end.set_queues(1));
        }
        given
    }

    pub fn netns(&self, host: &str) -> String {
        self.ends.iter().find(|end| end.host == host).expect("left or right").netns.clone()
    }

    /// Returns true if a native program adds receive queues: virtio_net adds one for each CPU, as far as
    /// its host allows (drivers/net/virtio_net.c, virtnet_xdp_set).
    pub fn adds_queues(&self) -> bool {
        let cpus = std::thread::available_parallelism().map_or(1, |it| it.get() as u32);
        let right = &self.ends[1];
        right.driver.ends_with("virtio_net") && right.queues_max > cpus
    }

    pub fn unbind_right0(&self) {
        let right = &self.ends[1];
        fs::write(right.driver.join("unbind"), right.bus_name()).unwrap();
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.ends.iter().for_each(End::give_back);
    }
}

impl End {
    fn take(host: &'static str, outside: &str, number: u8) -> Self {
        let device = Path::new("/sys/class/net").join(outside).join("device");
        let real = |path: &Path| fs::canonicalize(path).expect("an interface with a device");
        let channels = Ethtool::open(None).unwrap().channels(outside).ok().flatten();
        let end = Self {
            host,
            name: format!("{host}0"),
            outside: outside.to_owned(),
            netns: format!("wire-{}-{host}", std::process::id()),
            driver: real(&device.join("driver")),
            device: real(&device),
            queues: channels.as_ref().map_or(0, |it| it.combined),
            queues_max: channels.as_ref().map_or(0, |it| it.combined_max),
        };
        let Self { name, netns, .. } = &end;
        netns::create(netns).unwrap();
        // What IPv6 says of itself would come between the packets of the tests.
        let quiet = |setting| fs::write(format!("/proc/sys/net/ipv6/conf/{setting}"), "1");
        let _ = netns::run_in(Some(netns), || Ok(quiet("default/disable_ipv6")));
        ip(&format!("link set {outside} down"));
        ip(&format!("link set {outside} netns {netns} name {name}"));
        ip(&format!("-n {netns} link set lo up"));
        ip(&format!("-n {netns} address add 198.18.0.{number}/24 dev {name}"));
        // XDP sees what the card leaves of a tag, and a card takes the tags that it knows.
        end.ethtool("-K", "rxvlan off");
        // The usual queueing discipline gives each flow its turn: tagged frames would overtake.
        end.inside(&format!("tc qdisc replace dev {name} root pfifo"));
        ip(&format!("-n {netns} link set {name} mtu 1500 promisc on up"));
        end
    }

    /// Changes a setting, as far as the driver has it.
    fn ethtool(&self, option: &str, setting: &str) {
        self.inside(&format!("ethtool {option} {} {setting}", self.name));
    }

    /// Runs a command on this host, and says what it has to complain of.
    fn inside(&self, command: &str) {
        let words = ["netns", "exec", &self.netns].into_iter().chain(command.split(' '));
        let mut ip = Command::new("ip");
        ip.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let said = match ip.spawn() {
            Ok(child) => String::from_utf8_lossy(&child::end(child).stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        if !said.is_empty() {
            println!("{command}: {said}");
        }
    }

    fn set_queues(&self, queues: u32) {
        if self.queues > 1 {
            self.ethtool("-L", &format!("combined {queues}"));
        }
    }

    fn bus_name(&self) -> &str {
        self.device.file_name().unwrap().to_str().unwrap()
    }

    /// Where a test has failed, much of this may.
    fn give_back(&self) {
        let Self { name, outside, netns, .. } = self;
        if self.driver.join(self.bus_name()).exists() {
            self.set_queues(self.queues);
            ip(&format!("-n {netns} link set {name} promisc off mtu 1500 down"));
            ip(&format!("-n {netns} link set {name} netns {} name {outside}", std::process::id()));
        } else {
            self.bind();
        }
        let _ = netns::delete(netns);
    }

    /// Gives the device back to its driver, and the interface its name.
    fn bind(&self) {
        let _ = fs::write(self.driver.join("bind"), self.bus_name());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let mut there = fs::read_dir(self.device.join("net")).into_iter().flatten().flatten();
            if let Some(entry) = there.next() {
                let now = entry.file_name().into_string().unwrap();
                if now != self.outside {
                    ip(&format!("link set {now} name {}", self.outside));
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("{} does not come back", self.outside);
    }
}

fn ip(arguments: &str) {
    let child = Command::new("ip").args(arguments.split_whitespace()).spawn().unwrap();
    let status = child::end(child).status;
    if !status.success() {
        println!("ip {arguments}: {status}");
    }
}
