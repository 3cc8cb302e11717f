//! Rotary position settings: three ways of writing them, one normalised form (bug-log L07), and the
//! inverse frequencies that `transformers` computes from it.

use super::fields::{Fields, brief};
use crate::error::LoadError;

/// The base that all three architectures take when a checkpoint names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Fields of a RoPE object that are known, of whatever type. Others are reported and ignored, as
/// `transformers` does; fields of another type's are ignored silently.
const KNOWN: [&str; 14] = [
    "rope_theta",
    "rope_type",
    "type",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "low_freq_factor",
    "high_freq_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
];

/// Rotary position settings of a checkpoint, normalised.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// How the frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// The stretching of rotary frequencies, named as in `rope_type`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK scaling that grows with the sequence. It acts only past `max_position_embeddings`, where
    /// this engine never goes, so inside the context it equals `Default`.
    Dynamic {
        /// The stretch; has no effect within the context.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a smooth passage between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training.
        original: usize,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Divisor of the interpolated frequencies.
        factor: f64,
        /// Factor on cosine and sine, resolved (explicit, or from `mscale`, or from `factor`).
        attention_factor: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is divided.
        beta_slow: f64,
        /// Context length of the first training.
        original: usize,
        /// Whether the ends of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

impl RopeConfig {
    /// Reads top-level `rope_theta`, `rope_scaling` and `rope_parameters`. Several may be present when
    /// they agree; a disagreement is an error, never a silent choice.
    pub(super) fn read(config: &Fields<'_>, max_positions: usize) -> Result<Self, LoadError> {
        refuse_partial(config)?;
        let mut theta = config.positive("rope_theta")?.map(|t| (t, config.path("rope_theta")));
        let mut scaling: Option<(RopeScaling, &str)> = None;
        for name in ["rope_scaling", "rope_parameters"] {
            let Some(object) = config.object(name)? else { continue };
            refuse_partial(&object)?;
            if let Some(found) = object.positive("rope_theta")? {
                match &theta {
                    Some((known, place)) if *known != found => {
                        return Err(
                            object.wrong("rope_theta", &format!("but {place} is {known}: they must agree"))
                        );
                    }
                    _ => theta = Some((found, object.path("rope_theta"))),
                }
            }
            let Some(found) = read_scaling(config, &object, max_positions)? else { continue };
            match &scaling {
                Some((known, place)) if *known != found => {
                    let problem = format!("says {found:?} but {place} says {known:?}: they must agree");
                    return Err(config.error(name, problem));
                }
                _ => scaling = Some((found, name)),
            }
        }
        if theta.is_none() {
            tracing::info!(
                theta = DEFAULT_THETA,
                "no rope_theta in config.json, taking the architecture's default"
            );
        }
        let theta = theta.map_or(DEFAULT_THETA, |(t, _)| t);
        if theta <= 1.0 {
            return Err(config.error("rope_theta", format!("is {theta}, a base above 1 is needed")));
        }
        Ok(Self { theta, scaling: scaling.map_or(RopeScaling::Default, |(s, _)| s) })
    }

    /// Factor on cosine and sine (1 except for YaRN).
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        }
    }

    /// The `head_dim / 2` inverse frequencies. Every step is rounded to f32 where `transformers` works
    /// in f32, because at position 100,000 one unit in the last place is already a visible angle.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        let power = |i: usize| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            self.theta.powf(f64::from(exponent)) as f32
        };
        let half = head_dim / 2;
        let plain = (0..half).map(|i| 1.0 / power(i));
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic { .. } => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
                let (low, high, original) = (*low_freq_factor, *high_freq_factor, *original as f64);
                plain.map(|f| llama3(f, *factor as f32, low, high, original)).collect()
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, truncate, .. } => {
                let (low, width) = self.yarn_ramp(head_dim, *beta_fast, *beta_slow, *original, *truncate);
                (0..half)
                    .map(|i| {
                        let kept = 1.0 / power(i);
                        let divided = 1.0 / (*factor as f32 * power(i));
                        let ramp = ((i as f32 - low) / width).clamp(0.0, 1.0);
                        let keep = 1.0 - ramp;
                        divided * (1.0 - keep) + kept * keep
                    })
                    .collect()
            }
        }
    }

    /// First dimension and width of YaRN's ramp. (The upper end is clamped to `head_dim - 1`
    /// although the ramp has only `head_dim / 2` entries; `transformers` does so.)
    fn yarn_ramp(
        &self,
        head_dim: usize,
        fast: f64,
        slow: f64,
        original: usize,
        truncate: bool,
    ) -> (f32, f32) {
        let dim = head_dim as f64;
        let at = |rotations: f64| {
            dim * (original as f64 / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (at(fast), at(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        // The width is formed before rounding, as `transformers` subtracts two Python floats.
        (low as f32, (high - low) as f32)
    }
}

fn llama3(freq: f32, factor: f32, low: f64, high: f64, original: f64) -> f32 {
    let wavelength = (2.0 * std::f64::consts::PI) as f32 / freq;
    let (longest, shortest) = ((original / low) as f32, (original / high) as f32);
    if wavelength > longest {
        freq / factor
    } else if wavelength < shortest {
        freq
    } else {
        let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

fn refuse_partial(fields: &Fields<'_>) -> Result<(), LoadError> {
    match fields.number("partial_rotary_factor")? {
        Some(x) if x != 1.0 => {
            Err(fields.wrong("partial_rotary_factor", "only 1 (all dimensions rotate) is supported"))
        }
        _ => Ok(()),
    }
}

/// The scaling that a RoPE object states, `None` when it states none (for example only a theta).
fn read_scaling(
    config: &Fields<'_>,
    object: &Fields<'_>,
    max_positions: usize,
) -> Result<Option<RopeScaling>, LoadError> {
    refuse_other_shapes(object)?;
    let name = match (object.text("rope_type")?, object.text("type")?) {
        (Some(a), Some(b)) if a != b => {
            return Err(object.wrong("type", &format!("but rope_type is {a:?}: they must agree")));
        }
        (Some(a), _) | (None, Some(a)) => a,
        (None, None) => {
            let scaling = object.names().find(|n| !["rope_theta", "partial_rotary_factor"].contains(n));
            return match scaling {
                None => Ok(None),
                Some(field) => Err(object.error(
                    "rope_type",
                    format!("is absent although {field} is there: default, linear, dynamic, llama3 or yarn is needed"),
                )),
            };
        }
    };
    let scaling = match name {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: required(object, "factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: required(object, "factor")? },
        "llama3" => read_llama3(config, object, max_positions)?,
        "yarn" => read_yarn(config, object, max_positions)?,
        _ => {
            let field = if object.has("rope_type") { "rope_type" } else { "type" };
            return Err(object.wrong(field, "supported are default, linear, dynamic, llama3 and yarn"));
        }
    };
    Ok(Some(scaling))
}

/// Multimodal sections and per-layer-type objects are other mathematics; unknown names are reported.
fn refuse_other_shapes(object: &Fields<'_>) -> Result<(), LoadError> {
    for name in object.names() {
        if name == "mrope_section" || object.get(name).is_some_and(serde_json::Value::is_object) {
            return Err(object.wrong(name, "multimodal and per-layer RoPE are not supported"));
        }
        if !KNOWN.contains(&name) {
            let value = object.get(name).map(brief).unwrap_or_default();
            tracing::warn!(field = object.path(name), value, "unknown RoPE field ignored");
        }
    }
    Ok(())
}

fn required(object: &Fields<'_>, name: &str) -> Result<f64, LoadError> {
    object.positive(name)?.ok_or_else(|| object.error(name, "is absent, a number above 0 is needed"))
}

/// Context length of the first training: at the top level or in the object, else the present one.
fn original_positions(config: &Fields<'_>, object: &Fields<'_>, max: usize) -> Result<usize, LoadError> {
    const NAME: &str = "original_max_position_embeddings";
    let limit = u64::from(u32::MAX);
    match (config.integer(NAME, 1, limit)?, object.integer(NAME, 1, limit)?) {
        (Some(a), Some(b)) if a != b => {
            Err(object.wrong(NAME, &format!("but the top-level field is {a}: they must agree")))
        }
        (a, b) => Ok(a.or(b).unwrap_or(max)),
    }
}

fn read_llama3(config: &Fields<'_>, object: &Fields<'_>, max: usize) -> Result<RopeScaling, LoadError> {
    let low_freq_factor = required(object, "low_freq_factor")?;
    let high_freq_factor = required(object, "high_freq_factor")?;
    if high_freq_factor <= low_freq_factor {
        return Err(object.wrong(
            "high_freq_factor",
            &format!("a number above low_freq_factor ({low_freq_factor}) is needed"),
        ));
    }
    let factor = required(object, "factor")?;
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original: original_positions(config, object, max)?,
    })
}

fn read_yarn(config: &Fields<'_>, object: &Fields<'_>, max: usize) -> Result<RopeScaling, LoadError> {
    let original = original_positions(config, object, max)?;
    // A null factor means the ratio of the two context lengths; an absent one is an error.
    let factor = if object.has("factor") && object.get("factor").is_none() {
        max as f64 / original as f64
    } else {
        required(object, "factor")?
    };
    let or_default = |name, default| -> Result<f64, LoadError> {
        // Zero means "not set" here, as in `transformers`.
        match object.number(name)? {
            Some(x) if x < 0.0 => Err(object.wrong(name, "a number above 0 is needed")),
            found => Ok(found.filter(|x| *x != 0.0).unwrap_or(default)),
        }
    };
    let (beta_fast, beta_slow) = (or_default("beta_fast", 32.0)?, or_default("beta_slow", 1.0)?);
    if beta_fast < beta_slow {
        return Err(
            object.wrong("beta_fast", &format!("a number of at least beta_slow ({beta_slow}) is needed"))
        );
    }
    let (mscale, mscale_all_dim) = (or_default("mscale", 0.0)?, or_default("mscale_all_dim", 0.0)?);
    let magnitude = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let attention_factor = match object.positive("attention_factor")? {
        Some(given) => given,
        None if mscale != 0.0 && mscale_all_dim != 0.0 => magnitude(mscale) / magnitude(mscale_all_dim),
        None => magnitude(1.0),
    };
    let truncate = object.flag("truncate")?.unwrap_or(true);
    Ok(RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original, truncate })
}
