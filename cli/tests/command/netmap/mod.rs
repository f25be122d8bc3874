//! `sluice netmap`: programs written for netmap.

mod programs;
mod refused;
mod run;
mod serve;
