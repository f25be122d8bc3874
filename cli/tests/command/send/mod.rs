//! `sluice generate` and `sluice replay`.

mod generate;
mod keys;
mod live_ring;
mod next_hop;
mod replay;
mod sides;
mod step;
