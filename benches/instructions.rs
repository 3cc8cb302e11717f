//! Deterministic work for `benches/instructions/check.py`, which counts its instructions under callgrind: no clock, no
//! thread, no random number. Prints one line per scenario: its name, and by how many units its count is divided.
//!
//! It is built in the dev profile, whose libraries the tests have built already; kernels and scheduler are optimised there.

#[path = "support/cores.rs"]
mod cores;
#[path = "support/logits.rs"]
mod logits;
#[path = "support/requests.rs"]
mod requests;
#[path = "instructions/rows.rs"]
mod rows;
#[path = "instructions/scheduler.rs"]
mod scheduler;
#[path = "instructions/text.rs"]
mod text;

/// Counted: callgrind collects inside this function alone.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tokenrouter_counted(work: &mut dyn FnMut()) {
    work();
}

/// A scenario ends: callgrind writes what it has collected.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tokenrouter_scenario_ends(name: &str, unit: &str, units: u64) {
    println!("{name}\t{unit}\t{units}");
}

fn main() -> Result<(), String> {
    scheduler::run();
    rows::run()?;
    text::run();
    Ok(())
}
