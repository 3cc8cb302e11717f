//! CITER's state dictionary: tensors under their names, no sizes, no threshold.

use tokenrouter_engine::heads::{CiterShape, HeadShape, NamedTensor};

use super::Found;
use super::pickle::{Pickle, Value};
use super::torch::TorchFile;

/// Whether the file's root is CITER's state dictionary.
pub(super) fn is_one(pickle: &Pickle<'_>) -> bool {
    pickle.get(pickle.root(), "mlp.0.weight").is_some()
        && pickle.get(pickle.root(), "linear.weight").is_some()
}

/// Reads the state dictionary; the sizes are those of its matrices.
pub(super) fn read(file: &mut TorchFile, pickle: &Pickle<'_>) -> Result<Found, String> {
    let mut tensors = Vec::new();
    for (name, value) in pickle.pairs(pickle.root()).unwrap_or(&[]) {
        let Value::Text(name) = *name else {
            return Err(file.error("the state", "has a key that is no text"));
        };
        // The counter of training batches.
        if name != "mlp.1.num_batches_tracked" {
            tensors.push(file.tensor(pickle, name, *value)?);
        }
    }
    let [inner, hidden] = matrix(file, &tensors, "mlp.0.weight")?;
    let [outer, _] = matrix(file, &tensors, "mlp.4.weight")?;
    let shape = CiterShape { hidden_dims: [inner, outer], batch_norm_eps: 1e-5 };
    Ok(Found { shape: HeadShape::Citer(shape), hidden, threshold: None, tensors })
}

fn matrix(file: &TorchFile, tensors: &[NamedTensor], name: &str) -> Result<[usize; 2], String> {
    let found = tensors.iter().find(|t| t.name == name);
    let shape = found.and_then(|t| <[usize; 2]>::try_from(t.shape.as_slice()).ok());
    shape.ok_or_else(|| file.error(name, "is missing or no matrix"))
}
