//! Requests to a running scrubber, each a line of JSON (docs/commands/scrub.md).

use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluicegate::control::{Client, MAX_LINE_BYTES};
use sluicegate::error::Error;

use super::rules::RulesAction;
use super::run::whole_seconds;
use super::sets::SetsAction;
use super::subscribers::SampleChoice;
use super::{ClientArgs, SocketArgs, metrics, report};
use crate::metrics::MetricsFormat;
use crate::notice::{failed_answer, write_printable};

/// Time between two questions whether a change is made.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A request to a running scrubber, from the command line or from the socket.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, Subcommand)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Show what a running scrubber has passed and dropped, and why
    Status {
        /// Print the counters as metrics, in the format of Prometheus or OpenMetrics
        #[arg(long, value_name = "FORMAT", num_args = 0..=1, require_equals = true, value_enum,
            default_missing_value = "prometheus", conflicts_with = "json")]
        #[serde(skip)]
        metrics: Option<MetricsFormat>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Replace the policy of a running scrubber, between two packets; counts go on
    Apply {
        /// The policy, in TOML
        #[arg(value_name = "FILE")]
        policy: PathBuf,
        /// Return to the present policy after this time, unless `sluice scrub confirm` comes first
        #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
        #[serde(rename = "confirm_s", default, with = "seconds")]
        confirm: Option<Duration>,
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Change or list the entries of a running scrubber's sets, at once
    #[command(subcommand)]
    Sets(SetsAction),
    /// Change or list the rules of a running scrubber, at once
    #[command(subcommand)]
    Rules(RulesAction),
    /// Keep what was applied or started with --confirm
    Confirm {
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Stop a running scrubber
    Stop {
        #[command(flatten)]
        #[serde(skip)]
        client: ClientArgs,
    },
    /// Returns the result of a change, or its number as long as it is being made.
    #[command(skip)]
    Change { number: u64 },
    /// Returns the samples since the client's last request; the first one starts them.
    #[command(skip)]
    Samples(SampleChoice),
}

/// Times as whole seconds, within the limits of the command line.
pub mod seconds {
    use std::time::Duration;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::scrub::run::TIMES;

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(|it| it.as_secs()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let time = Option::<u64>::deserialize(from)?.map(Duration::from_secs);
        match time.is_none_or(|it| TIMES.contains(&it)) {
            true => Ok(time),
            false => Err(D::Error::custom("use a time from 1 to 31536000 seconds")),
        }
    }
}

impl Request {
    /// Makes paths absolute, and puts rules into TOML.
    fn complete(self) -> anyhow::Result<Self> {
        Ok(match self {
            Self::Apply { policy, confirm, client } => {
                Self::Apply { policy: absolute(&policy)?, confirm, client }
            }
            Self::Sets(action) => Self::Sets(action.absolute()?),
            Self::Rules(action) => Self::Rules(action.in_toml()),
            other => other,
        })
    }

    /// Returns the scrubber and the form of its answer. None for requests that only programs send.
    fn client(&self) -> Option<&ClientArgs> {
        match self {
            Self::Status { client, .. }
            | Self::Apply { client, .. }
            | Self::Confirm { client }
            | Self::Stop { client } => Some(client),
            Self::Sets(action) => Some(action.client()),
            Self::Rules(action) => Some(action.client()),
            Self::Change { .. } | Self::Samples(_) => None,
        }
    }

    /// Prints the answer.
    fn print(&self, answer: &Value, out: &mut Vec<u8>) -> std::io::Result<()> {
        let text = |key: &str| answer[key].as_str().unwrap_or_default();
        match self {
            Self::Status { .. } => report::print(answer, out),
            Self::Apply { confirm, .. } => {
                let file = text("applied");
                match confirm {
                    Some(_) => writeln!(out, "{file} applied; keep it with: sluice scrub confirm"),
                    None => writeln!(out, "{file} applied"),
                }
            }
            Self::Sets(action) => action.print(answer, out),
            Self::Rules(action) => action.print(answer, out),
            Self::Confirm { .. } => writeln!(out, "{} confirmed", text("confirmed")),
            Self::Stop { .. } | Self::Change { .. } | Self::Samples(_) => Ok(()),
        }
    }
}

/// Sends a request to a running scrubber, and shows the answer.
pub fn ask(request: Request) -> anyhow::Result<()> {
    let request = request.complete()?;
    let Some(ClientArgs { socket, json }) = request.client() else { return Ok(()) };
    let answer = send(socket, &request)?;
    let out = &mut stdout().lock();
    if let Request::Status { metrics: Some(format), .. } = request {
        write!(out, "{}", metrics::text(&answer, format))?;
        return Ok(());
    }
    if *json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    for removed in answer["removed"].as_array().into_iter().flatten() {
        crate::notice::say(format_args!("removed: {}", removed.as_str().unwrap_or_default()));
    }
    write_printable(out, |text| request.print(&answer, text))?;
    Ok(())
}

/// Returns an absolute path, because the scrubber has another working directory. Fails if it cannot be sent.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if path.to_str().is_none() {
        let problem = "the path is not UTF-8; give the file another name";
        return Err(Error::Usage(format!("{}: {problem}", path.display())).into());
    }
    Ok(path)
}

/// Sends a request, and waits until the change that it makes is complete. An error of the scrubber becomes this
/// command's.
fn send(socket: &SocketArgs, request: &Request) -> anyhow::Result<Value> {
    let mut client = Client::connect(&socket.path()?)?;
    let mut answer = exchange(&mut client, request)?;
    while let Some(number) = answer["change"].as_u64() {
        std::thread::sleep(POLL_INTERVAL);
        answer = exchange(&mut client, &Request::Change { number })?;
    }
    Ok(answer)
}

/// Sends a request. Returns the answer.
pub fn exchange(client: &mut Client, request: &Request) -> anyhow::Result<Value> {
    let line = serde_json::to_string(request)?;
    if line.len() > MAX_LINE_BYTES {
        let remedy = match request {
            Request::Sets(_) => "put the networks into a file: sluice scrub sets load SET FILE",
            _ => "put the rule into the policy, and apply that: sluice scrub apply FILE",
        };
        let problem =
            format!("the request has {} bytes, and at most {MAX_LINE_BYTES} fit", line.len());
        return Err(Error::Usage(format!("{problem}; {remedy}")).into());
    }
    let answer: Value = serde_json::from_str(&client.ask(&line)?.0)?;
    let Some(error) = answer["error"].as_str() else { return Ok(answer) };
    Err(failed_answer(error, answer["kind"].as_str()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_overflow_the_clock_are_refused() {
        let read = |time: u64| {
            let requests = [
                format!(r#"{{"do":"apply","policy":"x","confirm_s":{time}}}"#),
                format!(r#"{{"do":"sets","action":"add","set":"x","networks":[],"for_s":{time}}}"#),
                format!(r#"{{"do":"rules","action":"add","rule":"x","for_s":{time}}}"#),
            ];
            requests.map(|it| {
                serde_json::from_str::<Request>(&it).map(|_| ()).map_err(|it| it.to_string())
            })
        };
        assert_eq!(read(31_536_000), [Ok(()), Ok(()), Ok(())]);
        for time in [0, 31_536_001, u64::MAX] {
            for result in read(time) {
                assert!(
                    result.as_ref().is_err_and(|it| it.contains("1 to 31536000 seconds")),
                    "{result:?}"
                );
            }
        }
    }
}
