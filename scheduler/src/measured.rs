//! What was measured of a model's steps before it serves (`tokenrouter profile`).

use crate::ids::Nanos;

/// The step times of one model on the machine where it runs. The estimates begin with them
/// ([`Core::measured`](crate::Core::measured)), so that the first plan is made from more than a few steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Points (fed tokens, time of such a step alone), in any order; none: nothing was measured. A time of 0 says
    /// nothing.
    pub steps: Vec<(usize, Nanos)>,
    /// How many times longer a step takes while another model runs; below 1 is read as 1.
    pub slowdown: f64,
}
