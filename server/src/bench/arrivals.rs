//! When requests are sent: as soon as the last is answered, or at random moments.

use std::sync::Mutex;
use std::time::Duration;

use tokenrouter_scheduler::sim::Random;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// So many clients, each of which sends a request when its last one is answered.
    Closed(u32),
    /// Requests (or conversations) per second, whatever becomes of them: a Poisson process.
    Poisson(f64),
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Load::Closed(clients) => write!(f, "N={clients}"),
            Load::Poisson(rate) => write!(f, "{rate}/s"),
        }
    }
}

/// The moments of a Poisson process, one after another, to whoever asks next.
pub(super) struct Schedule(Mutex<Next>);

struct Next {
    random: Random,
    rate: f64,
    number: u64,
    seconds: f64,
}

impl Schedule {
    /// `rate` moments per second in the mean; equal seeds give equal moments.
    pub(super) fn new(rate: f64, seed: u64) -> Self {
        Schedule(Mutex::new(Next { random: Random::new(seed), rate, number: 0, seconds: 0.0 }))
    }

    /// The number of the next arrival, and its time since the start.
    pub(super) fn next(&self) -> (u64, Duration) {
        let mut next = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The time between two arrivals is exponential.
        let gap = -next.random.unit().ln() / next.rate;
        next.seconds += gap;
        let number = next.number;
        next.number += 1;
        (number, Duration::try_from_secs_f64(next.seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_poisson_and_repeat_by_seed() {
        let times = |seed: u64| -> Vec<f64> {
            let schedule = Schedule::new(50.0, seed);
            (0..20_000).map(|_| schedule.next().1.as_secs_f64()).collect()
        };
        let a = times(3);
        assert_eq!(a, times(3));
        assert_ne!(a[..9], times(4)[..9]);
        // 20,000 arrivals: the mean gap has a relative standard error of 0.7 %, and so has the squared deviation.
        let gaps: Vec<f64> = a.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "{mean}");
        assert!((spread.sqrt() / mean - 1.0).abs() < 0.05, "an exponential deviates by its mean");
    }
}
