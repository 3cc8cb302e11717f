//! How much of a slowdown a step suffers, and how much of it causes, by the tokens that it feeds.
//!
//! Beside another model, a step of few tokens waits for the memory that both read; a step of many multiplies what it has
//! read, and shares little. A step of model `i` that loses `c_i = 1 - 1 / s_i` of its speed beside others when both feed a
//! token loses `c_i * own * imposed` of it in general: a part by its own tokens, and a part by those of the other step.

/// Of the speed that a step may lose at most this much is lost.
pub(crate) const MOST_LOSS: f64 = 0.95;

/// The two parts of a step: 1 for a step of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// What it suffers of what it would with one token.
    pub own: f64,
    /// What it causes of what it would with one token.
    pub imposed: f64,
}

impl Default for Parts {
    fn default() -> Self {
        Self { own: 1.0, imposed: 1.0 }
    }
}

/// The parts of a model's steps, as they were measured: points (fed tokens, part) in order of tokens, straight lines over the
/// logarithm of tokens between them, and the nearest point outside. No points: 1 for every step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    /// What a step suffers.
    pub own: Vec<(usize, f64)>,
    /// What it causes.
    pub imposed: Vec<(usize, f64)>,
}

impl Sharing {
    /// Of a step that feeds `fed` tokens.
    pub fn parts(&self, fed: usize) -> Parts {
        Parts { own: at(&self.own, fed), imposed: at(&self.imposed, fed) }
    }

    /// No points.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.imposed.is_empty()
    }
}

/// How many times longer a step takes beside others, if that is `slowdown` where both feed a token: with what it suffers, and
/// the most that any of them causes.
pub fn slowdown_beside(slowdown: f64, own: f64, imposed: f64) -> f64 {
    let loss = (1.0 - 1.0 / slowdown.max(1.0)) * own * imposed;
    // Without parts exactly the slowdown.
    if own == 1.0 && imposed == 1.0 { slowdown.max(1.0) } else { 1.0 / (1.0 - loss.clamp(0.0, MOST_LOSS)) }
}

fn at(points: &[(usize, f64)], fed: usize) -> f64 {
    let after = points.partition_point(|&(at, _)| at <= fed);
    match (after.checked_sub(1).map(|i| points[i]), points.get(after)) {
        (Some(a), Some(b)) => {
            let log = |tokens: usize| (tokens.max(1) as f64).ln();
            let way = (log(fed) - log(a.0)) / (log(b.0) - log(a.0)).max(f64::MIN_POSITIVE);
            a.1 + (b.1 - a.1) * way
        }
        (Some(nearest), None) => nearest.1,
        (None, Some(nearest)) => nearest.1,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_between_points_and_kept_outside() {
        let sharing =
            Sharing { own: vec![(1, 1.0), (4, 0.5), (16, 0.1)], imposed: vec![(1, 1.0), (16, 0.0)] };
        for (fed, own, imposed) in
            [(1, 1.0, 1.0), (2, 0.75, 0.75), (4, 0.5, 0.5), (8, 0.3, 0.25), (99, 0.1, 0.0)]
        {
            let parts = sharing.parts(fed);
            assert!(
                (parts.own - own).abs() < 1e-9 && (parts.imposed - imposed).abs() < 1e-9,
                "{fed}: {parts:?}"
            );
        }
        assert_eq!(Sharing::default().parts(7), Parts::default());
    }

    #[test]
    fn a_step_that_loses_a_part_of_its_speed_takes_so_much_longer() {
        assert_eq!(slowdown_beside(1.6, 1.0, 1.0), 1.6);
        assert_eq!(slowdown_beside(0.5, 1.0, 1.0), 1.0);
        assert!((slowdown_beside(2.0, 0.5, 0.5) - 1.0 / 0.875).abs() < 1e-12);
        assert_eq!(slowdown_beside(2.0, 0.0, 1.0), 1.0);
        assert!((slowdown_beside(1e3, 3.0, 1.0) - 20.0).abs() < 1e-9, "the clock goes on");
    }
}
