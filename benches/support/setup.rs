//! How long every bench measures: the one setting of criterion.
#![allow(unreachable_pub, reason = "every bench compiles this module for itself")]

use std::time::Duration;

use criterion::Criterion;

/// So many samples: 20, or 10 for what takes milliseconds.
pub fn samples(count: usize) -> Criterion {
    Criterion::default()
        .sample_size(count)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}
