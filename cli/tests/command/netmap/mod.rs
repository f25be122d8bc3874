//! `sluice netmap`: programs written for netmap.

mod check;
mod programs;
mod refused;
mod run;
mod serve;
