//! What torch computed with the random heads of `tests/golden/heads`, for the tests beside the code.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Isa, KvLayout, WorkerGroup};

use super::{HeadInput, HeadSet, HeadSizes, OpenHead};
use crate::model::Model;
use crate::ops::cpu::CpuOps;
use crate::weights::{ModelWeights, Tensor};

/// The folder of the golden files.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads")
}

/// An array of `golden.safetensors`; integers come out as bits.
pub(super) fn array(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(root().join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let data = file.tensor(name).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The candidates.
pub(super) fn candidates() -> Vec<u32> {
    array("candidate").iter().map(|x| x.to_bits()).collect()
}

/// A head of the golden model.
pub(super) fn head(name: &str) -> OpenHead {
    let print = Model::open(&root().join("model")).unwrap().print().unwrap();
    OpenHead::open(&root().join(name), &print).unwrap()
}

/// Operations, and the embedding table.
pub(super) fn device(isa: Isa, threads: usize) -> (CpuOps, Tensor) {
    let dir = root().join("model");
    let config = crate::config::ModelConfig::load(&dir).unwrap();
    let weights = ModelWeights::open(&dir, &config).unwrap();
    let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: config.head_dim, dtype: DType::F32, pages: 1 };
    let workers = WorkerGroup::new("test", threads).unwrap();
    let ops = CpuOps::new(&config, isa, workers, layout, 16, config.vocab_size, None).unwrap();
    (ops, weights.embed)
}

/// The scores of `rows` of the golden sequence, computed from torch's own hidden states and logits.
pub(super) fn scores(name: &str, isa: Isa, threads: usize, rows: std::ops::Range<usize>) -> Vec<f32> {
    let (mut ops, embed) = device(isa, threads);
    let (hidden, logits) = (array("hidden"), array("logits"));
    let (h, v) = (embed.cols(), embed.rows());
    let sizes = HeadSizes { rows: rows.len(), hidden: h, pages: 1 };
    let mut set = HeadSet::new(&ops, vec![head(name)], sizes);
    set.observe(&mut ops, 1, rows.len(), v, &logits[rows.start * v..rows.end * v].to_vec());
    let hidden = hidden[rows.start * h..rows.end * h].to_vec();
    let candidates = candidates();
    let input = HeadInput { hidden: &hidden, embed: &embed, candidates: &candidates[rows.clone()] };
    set.score(&mut ops, 1, &input);
    set.scores(0).to_vec()
}
