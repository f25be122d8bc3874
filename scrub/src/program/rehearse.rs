//! Decisions of the program outside of an interface, by BPF_PROG_RUN.

use std::io;

use libbpf_rs::ProgramInput;
use sluicegate::error::Result;

use super::load::{self, REHEARSE};
use super::{Program, ReturnPath};
use crate::cause::Decision;
use crate::counters;
use crate::policy::Verdict;

/// Verdicts in `enum xdp_action`.
const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;
/// Room for the frame of an answer.
const MAX_ANSWER: usize = 1514;
/// Room for the headers that a packet gets on the return path.
const RETURN_HEADERS: usize = 32;

impl Program {
    /// Makes the maps, and loads the program that decides alone, for [`rehearse`](Self::rehearse). With new tables, it
    /// forgets limits, sources and flows.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_rehearsal(limit_keys: u32) -> Result<Self> {
        Self::with(Some(REHEARSE), limit_keys, None, false)
    }

    /// Makes a program as [`for_rehearsal`](Self::for_rehearsal) does, with a return path.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_rehearsal_of(limit_keys: u32, path: ReturnPath) -> Result<Self> {
        Self::with(Some(REHEARSE), limit_keys, Some(path), false)
    }

    /// Decides on a frame, of at least 14 bytes.
    ///
    /// # Errors
    /// The kernel refuses; the program was not made for rehearsals.
    pub fn rehearse(&self, frame: &[u8]) -> Result<Decision> {
        Ok(self.rehearse_answer(frame)?.0)
    }

    /// Decides on a frame like [`rehearse`](Self::rehearse). Also returns the frame that leaves: an answer, or a packet that
    /// was marked or returned; empty if it is dropped or unchanged.
    ///
    /// # Errors
    /// As [`rehearse`](Self::rehearse).
    pub fn rehearse_answer(&self, frame: &[u8]) -> Result<(Decision, Vec<u8>)> {
        let failed = |error| load::failed("run", error);
        let mut out = vec![0; (frame.len() + RETURN_HEADERS).max(MAX_ANSWER)];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat: 1,
            ..ProgramInput::default()
        };
        let output = load::program(&self.object, REHEARSE).test_run(input).map_err(failed)?;
        let changed =
            output.data.map(|it| it.to_vec()).filter(|it| it != frame).unwrap_or_default();
        let (verdict, answer) = match output.return_value {
            XDP_DROP => (Verdict::Drop, Vec::new()),
            XDP_TX => (Verdict::Answer, changed),
            _ => (Verdict::Pass, changed),
        };
        let cause = counters::cause(self.cause.get(0) as u16);
        let cause = cause.ok_or_else(|| failed(io::Error::other("it reported no cause").into()))?;
        Ok((Decision { verdict, cause }, answer))
    }
}
