//! What was measured of a model's steps before it serves (`tokenrouter profile`).

use crate::ids::Nanos;
use crate::sharing::Sharing;

/// The step times of one model on the machine where it runs. The estimates begin with them
/// ([`Core::measured`](crate::Core::measured)), so that the first plan is made from more than a few steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Points (fed tokens, time of such a step alone), in any order; none: nothing was measured. A time of 0 says
    /// nothing.
    pub steps: Vec<(usize, Nanos)>,
    /// Points (rows, time) in order of rows: what so many rows cost beside the tokens that they feed (the output matrix, and
    /// a draw for each). `steps` are then without it. Empty: rows cost nothing of their own, as far as is known.
    pub rows: Vec<(usize, Nanos)>,
    /// How many times longer a step takes while another model runs; below 1 is read as 1.
    pub slowdown: f64,
    /// How much of that a step suffers and causes, by the tokens that it feeds.
    pub sharing: Sharing,
}
