//! Samples all CPUs for some seconds and prints where their time went:
//! `sudo profile 2` beside whatever is to be looked at.

use std::time::Duration;

use sluicegate_bench::profile::{Achieved, Profiler, Who};

fn main() -> sluicegate::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let profiler = Profiler::start()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let who = Who { live_frames_send: true, ..Who::default() };
    let profile = profiler.stop()?.explain(&who, Achieved::default());
    println!("{} samples of {} in {:.2} s", profile.samples, profile.clock, profile.elapsed_s);
    for cause in &profile.causes {
        println!("{:5.1} %  {:28} {}", cause.share * 100.0, cause.name, cause.functions.join("; "));
    }
    for cpu in &profile.cpus {
        println!("{cpu:?}");
    }
    for waits in profile.waits.iter().take(5) {
        println!("{:10.0} a second  {}: {}", waits.per_second, waits.process, waits.why.name());
    }
    if let Some(doubt) = profile.doubt {
        println!("{doubt}");
    }
    println!("{}", profile.advice.unwrap_or_else(|| "nothing stands out".into()));
    Ok(())
}
