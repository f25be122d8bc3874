//! Tests of the analyser: against a simple model that stores everything, with random losses, reordering and
//! duplicates; and on packets of specifications with planted faults.

mod kernel;
mod model;
mod planted;
