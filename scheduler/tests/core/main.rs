//! The core through its public interface, with scripted results: every test audits after every event.

mod ending;
mod lifecycle;
mod loss;
mod memory;
mod policies;
mod prefix;
mod readmission;
mod rig;
mod routing;
mod scoring;
mod steps;
