//! The analyser: against a simple model that forgets nothing, over packets that are lost, change
//! places and come twice at random; and on packets of specifications with faults planted.

mod kernel;
mod model;
mod planted;
