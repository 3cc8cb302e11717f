//! From a router's folder to checked weights.

use std::path::Path;

use super::citer::CiterWeights;
use super::file::DESCRIPTION;
use super::query::QueryWeights;
use super::r2r::R2rWeights;
use super::tensors::Tensors;
use super::{HeadInfo, HeadShape, ModelPrint, RouterFile, co_llm};
use crate::error::LoadError;
use crate::weights::Linear;

/// A head whose files have passed every check; nothing but its weights is held.
#[derive(Clone, Debug)]
pub(crate) struct OpenHead {
    /// As the server shows it.
    pub(crate) info: HeadInfo,
    /// Ids from this one on are never sampled: the defer token of the model's own vocabulary.
    pub(crate) defer_id: Option<u32>,
    pub(super) weights: HeadWeights,
}

/// The weights of one kind of head.
#[derive(Clone, Debug)]
pub(super) enum HeadWeights {
    R2r(Box<R2rWeights>),
    Citer(CiterWeights),
    CoLlm(Linear),
    Query(QueryWeights),
}

impl OpenHead {
    /// Reads and checks the router in `dir`, which must belong to `model`.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and field or tensor: another model, unknown kind, wrong sizes, a tensor that is
    /// missing, surplus, of a wrong shape, or holds NaN or infinity.
    pub(crate) fn open(dir: &Path, model: &ModelPrint) -> Result<Self, LoadError> {
        let file = RouterFile::load(dir)?;
        let description = dir.join(DESCRIPTION);
        file.owner.check(&description, model)?;
        let mut tensors = Tensors::open(dir)?;
        let (weights, defer_id) = match &file.shape {
            HeadShape::R2r(shape) => {
                if shape.logits_size > model.vocab_size {
                    let problem =
                        format!("is {}, the model has {} logits", shape.logits_size, model.vocab_size);
                    return Err(LoadError::field(&description, "logits_size", problem));
                }
                let weights = R2rWeights::load(&mut tensors, shape, model.hidden_size)?;
                (HeadWeights::R2r(Box::new(weights)), None)
            }
            HeadShape::Citer(shape) => {
                (HeadWeights::Citer(CiterWeights::load(&mut tensors, shape, model.hidden_size)?), None)
            }
            HeadShape::CoLlm(shape) => {
                (HeadWeights::CoLlm(co_llm::load(&mut tensors, model.hidden_size)?), shape.defer_id)
            }
            HeadShape::Query(shape) => {
                (HeadWeights::Query(QueryWeights::load(&mut tensors, shape, model.hidden_size)?), None)
            }
        };
        tensors.finish()?;
        let info = HeadInfo {
            path: dir.to_path_buf(),
            kind: file.shape.kind(),
            threshold: file.threshold,
            direction: file.direction(),
        };
        Ok(Self { info, defer_id, weights })
    }

    /// Bytes of its weights.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.weights {
            HeadWeights::R2r(w) => w.bytes(),
            HeadWeights::Citer(w) => w.bytes(),
            HeadWeights::CoLlm(w) => w.bytes(),
            HeadWeights::Query(w) => w.bytes(),
        }
    }

    /// f32 values of its buffers for one row.
    pub(crate) fn row_values(&self) -> u64 {
        match &self.weights {
            HeadWeights::R2r(w) => w.row_values(),
            HeadWeights::Citer(w) => w.row_values(),
            HeadWeights::CoLlm(_) => 0,
            HeadWeights::Query(w) => w.row_values(),
        }
    }

    /// Whether it reads the states of the whole prompt, so that the model must keep them.
    pub(crate) fn reads_prompts(&self) -> bool {
        matches!(self.weights, HeadWeights::Query(_))
    }

    /// How many of the largest logits it reads: so many ids must be unmasked.
    pub(crate) fn logits_size(&self) -> usize {
        match &self.weights {
            HeadWeights::R2r(w) => w.shape().logits_size,
            _ => 0,
        }
    }
}
