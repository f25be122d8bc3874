//! Policies and files of sets.

use std::fmt::Write;
use std::fs;

use sluicegate_scrub::policy::{Policy, PolicyError};
use tempfile::TempDir;

const POLICY: &str = "[set.friends]\nnetworks = '192.0.2.1'\nfiles = ['friends.txt']\n";

/// Reads the policy with this list.
fn read(list: &[u8]) -> (Result<Policy, PolicyError>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    fs::write(&path, POLICY).unwrap();
    fs::write(folder.path().join("friends.txt"), list).unwrap();
    (Policy::read(&path), folder)
}

#[test]
fn lists_have_networks_and_comments() {
    let list =
        b"# friends\n\n192.0.2.0/24\n  2001:db8::/32 ; SBL1\r\n198.18.0.9# \xe9\n;\n203.0.113.0/24";
    let (policy, _folder) = read(list);
    let networks: Vec<_> =
        policy.unwrap().sets[0].networks.iter().map(|it| it.to_string()).collect();
    let expected =
        ["192.0.2.1/32", "192.0.2.0/24", "2001:db8::/32", "198.18.0.9/32", "203.0.113.0/24"];
    assert_eq!(networks, expected);
}

#[test]
fn an_error_in_a_list_names_its_file_and_position() {
    let (policy, folder) = read(b"192.0.2.0/24\n# x\n  192.0.2.1/24 # y\n");
    let list = folder.path().join("friends.txt");
    let expected = format!(
        "{}, line 3, column 3: set friends: '192.0.2.1/24' has bits behind its length: write 192.0.2.0/24 or \
         192.0.2.1\n 3 |   192.0.2.1/24 # y\n   |   ^^^^^^^^^^^^",
        list.display()
    );
    assert_eq!(policy.unwrap_err().to_string(), expected);
}

#[test]
fn an_error_in_a_list_is_short_and_does_not_control_a_terminal() {
    let (policy, _folder) = read(&[b"\x1b[2J".as_slice(), &[b'x'; 100_000]].concat());
    let message = policy.unwrap_err().to_string();
    assert!(message.len() < 300 && !message.contains(char::is_control), "{message}");
    assert!(message.contains("set friends: '?[2Jxxx"), "{message}");
}

#[test]
fn files_that_cannot_be_read_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    let message = Policy::read(&path).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{}: it cannot be read: ", path.display())), "{message}");
    fs::write(&path, POLICY).unwrap();
    let message = Policy::read(&path).unwrap_err().to_string();
    let begin = format!("{}, line 3, column 10: set friends: files: ", path.display());
    assert!(
        message.starts_with(&begin) && message.contains("friends.txt cannot be read: "),
        "{message}"
    );
    fs::write(&path, "#".repeat((16 << 20) + 1)).unwrap();
    let message = Policy::read(&path).unwrap_err().to_string();
    assert!(message.contains("it has more than 16777216 bytes: move networks"), "{message}");
}

#[test]
fn a_million_networks_are_read() {
    let mut list = String::new();
    for number in 0..1_000_000_u32 {
        let [_, a, b, c] = number.to_be_bytes();
        match number % 2 {
            0 => writeln!(list, "10.{a}.{b}.{c}/32").unwrap(),
            _ => writeln!(list, "2001:db8:{a:x}:{b:x}{c:02x}::/64 ; {number}").unwrap(),
        }
    }
    let (policy, _folder) = read(list.as_bytes());
    assert_eq!(policy.unwrap().sets[0].networks.len(), 1_000_001);
}
