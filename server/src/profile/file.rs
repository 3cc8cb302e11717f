//! The file that `tokenrouter profile` writes and serving, `simulate` and `plan` read.

use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use super::machine::Machine;
use super::measure::Measurement;

/// The format's number; another one is refused.
const VERSION: u32 = 1;

/// Which times of a profile are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Trusted {
    /// The clock on the wall.
    Wall,
    /// Processor time of a model's busiest thread: other work kept the cores busy while it was measured.
    Cpu,
}

/// A whole profile.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    version: u32,
    pub(crate) date: String,
    /// Of the models, their threads and the machine: equal profiles can be compared.
    pub(crate) fingerprint: String,
    pub(crate) trusted: Trusted,
    /// Tokens in the cache of every row, but for those of `context`.
    pub(crate) context: usize,
    pub(crate) machine: Machine,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) noise: Noise,
    #[serde(rename = "model")]
    pub(crate) models: Vec<ModelProfile>,
    #[serde(default)]
    pub(crate) beside: Vec<Beside>,
}

/// Streaming reads, in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bandwidth {
    pub(crate) one_core_gb_s: f64,
    pub(crate) all_cores_gb_s: f64,
}

/// What else ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Noise {
    /// A sample with a larger share of all cores taken by others was discarded.
    pub(crate) limit: f64,
    pub(crate) samples: usize,
    pub(crate) discarded: usize,
    /// The mean share.
    pub(crate) foreign: f64,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelProfile {
    pub(crate) name: String,
    /// What it is, as far as the time of a step depends on it.
    pub(crate) print: String,
    pub(crate) threads: usize,
    pub(crate) weight_bytes: u64,
    /// By rows that feed a token each.
    pub(crate) decode: Vec<Point>,
    /// By tokens that one row feeds.
    pub(crate) extend: Vec<Point>,
    /// By tokens in the cache of one row that feeds one.
    pub(crate) cached: Vec<Point>,
    /// By tokens that one row feeds behind the longest of these contexts. Profiles of older programs have none.
    #[serde(default)]
    pub(crate) far: Vec<Point>,
}

/// The time of one kind of step: medians over the samples.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Point {
    /// Rows, fed tokens, or tokens in the cache.
    #[serde(alias = "rows", alias = "fed", alias = "tokens")]
    pub(crate) at: usize,
    pub(crate) wall_ms: f64,
    /// Processor time of the busiest thread.
    pub(crate) busy_ms: f64,
    /// Processor time of all threads.
    pub(crate) cpu_ms: f64,
    /// Largest less smallest sample over the median, of the times that are trusted.
    pub(crate) spread: f64,
    pub(crate) samples: usize,
    pub(crate) discarded: usize,
}

/// How many times longer a step of `model` takes, of so many rows that feed a token each, while `other` runs one step of
/// `other_rows` such rows after another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Beside {
    pub(crate) model: String,
    pub(crate) other: String,
    pub(crate) rows: usize,
    /// Profiles of older programs have one of each two models, with as many rows on both sides.
    #[serde(default)]
    pub(crate) other_rows: Option<usize>,
    pub(crate) wall: f64,
    /// By processor time of the busiest thread: what caches and memory cost, without waiting for a core.
    pub(crate) busy: f64,
    pub(crate) samples: usize,
    pub(crate) discarded: usize,
}

impl Beside {
    /// Rows of the other model.
    pub(crate) fn other_rows(&self) -> usize {
        self.other_rows.unwrap_or(self.rows)
    }
}

impl Profile {
    /// A profile of this format.
    pub(super) fn new(
        date: String,
        context: usize,
        machine: Machine,
        bandwidth: Bandwidth,
        found: Measurement,
    ) -> Self {
        let Measurement { trusted, noise, models, beside } = found;
        let fingerprint = fingerprint(&machine, &models);
        Self {
            version: VERSION,
            date,
            fingerprint,
            trusted,
            context,
            machine,
            bandwidth,
            noise,
            models,
            beside,
        }
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// One line that names the file and what is wrong.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let named = |problem: String| format!("profile {}: {problem}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
        Self::parse(&text).map_err(named)
    }

    /// Reads and checks a text.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let profile: Self = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        if profile.version != VERSION {
            let found = profile.version;
            return Err(format!("version is {found}; this program reads {VERSION}: measure again"));
        }
        if profile.models.is_empty() {
            return Err("there is no [[model]]".into());
        }
        for (i, model) in profile.models.iter().enumerate() {
            if profile.models[..i].iter().any(|m| m.name == model.name) {
                return Err(format!("two models are named \"{}\"", model.name));
            }
            check_points(model)?;
        }
        for beside in &profile.beside {
            let known = |name: &String| profile.models.iter().any(|m| m.name == *name);
            if !(known(&beside.model) && known(&beside.other)) {
                return Err(format!("[[beside]] names \"{}\" and \"{}\"", beside.model, beside.other));
            }
            if ![beside.wall, beside.busy].iter().all(|s| (0.0..=1e3).contains(s)) {
                return Err(format!("[[beside]] of \"{}\" is out of range", beside.model));
            }
        }
        Ok(profile)
    }

    /// The file's text.
    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::from(
            "# Written by `tokenrouter profile` (docs/profile.md). Times are medians in milliseconds.\n",
        );
        // Writing to a string cannot fail.
        let _ = writeln!(out, "version = {}\ndate = \"{}\"", self.version, self.date);
        let _ = writeln!(out, "fingerprint = \"{}\"", self.fingerprint);
        let _ = writeln!(
            out,
            "# \"wall\", or \"cpu\" when other work kept the cores busy: processor time of the busiest thread."
        );
        let trusted = if self.trusted == Trusted::Wall { "wall" } else { "cpu" };
        let _ = writeln!(out, "trusted = \"{trusted}\"\ncontext = {}\n", self.context);
        let m = &self.machine;
        let cpu = toml::Value::String(m.cpu.clone());
        let _ = writeln!(out, "[machine]\ncpu = {cpu}\ncores = {}\nisa = \"{}\"\n", m.cores, m.isa);
        let b = &self.bandwidth;
        let _ = writeln!(
            out,
            "[bandwidth]\none_core_gb_s = {:.2}\nall_cores_gb_s = {:.2}\n",
            b.one_core_gb_s, b.all_cores_gb_s
        );
        let n = &self.noise;
        let _ = writeln!(
            out,
            "[noise]\nlimit = {:?}\nsamples = {}\ndiscarded = {}\nforeign = {:.3}",
            n.limit, n.samples, n.discarded, n.foreign
        );
        for model in &self.models {
            model.write(&mut out);
        }
        for b in &self.beside {
            let (model, other) = (toml::Value::String(b.model.clone()), toml::Value::String(b.other.clone()));
            let _ = writeln!(
                out,
                "\n[[beside]]\nmodel = {model}\nother = {other}\nrows = {}\nother_rows = {}\nwall = {:.3}\nbusy = {:.3}\nsamples = {}\ndiscarded = {}",
                b.rows,
                b.other_rows(),
                b.wall,
                b.busy,
                b.samples,
                b.discarded
            );
        }
        out
    }
}

impl ModelProfile {
    fn write(&self, out: &mut String) {
        let quoted = |text: &String| toml::Value::String(text.clone());
        let (name, print) = (quoted(&self.name), quoted(&self.print));
        let _ = writeln!(
            out,
            "\n[[model]]\nname = {name}\nprint = {print}\nthreads = {}\nweight_bytes = {}",
            self.threads, self.weight_bytes
        );
        let lists = [
            ("decode", "rows", &self.decode),
            ("extend", "fed", &self.extend),
            ("cached", "tokens", &self.cached),
            ("far", "fed", &self.far),
        ];
        for (list, key, points) in lists {
            let _ = writeln!(out, "{list} = [");
            for p in points {
                let _ = writeln!(
                    out,
                    "  {{ {key} = {}, wall_ms = {:.4}, busy_ms = {:.4}, cpu_ms = {:.4}, spread = {:.3}, samples = {}, discarded = {} }},",
                    p.at, p.wall_ms, p.busy_ms, p.cpu_ms, p.spread, p.samples, p.discarded
                );
            }
            let _ = writeln!(out, "]");
        }
    }
}

/// Every time is one, and each list ascends.
fn check_points(model: &ModelProfile) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("model \"{}\": {what}", model.name));
    if model.decode.first().is_none_or(|p| p.at != 1) {
        return wrong("decode must begin with rows = 1");
    }
    let lists = [
        ("decode", &model.decode),
        ("extend", &model.extend),
        ("cached", &model.cached),
        ("far", &model.far),
    ];
    for (list, points) in lists {
        if !points.is_sorted_by(|a, b| a.at < b.at) {
            return wrong(&format!("{list} does not ascend"));
        }
        for p in points {
            let times = [p.wall_ms, p.busy_ms, p.cpu_ms];
            if !times.iter().all(|ms| (0.0..=1e7).contains(ms)) || p.wall_ms <= 0.0 {
                return wrong(&format!("{list} has a time that is none, at {}", p.at));
            }
        }
    }
    Ok(())
}

fn fingerprint(machine: &Machine, models: &[ModelProfile]) -> String {
    let mut print = crate::text::Fingerprint::new();
    for text in [&machine.cpu, &machine.isa, &machine.cores.to_string()] {
        print.field(text.as_bytes());
    }
    for model in models {
        for text in [&model.name, &model.print, &model.threads.to_string()] {
            print.field(text.as_bytes());
        }
    }
    format!("{:016x}", print.value())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn point(at: usize, wall_ms: f64) -> Point {
        Point { at, wall_ms, busy_ms: wall_ms / 2.0, cpu_ms: wall_ms, spread: 0.02, samples: 5, discarded: 1 }
    }

    /// A pair whose large model is flat to two rows and linear from there, on a machine with an odd name.
    pub(in crate::profile) fn pair() -> Profile {
        let model = |name: &str, one: f64| ModelProfile {
            name: name.into(),
            print: format!("Shape-{name}"),
            threads: 1,
            weight_bytes: 1_000_000,
            decode: vec![point(1, one), point(2, one), point(4, 1.5 * one), point(8, 3.0 * one)],
            extend: vec![point(4, 1.5 * one), point(16, 5.0 * one), point(64, 20.0 * one)],
            cached: vec![point(1_024, 1.25 * one), point(4_096, 1.5 * one)],
            far: vec![point(16, 6.0 * one)],
        };
        let beside = |model: &str, other: &str, rows: [usize; 2], wall: f64| Beside {
            model: model.into(),
            other: other.into(),
            rows: rows[0],
            other_rows: Some(rows[1]),
            wall,
            busy: 1.0,
            samples: 5,
            discarded: 0,
        };
        let machine = Machine { cpu: "A \"fast\" one".into(), cores: 2, isa: "avx2".into() };
        let found = Measurement {
            trusted: Trusted::Wall,
            noise: Noise { limit: 0.1, samples: 40, discarded: 3, foreign: 0.042 },
            models: vec![model("small", 6.0), model("large", 60.0)],
            beside: vec![
                beside("small", "large", [1, 1], 1.25),
                beside("large", "small", [1, 1], 1.1),
                beside("small", "large", [4, 1], 1.125),
                beside("large", "small", [1, 4], 1.05),
                beside("small", "large", [1, 8], 1.05),
                beside("large", "small", [8, 1], 1.0),
            ],
        };
        let bandwidth = Bandwidth { one_core_gb_s: 15.5, all_cores_gb_s: 29.25 };
        Profile::new("2026-11-30T14:00:00Z".into(), 256, machine, bandwidth, found)
    }

    #[test]
    fn what_is_written_is_read() {
        let written = pair();
        assert_eq!(Profile::parse(&written.to_toml()), Ok(written));
    }

    #[test]
    fn files_that_make_no_sense_are_refused_by_name() {
        let text = pair().to_toml();
        for (from, to, expected) in [
            ("version = 1", "version = 2", "version is 2"),
            ("trusted = \"wall\"", "trusted = \"moon\"", "trusted"),
            ("cores = 2", "coers = 2", "coers"),
            ("rows = 1,", "rows = 3,", "decode must begin with rows = 1"),
            ("fed = 16", "fed = 4", "model \"small\": extend does not ascend"),
            ("wall_ms = 7.5000", "wall_ms = nan", "cached has a time that is none, at 1024"),
            ("wall_ms = 7.5000", "wall_ms = -1.0", "cached has a time"),
            ("name = \"large\"", "name = \"small\"", "two models are named \"small\""),
            ("other = \"small\"", "other = \"smal\"", "[[beside]] names \"large\" and \"smal\""),
            ("wall = 1.250", "wall = -1.0", "out of range"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = Profile::parse(&changed).expect_err(to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn the_fingerprint_names_models_threads_and_machine() {
        let same = fingerprint(&pair().machine, &pair().models);
        assert_eq!(pair().fingerprint, same);
        let mut other = pair();
        other.models[1].threads = 2;
        assert_ne!(fingerprint(&other.machine, &other.models), same);
        other = pair();
        other.machine.cores = 4;
        assert_ne!(fingerprint(&other.machine, &other.models), same);
    }
}
