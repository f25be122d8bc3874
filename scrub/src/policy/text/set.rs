//! Reads sets and their files.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use sluicegate_base::regular_file;
use sluicegate_base::text_error::{Fault, Origin, Position};
use toml::de::DeValue;

use super::table::{Key, Value, choice, expect_table, expect_text, in_order, not, place, unknown};
use super::{PolicyError, PolicyReader, networks};
use crate::policy::{MAX_SETS, Set, SetAction};

const KEYS: &[&str] = &["action", "networks", "files"];

/// Maximum size of a file of a set.
const MAX_SET_FILE: u64 = 256 << 20;

/// A file of a set.
pub(super) struct SetFile {
    /// The place of its set.
    pub(super) set: usize,
    path: PathBuf,
    place: Position,
}

impl PolicyReader<'_> {
    /// Reads a set. Returns its files.
    pub(super) fn set(&mut self, name: &Key, value: &Value) -> Result<Vec<SetFile>, Fault> {
        let number = self.policy.sets.len();
        if number == MAX_SETS {
            let problem = format!("more than {MAX_SETS} sets: join some");
            return Err(Fault::new(&Position::Text(name.span()), "", problem));
        }
        let (action, networks) = (SetAction::None, Vec::new());
        let mut set = Set { name: name.get_ref().to_string(), action, networks };
        let mut files = Vec::new();
        let table = expect_table(value, "", "a table with networks or files")?;
        for (key, value) in in_order(table) {
            match key.get_ref().as_ref() {
                "action" => {
                    let choices = [("pass", SetAction::Pass), ("drop", SetAction::Drop)];
                    set.action = choice(value, "action", &choices)?;
                }
                "networks" => {
                    for value in list(value, "networks", "a list of networks")? {
                        set.networks.push(networks::read(value, "networks")?);
                    }
                }
                "files" => {
                    for value in list(value, "files", "a list of paths")? {
                        let path = expect_text(value, "files", "a path")?.into();
                        files.push(SetFile { set: number, path, place: place(value) });
                    }
                }
                _ => return Err(unknown(key, KEYS)),
            }
        }
        if !KEYS[1..].iter().any(|key| table.contains_key(*key)) {
            let problem = "it has neither networks nor files: give it one of them";
            return Err(Fault::new(&Position::Text(name.span()), "", problem));
        }
        self.policy.sets.push(set);
        Ok(files)
    }
}

/// Returns the values of a list, which may be empty, or the single text.
fn list<'a, 'i>(
    value: &'a Value<'i>,
    object: &str,
    right: &str,
) -> Result<Vec<&'a Value<'i>>, Fault> {
    match value.get_ref() {
        DeValue::Array(list) => Ok(list.iter().collect()),
        DeValue::String(_) => Ok(vec![value]),
        _ => Err(not(value, object, right)),
    }
}

impl SetFile {
    /// Adds the networks of the file to its set. `origin` is the policy's.
    pub(super) fn read(
        &self,
        set: &mut Set,
        origin: &Origin,
        base: &Path,
    ) -> Result<(), PolicyError> {
        let path = base.join(&self.path);
        let within = format!("set {}", set.name);
        let text = read_text(&path).map_err(|error| {
            let problem = format!("{} cannot be read: {error}", path.display());
            origin.locate(Fault::new(&self.place, "files", problem).within(&within))
        })?;
        file_lines(&path, &text, &within, &mut set.networks)
    }
}

/// Reads the networks of a set's file: one a line, comments from # or ;.
///
/// # Errors
/// The file cannot be read; the first line that is no network.
pub fn read_networks(path: &Path) -> Result<Vec<IpNet>, PolicyError> {
    let text = read_text(path).map_err(|error| {
        let origin = Origin { name: path.display().to_string(), text: "".into() };
        origin.locate(Fault::new(&Position::Nowhere, "", format!("it cannot be read: {error}")))
    })?;
    let mut networks = Vec::new();
    file_lines(path, &text, "", &mut networks)?;
    Ok(networks)
}

/// Adds the networks of a file's lines.
fn file_lines(
    path: &Path,
    text: &str,
    within: &str,
    networks: &mut Vec<IpNet>,
) -> Result<(), PolicyError> {
    lines(text, networks).map_err(|fault| {
        let origin = Origin { name: path.display().to_string(), text: text.into() };
        origin.locate(if within.is_empty() { fault } else { fault.within(within) })
    })
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let read = regular_file::open(path)?.take(MAX_SET_FILE + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_SET_FILE {
        let problem = format!("it has more than {MAX_SET_FILE} bytes: divide it");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    // Comments may be in any encoding.
    String::from_utf8(bytes)
        .or_else(|error| Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Adds the networks of lines.
fn lines(text: &str, networks: &mut Vec<IpNet>) -> Result<(), Fault> {
    let mut begin = 0;
    for line in text.split('\n') {
        let content = &line[..line.find(['#', ';']).unwrap_or(line.len())];
        let start = begin + content.len() - content.trim_start().len();
        let content = content.trim();
        if !content.is_empty() {
            let network = networks::network(content).map_err(|problem| {
                Fault::new(&Position::Text(start..start + content.len()), "", problem)
            })?;
            networks.push(network);
        }
        begin += line.len() + 1;
    }
    Ok(())
}
