//! Co-LLM's deferral row: `P_defer = sigmoid(w . h)`, one more row of the output matrix without a bias.
//!
//! It is kept apart from the vocabulary: the token distribution is the softmax over all other rows, and the id of
//! the defer token, where the model's table has one, is never sampled.

use super::tensors::Tensors;
use crate::error::LoadError;
use crate::weights::Linear;

/// The tensor's name.
pub(super) const ROW: &str = "defer_row";

/// Loads the row `[1, hidden]`.
pub(super) fn load(tensors: &mut Tensors, hidden: usize) -> Result<Linear, LoadError> {
    Ok(Linear::new(tensors.tensor(ROW, &[1, hidden])?, None))
}
