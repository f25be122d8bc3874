//! `sluice netmap list`: prints a server's programs, ports and memory.

use std::io::{self, Write};
use std::path::PathBuf;

use nix::errno::Errno;
use serde_json::{Value, json};
use sluicegate::error::Error;
use sluicegate_netmap::shared;

use crate::notice::write_printable;
use crate::units::{show_bytes, show_count};

/// Options of `list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Socket of the server [default: /run/sluice/netmap.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints a server's regions, ports and programs.
pub fn list(args: &ListArgs) -> anyhow::Result<()> {
    let path = args.socket.clone().unwrap_or_else(shared::default_path);
    let failed = |errno: Errno, remedy| {
        Error::path("query the server at", &path, errno.into()).remedy(remedy)
    };
    let text = match shared::list(&path) {
        Ok(Some(text)) => text,
        Ok(None) => {
            return Err(failed(
                Errno::ENOENT,
                "start one by sluice netmap serve; without it, programs share nothing",
            )
            .into());
        }
        Err(Errno::EPROTO) => {
            return Err(
                failed(Errno::EPROTO, "it runs another version of sluice: start it again").into()
            );
        }
        Err(Errno::EACCES) => {
            return Err(failed(Errno::EACCES, "run as its user, or in its --group").into());
        }
        Err(Errno::EMFILE) => {
            return Err(
                failed(Errno::EMFILE, "it has its limit of files: end some programs").into()
            );
        }
        Err(errno) => return Err(failed(errno, "start it again").into()),
    };
    let mut list: Value = serde_json::from_str(&text)?;
    let mut out = io::stdout().lock();
    if args.json {
        list["command"] = json!("netmap list");
        list["socket"] = json!(path.to_string_lossy());
        writeln!(out, "{list}")?;
    } else {
        write_printable(&mut out, |text| print(text, &list))?;
    }
    Ok(())
}

fn print(out: &mut impl Write, list: &Value) -> io::Result<()> {
    let files = rows(list, "files");
    if files.is_empty() {
        writeln!(out, "no program has a port")?;
    } else {
        writeln!(out, "{:>7}  {:<15}  port", "process", "program")?;
    }
    for file in files {
        let program = file["program"].as_str().unwrap_or("?");
        writeln!(out, "{:>7}  {program:<15}  {}", count(file, "pid"), name(&file["port"]))?;
    }
    if rows(list, "ports").is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<20}  {:<6}  {:>6}  {:>6}  {:>6}  {:>6}  files",
        "port", "ring", "slots", "head", "cur", "tail"
    )?;
    for port in rows(list, "ports") {
        for ring in rows(port, "rings") {
            let number = format!("{} {}", name(&ring["direction"]), ring["number"]);
            let [slots, head, cur, tail] =
                ["slots", "head", "cur", "tail"].map(|key| show_count(count(ring, key)));
            let exclusive = if ring["exclusive"] == true { ", exclusive" } else { "" };
            writeln!(
                out,
                "{:<20}  {number:<6}  {slots:>6}  {head:>6}  {cur:>6}  {tail:>6}  {}{exclusive}",
                name(&port["name"]),
                ring["files"]
            )?;
        }
    }
    writeln!(out, "\n{:>6}  {:>10}  {:>8}  free", "region", "memory", "buffers")?;
    for region in rows(list, "regions") {
        let [buffers, free] = ["buffers", "free_buffers"].map(|key| show_count(count(region, key)));
        let memory = show_bytes(count(region, "bytes"));
        writeln!(out, "{:>6}  {memory:>10}  {buffers:>8}  {free}", count(region, "id"))?;
    }
    Ok(())
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}
