//! `sluice generate` and `sluice replay`.

mod generate;
mod keys;
mod live_ring;
mod next_hop;
mod receive;
mod replay;
mod several;
mod sides;
mod step;
