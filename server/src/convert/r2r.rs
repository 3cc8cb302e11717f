//! R2R's checkpoints: a dictionary of `model_type`, `init_args`, `common_args`, `model_specific_args` and `state_dict`, with
//! (`X_all.pt`) or without (`X.pt`) the copy of the embedding, which the model has anyway.

use tokenrouter_engine::heads::{HeadShape, NamedTensor, R2rShape};

use super::Found;
use super::pickle::{Pickle, Value};
use super::torch::TorchFile;

/// The one class that a published configuration uses.
const CLASS: &str = "HiddenStatesTokenLMHeadLogitsClassifier";
/// What it must have been trained on, in order.
const INPUTS: [&str; 3] = ["hidden_states", "token", "logits"];
/// Arguments that do not change what is computed, or that are checked one by one.
const ARGUMENTS: [&str; 12] = [
    "hidden_states_size",
    "logits_size",
    "hidden_dims",
    "expansion_factor",
    "normalize_input",
    "use_position_embedding",
    "max_position_embeddings",
    "dropout_rate",
    "freeze_lm_head",
    "pretrained_model_name",
    "topk",
    "dtype",
];

/// Whether the file's root is an R2R checkpoint.
pub(super) fn is_one(pickle: &Pickle<'_>) -> bool {
    pickle.get(pickle.root(), "model_type").is_some()
}

/// Reads the checkpoint. `tuned` says that the user gives the threshold.
pub(super) fn read(file: &mut TorchFile, pickle: &Pickle<'_>, tuned: bool) -> Result<Found, String> {
    let root = pickle.root();
    match pickle.get(root, "model_type") {
        Some(Value::Text(CLASS)) => {}
        Some(Value::Text(other)) => {
            return Err(file.error("model_type", format!("is {other:?}; only {CLASS} is understood")));
        }
        _ => return Err(file.error("model_type", "is no text")),
    }
    let arguments = dictionary(file, pickle, root, "init_args")?;
    let common = dictionary(file, pickle, root, "common_args")?;
    check_inputs(file, pickle, common, tuned)?;
    let state = dictionary(file, pickle, root, "state_dict")?;
    let mut tensors = Vec::new();
    for (name, value) in pickle.pairs(state).unwrap_or(&[]) {
        let Value::Text(name) = *name else {
            return Err(file.error("state_dict", "has a key that is no text"));
        };
        if name != "token_embeddings.weight" {
            tensors.push(file.tensor(pickle, name, *value)?);
        }
    }
    let shape = shape(file, pickle, arguments, &tensors)?;
    let hidden = integer(file, pickle, arguments, "hidden_states_size", None)?;
    let threshold = match pickle.get(common, "threshold") {
        None | Some(Value::None) => None,
        Some(Value::Float(x)) => Some(x as f32),
        Some(Value::Int(x)) => Some(x as f32),
        Some(_) => return Err(file.error("common_args.threshold", "is no number")),
    };
    Ok(Found { shape: HeadShape::R2r(shape), hidden, threshold, tensors })
}

fn dictionary<'a>(
    file: &TorchFile,
    pickle: &Pickle<'a>,
    from: Value<'a>,
    name: &str,
) -> Result<Value<'a>, String> {
    let value = pickle.get(from, name).filter(|v| pickle.pairs(*v).is_some());
    value.ok_or_else(|| file.error(name, "is absent or no dictionary"))
}

/// A file without the inputs is a state saved after an epoch: its threshold of 0.5 is nobody's choice.
fn check_inputs(file: &TorchFile, pickle: &Pickle<'_>, common: Value<'_>, tuned: bool) -> Result<(), String> {
    let field = "common_args.input_type";
    match pickle.get(common, "input_type") {
        None | Some(Value::None) if tuned => Ok(()),
        None | Some(Value::None) => Err(file.error(
            field,
            "is not set: a state saved while training, whose threshold is not tuned; give --threshold to take it",
        )),
        Some(list) => {
            let found: Vec<Value<'_>> = pickle.items(list).unwrap_or(&[]).to_vec();
            if found == INPUTS.map(Value::Text) {
                Ok(())
            } else {
                Err(file.error(field, format!("is not {INPUTS:?}")))
            }
        }
    }
}

fn shape(
    file: &TorchFile,
    pickle: &Pickle<'_>,
    arguments: Value<'_>,
    tensors: &[NamedTensor],
) -> Result<R2rShape, String> {
    for (name, _) in pickle.pairs(arguments).unwrap_or(&[]) {
        let known = ARGUMENTS.iter().any(|a| *name == Value::Text(a));
        if !known {
            let name = if let Value::Text(name) = name { name } else { "a key that is no text" };
            return Err(file.error("init_args", format!("has {name:?}, which is unknown")));
        }
    }
    if flag(file, pickle, arguments, "use_position_embedding")? {
        let problem = "is true: the score would depend on a position that the serving code never passes";
        return Err(file.error("init_args.use_position_embedding", problem));
    }
    let dims = pickle.get(arguments, "hidden_dims").and_then(|v| pickle.items(v));
    let dims = dims.and_then(|l| l.iter().map(|v| as_size(*v)).collect::<Option<Vec<usize>>>());
    let out = tensors.iter().find(|t| t.name == "backbone.output_layer.1.weight");
    Ok(R2rShape {
        hidden_dims: dims
            .filter(|d| !d.is_empty())
            .ok_or_else(|| file.error("init_args.hidden_dims", "is absent or no list of sizes"))?,
        // The defaults of the class, for arguments that the trainer's configuration left out.
        expansion_factor: integer(file, pickle, arguments, "expansion_factor", Some(4))?,
        logits_size: integer(file, pickle, arguments, "logits_size", Some(100))?,
        outputs: out.and_then(|t| t.shape.first().copied()).unwrap_or(1),
        normalize_input: flag(file, pickle, arguments, "normalize_input")?,
        layer_norm_eps: 1e-5,
    })
}

fn as_size(value: Value<'_>) -> Option<usize> {
    if let Value::Int(n) = value { usize::try_from(n).ok() } else { None }
}

fn integer(
    file: &TorchFile,
    pickle: &Pickle<'_>,
    arguments: Value<'_>,
    name: &str,
    default: Option<usize>,
) -> Result<usize, String> {
    let value = match pickle.get(arguments, name) {
        None => default,
        Some(value) => as_size(value),
    };
    value.ok_or_else(|| file.error(&format!("init_args.{name}"), "is absent or no whole number"))
}

fn flag(file: &TorchFile, pickle: &Pickle<'_>, arguments: Value<'_>, name: &str) -> Result<bool, String> {
    match pickle.get(arguments, name) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(on),
        Some(_) => Err(file.error(&format!("init_args.{name}"), "is neither true nor false")),
    }
}
