//! `router.json`: what kind of head, its sizes, its threshold, and the model it belongs to.

use std::path::Path;

use serde_json::{Value, json};

use super::{Direction, HeadKind, Owner};
use crate::config::{Fields, read_object};
use crate::error::LoadError;

/// The one version of the format.
const FORMAT: u64 = 1;
/// The description inside a router's folder.
pub(super) const DESCRIPTION: &str = "router.json";
/// The weights inside a router's folder.
pub(super) const WEIGHTS: &str = "router.safetensors";
/// The widest layer that is read, in values: far above any published head, far below what overflows a size.
const WIDEST: u64 = 1 << 17;
/// Epsilon of LayerNorm and BatchNorm when the file names none: torch's default.
const EPSILON: f64 = 1e-5;

/// Sizes of an R2R network; the paper's own: six entries of 1024, expansion 4, 100 logits, one output.
#[derive(Clone, Debug, PartialEq)]
pub struct R2rShape {
    /// Width of each block; where two neighbours differ, the block has a linear skip.
    pub hidden_dims: Vec<usize>,
    /// Inner width of a block over its input width.
    pub expansion_factor: usize,
    /// How many of the largest raw logits it reads.
    pub logits_size: usize,
    /// 1: the score is a sigmoid. 3 (match, neutral, divergent): it is the softmax of class 2.
    pub outputs: usize,
    /// LayerNorm on hidden state and embedding, softmax over the logits.
    pub normalize_input: bool,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f32,
}

/// Sizes of a CITER network; the paper's own: `[2 * hidden_size, hidden_size]`.
#[derive(Clone, Debug, PartialEq)]
pub struct CiterShape {
    /// Widths after the first and the second matrix.
    pub hidden_dims: [usize; 2],
    /// Epsilon of the batch norm.
    pub batch_norm_eps: f32,
}

/// What a Co-LLM row has besides its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct CoLlmShape {
    /// The id of the defer token, when the model's own vocabulary has it: this id and those above are never sampled.
    pub defer_id: Option<u32>,
}

/// Sizes of a query classifier.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryShape {
    /// Width between its two matrices.
    pub hidden_dim: usize,
}

/// A head's kind and sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadShape {
    /// R2R.
    R2r(R2rShape),
    /// CITER.
    Citer(CiterShape),
    /// Co-LLM.
    CoLlm(CoLlmShape),
    /// Query-level routing.
    Query(QueryShape),
}

impl HeadShape {
    /// The algorithm.
    pub fn kind(&self) -> HeadKind {
        match self {
            HeadShape::R2r(_) => HeadKind::R2r,
            HeadShape::Citer(_) => HeadKind::Citer,
            HeadShape::CoLlm(_) => HeadKind::CoLlm,
            HeadShape::Query(_) => HeadKind::Query,
        }
    }
}

/// A router's description.
///
/// ```json
/// {"format": 1, "kind": "r2r", "hidden_dims": [1024, 1024], "expansion_factor": 4, "logits_size": 100, "outputs": 1,
///  "normalize_input": false, "layer_norm_eps": 1e-5, "threshold": 0.4, "direction": ">=",
///  "model": {"hidden_size": 1024, "vocab_size": 151936, "layers": 28, "tokenizer": "fp...", "weights": "fp..."}}
/// ```
///
/// `citer` has `hidden_dims` (two) and `batch_norm_eps`, `co-llm` has `defer_id`, `query` has `hidden_dims` (one). `outputs`, `normalize_input` and the
/// epsilons may be left out (1, false, 1e-5); `threshold`, `defer_id`, `model.layers` and `model.weights` may be null.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterFile {
    /// Kind and sizes.
    pub shape: HeadShape,
    /// The threshold it was tuned to, in `[0, 1]`; none when nobody chose one.
    pub threshold: Option<f32>,
    /// The model it belongs to.
    pub owner: Owner,
}

impl RouterFile {
    /// Reads `router.json` in the folder `dir`.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and field: absent, of the wrong type, out of range, or unknown.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join(DESCRIPTION);
        let map = read_object(&file)?;
        Self::parse(&Fields::new(&file, &map))
    }

    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        if fields.get("format").and_then(Value::as_u64) != Some(FORMAT) {
            return Err(fields.wrong("format", &format!("this version reads format {FORMAT}")));
        }
        let kind = parse_kind(fields)?;
        let shape = match kind {
            HeadKind::R2r => HeadShape::R2r(R2rShape::parse(fields)?),
            HeadKind::Citer => HeadShape::Citer(CiterShape::parse(fields)?),
            HeadKind::CoLlm => HeadShape::CoLlm(CoLlmShape::parse(fields)?),
            HeadKind::Query => HeadShape::Query(QueryShape::parse(fields)?),
        };
        let direction = kind.direction();
        if fields.text("direction")?.and_then(|d| d.parse().ok()) != Some(direction) {
            let wanted =
                format!("a {} head asks the peer when its score is {direction} the threshold", kind.name());
            return Err(fields.wrong("direction", &wanted));
        }
        let model = fields.object("model")?.ok_or_else(|| {
            fields.error("model", "is absent, the model that the head belongs to is needed")
        })?;
        Ok(Self { shape, threshold: parse_threshold(fields)?, owner: Owner::parse(&model)? })
    }

    /// Which comparison with the threshold asks the peer.
    pub fn direction(&self) -> Direction {
        self.shape.kind().direction()
    }

    /// The content of `router.json`.
    pub fn to_json(&self) -> Value {
        let mut out = json!({ "format": FORMAT, "kind": self.shape.kind().name() });
        match &self.shape {
            HeadShape::R2r(s) => {
                out["hidden_dims"] = json!(s.hidden_dims);
                out["expansion_factor"] = json!(s.expansion_factor);
                out["logits_size"] = json!(s.logits_size);
                out["outputs"] = json!(s.outputs);
                out["normalize_input"] = json!(s.normalize_input);
                out["layer_norm_eps"] = decimal(s.layer_norm_eps);
            }
            HeadShape::Citer(s) => {
                out["hidden_dims"] = json!(s.hidden_dims);
                out["batch_norm_eps"] = decimal(s.batch_norm_eps);
            }
            HeadShape::CoLlm(s) => out["defer_id"] = json!(s.defer_id),
            HeadShape::Query(s) => out["hidden_dims"] = json!([s.hidden_dim]),
        }
        out["threshold"] = self.threshold.map_or(Value::Null, decimal);
        out["direction"] = json!(self.direction().to_string());
        out["model"] = self.owner.to_json();
        out
    }
}

/// A single-precision number in its shortest decimal form (0.4, not 0.4000000059604645).
fn decimal(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

fn parse_kind(fields: &Fields<'_>) -> Result<HeadKind, LoadError> {
    let found = fields.text("kind")?;
    HeadKind::ALL.into_iter().find(|k| Some(k.name()) == found).ok_or_else(|| {
        let names = HeadKind::ALL.map(HeadKind::name).join(", ");
        fields.wrong("kind", &format!("one of {names} is needed"))
    })
}

fn parse_threshold(fields: &Fields<'_>) -> Result<Option<f32>, LoadError> {
    match fields.number("threshold")? {
        Some(x) if !(0.0..=1.0).contains(&x) => {
            Err(fields
                .wrong("threshold", "a number from 0 to 1, or null, is needed: the score is a probability"))
        }
        other => Ok(other.map(|x| x as f32)),
    }
}

/// Refuses fields that are none of `names`.
pub(super) fn known(fields: &Fields<'_>, names: &[&str]) -> Result<(), LoadError> {
    match fields.names().find(|n| !names.contains(n)) {
        Some(extra) => Err(fields.error(extra, format!("is unknown; known fields are {}", names.join(", ")))),
        None => Ok(()),
    }
}

fn epsilon(fields: &Fields<'_>, name: &str) -> Result<f32, LoadError> {
    match fields.positive(name)?.unwrap_or(EPSILON) {
        x if (1e-30..=1.0).contains(&x) => Ok(x as f32),
        _ => Err(fields.wrong(name, "a number above 0 and at most 1 is needed")),
    }
}

/// Every entry of `hidden_dims`.
fn dims(fields: &Fields<'_>) -> Result<Vec<usize>, LoadError> {
    let wanted = format!("a list of 1 to 64 whole numbers from 1 to {WIDEST} is needed");
    let list = fields.get("hidden_dims").and_then(Value::as_array);
    let list =
        list.filter(|l| (1..=64).contains(&l.len())).ok_or_else(|| fields.wrong("hidden_dims", &wanted))?;
    let size = |v: &Value| v.as_u64().filter(|n| (1..=WIDEST).contains(n)).map(|n| n as usize);
    list.iter().map(size).collect::<Option<_>>().ok_or_else(|| fields.wrong("hidden_dims", &wanted))
}

/// Fields of every kind.
const COMMON: [&str; 5] = ["format", "kind", "threshold", "direction", "model"];

impl R2rShape {
    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        let own = [
            "hidden_dims",
            "expansion_factor",
            "logits_size",
            "outputs",
            "normalize_input",
            "layer_norm_eps",
        ];
        known(fields, &[&COMMON[..], &own].concat())?;
        let shape = Self {
            hidden_dims: dims(fields)?,
            expansion_factor: fields.required_integer("expansion_factor", 1, 64)?,
            logits_size: fields.required_integer("logits_size", 1, 4096)?,
            outputs: fields.integer("outputs", 1, 3)?.unwrap_or(1),
            normalize_input: fields.flag("normalize_input")?.unwrap_or(false),
            layer_norm_eps: epsilon(fields, "layer_norm_eps")?,
        };
        if shape.outputs == 2 {
            return Err(fields.wrong("outputs", "1 (a sigmoid) or 3 (three classes) is needed"));
        }
        Ok(shape)
    }
}

impl CiterShape {
    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        known(fields, &[&COMMON[..], &["hidden_dims", "batch_norm_eps"]].concat())?;
        let hidden_dims = <[usize; 2]>::try_from(dims(fields)?)
            .map_err(|_| fields.wrong("hidden_dims", "two widths are needed"))?;
        Ok(Self { hidden_dims, batch_norm_eps: epsilon(fields, "batch_norm_eps")? })
    }
}

impl CoLlmShape {
    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        known(fields, &[&COMMON[..], &["defer_id"]].concat())?;
        let id = fields.integer("defer_id", 1, u64::from(u32::MAX) - 1)?;
        Ok(Self { defer_id: id.map(|id| id as u32) })
    }
}

impl QueryShape {
    fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        known(fields, &[&COMMON[..], &["hidden_dims"]].concat())?;
        let [hidden_dim] = <[usize; 1]>::try_from(dims(fields)?)
            .map_err(|_| fields.wrong("hidden_dims", "one width is needed"))?;
        Ok(Self { hidden_dim })
    }
}
