//! The files that examples read, in the folder in which they run.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::OnceLock;

use super::text::root;
use crate::support::run;

/// Two specifications: an example's, and the one for incoming packets.
pub const MIX: &str = "mix.toml";

/// UDP to ports 9 and 53, TCP, a ping, and stamped packets. No host has the destination address, so none
/// answers.
const PACKETS: &str = "\
    [[stream]]\nlayers = [{ ether = { dst = '02:00:00:00:00:99' } }, 'ipv4', { udp = { dport = '9,53' } }, 'stamp']\n\
    [[stream]]\nlayers = [{ ether = { dst = '02:00:00:00:00:99' } }, 'ipv4', { tcp = { dport = '22,80', flags = 'S' } }]\n\
    [[stream]]\nlayers = [{ ether = { dst = '02:00:00:00:00:99' } }, 'ipv4', 'icmp']\n";

/// A policy of the scrubber.
const POLICY: &str = "\
    [protect.web]\nnetworks = ['198.18.0.2', '198.51.100.0/24']\nprofile = 'web'\n\
    [profile.web]\namplification = { memcached = 'drop' }\n\
    [set.attackers]\naction = 'drop'\nnetworks = ['203.0.113.0/24']\n\
    [set.friends]\naction = 'pass'\nnetworks = []\n\
    [[rule]]\nname = 'no-telnet'\nmatch = 'tcp dst port 23'\naction = 'continue'\n";

/// Makes the files in a folder.
pub fn prepare(folder: &Path) {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_sluice"), bin.join("sluice")).unwrap();
    symlink(root().join("docs"), folder.join("docs")).unwrap();
    std::fs::write(folder.join(MIX), PACKETS).unwrap();
    std::fs::write(folder.join("policy.toml"), POLICY).unwrap();
    std::fs::write(folder.join("networks.txt"), "203.0.113.0/24\n2001:db8::/32 # and more\n")
        .unwrap();
    for (name, bytes) in captures() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    for result in ["bench.json", "before.json"] {
        std::fs::copy(root().join("docs/bench.json"), folder.join(result)).unwrap();
    }
}

/// Capture files, by name; made once.
fn captures() -> &'static [(&'static str, Vec<u8>)] {
    static MADE: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let pcap = path("trace.pcap");
        std::fs::write(path(MIX), PACKETS).unwrap();
        let what = ["--spec", &path(MIX), "--rate", "10kpps", "--count", "1000", "--json"];
        run(&[&["generate", &format!("pcap:{pcap}")], &what[..]].concat()).good();
        let names = ["trace.pcap", "trace.pcapng", "big.pcapng", "trace.pcap.zst", "attack.pcap"];
        for name in &names[1..4] {
            run(&["capture", &format!("pcap:{pcap}"), "-w", &path(name), "--json"]).good();
        }
        let attack = format!("pcap:{}", path("attack.pcap"));
        let answers = ["--src", "203.0.113.0/24", "--sport", "11211", "--size", "1400"];
        run(&[&["generate", &attack, "--count", "1000", "--json"], &answers[..]].concat()).good();
        names.map(|name| (name, std::fs::read(path(name)).unwrap())).into()
    })
}
