//! `sluice switch`: hosts of a lab around it.

mod control;
mod hosts;
mod kinds;
mod loss;
mod slow;
mod star;
mod vlans;
mod watch;
