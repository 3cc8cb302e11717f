//! Numerical truth: log-probabilities of ten random tiny models against Hugging Face transformers
//! (`tests/golden/README.md`), for every way in which a token can reach a model: whole-prompt extend,
//! token by token, mixed batches on scattered pages, and through a handoff and back.
//!
//! The bounds are the ones that the README derives: with a cache in f32 mean 1e-5, 99th percentile
//! 5e-5, maximum 2e-4; with a narrow cache twice the recorded noise of that type. Measured, the worst
//! model: with a cache in f32 mean 2.5e-6, 99th percentile 1.2e-5, maximum 3.0e-5 in every one of the
//! four ways; with a narrow cache the recorded noise itself, to two digits. Run with
//! `-- --nocapture` to see the numbers.

mod support;

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use support::GOLDEN_MODELS;
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{PAGE_TOKENS, StepTokens};

const PAGES: usize = 32;

/// One golden sequence: its ids, and the log-probabilities `[tokens, vocab]` after each of them.
struct Sequence {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
}

struct Golden {
    name: &'static str,
    dir: PathBuf,
    sequences: Vec<Sequence>,
    facts: Value,
}

impl Golden {
    fn load(name: &'static str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let read = |name: String| tensors.tensor(&name).unwrap().data().to_vec();
        let four = |bytes: Vec<u8>| bytes.chunks(4).map(|b| b.try_into().unwrap()).collect::<Vec<[u8; 4]>>();
        let sequences = (0..3)
            .map(|n| Sequence {
                ids: four(read(format!("ids.{n}"))).into_iter().map(u32::from_le_bytes).collect(),
                logprobs: four(read(format!("logprobs.{n}"))).into_iter().map(f32::from_le_bytes).collect(),
            })
            .collect();
        let facts = serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
        Self { name, dir, sequences, facts }
    }

    /// Mean, 99th percentile and maximum that a correct engine keeps.
    fn bounds(&self, kv: DType) -> [f64; 3] {
        let twice =
            |line: &str| ["mean", "p99", "max"].map(|k| 2.0 * self.facts["noise"][line][k].as_f64().unwrap());
        match kv {
            DType::F32 => [1e-5, 5e-5, 2e-4],
            DType::F16 => twice("kv_f16"),
            DType::Bf16 => twice("kv_bf16"),
        }
    }

    fn model(&self, kv_dtype: DType, threads: usize) -> Model {
        build(&self.dir, kv_dtype, threads)
    }
}

fn build(dir: &Path, kv_dtype: DType, threads: usize) -> Model {
    let open = Model::open(dir).unwrap();
    let real_vocab = open.config().vocab_size;
    let options = ModelOptions {
        threads,
        max_batch_rows: 256,
        max_step_tokens: 256,
        kv_dtype,
        real_vocab,
        context_len: 4096,
    };
    let mut model = open.build(options, PAGES).unwrap();
    for page in 0..PAGES as u32 {
        model.poison_page(page);
    }
    model
}

/// Absolute differences in log-probability, over all tokens of all compared positions.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    /// Compares the logits after position `position` with the golden row.
    fn add(&mut self, logits: &[f32], golden: &Sequence, position: usize) {
        let top = logits.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
        let sum: f64 = logits.iter().map(|x| (f64::from(*x) - top).exp()).sum();
        let lse = top + sum.ln();
        let row = &golden.logprobs[position * logits.len()..][..logits.len()];
        self.0.extend(logits.iter().zip(row).map(|(x, want)| (f64::from(*x) - lse - f64::from(*want)).abs()));
    }

    fn check(mut self, what: &str, bounds: [f64; 3]) {
        assert!(self.0.iter().all(|e| e.is_finite()), "{what}: a log-probability is not finite");
        self.0.sort_by(f64::total_cmp);
        let count = self.0.len();
        let found =
            [self.0.iter().sum::<f64>() / count as f64, self.0[(count - 1) * 99 / 100], self.0[count - 1]];
        let [mean, p99, max] = found;
        println!("{what:44} mean {mean:.1e} p99 {p99:.1e} max {max:.1e} of {count}, bounds {bounds:?}");
        assert!(found.iter().zip(&bounds).all(|(f, b)| f <= b), "{what}: {found:?} above {bounds:?}");
    }
}

/// A row of a step: which sequence, its pages, the first position, how many tokens.
#[derive(Clone, Copy)]
struct Row<'a> {
    sequence: usize,
    ids: &'a [u32],
    start: usize,
    len: usize,
}

/// Pages of a sequence, scattered; different sequences share none.
fn pages(sequence: usize, len: usize) -> Vec<u32> {
    // 13 has no common factor with 32, so the walk meets every page once; 10 pages per sequence.
    (0..len.div_ceil(PAGE_TOKENS)).map(|i| (((sequence * 10 + i) * 13 + 5) % PAGES) as u32).collect()
}

/// Feeds the rows in one step and gives the logits of every fed token to `each(row, position, logits)`.
fn feed(model: &mut Model, rows: &[Row<'_>], mut each: impl FnMut(&Row<'_>, usize, &[f32])) {
    let (mut ids, mut token_row, mut positions) = (vec![], vec![], vec![]);
    let (mut row_pages, mut row_page_start) = (vec![], vec![0]);
    for (number, row) in rows.iter().enumerate() {
        ids.extend(&row.ids[row.start..row.start + row.len]);
        token_row.extend((0..row.len).map(|_| number as u32));
        positions.extend((row.start..row.start + row.len).map(|p| p as u32));
        row_pages.extend(pages(row.sequence, row.ids.len()));
        row_page_start.push(row_pages.len() as u32);
    }
    let step = StepTokens {
        token_row: &token_row,
        positions: &positions,
        row_pages: &row_pages,
        row_page_start: &row_page_start,
    };
    let wanted: Vec<u32> = (0..ids.len() as u32).collect();
    let vocab = model.config().vocab_size;
    let logits = model.forward(&ids, &step, &wanted);
    for ((logits, row), position) in logits.chunks(vocab).zip(&token_row).zip(&positions) {
        each(&rows[*row as usize], *position as usize, logits);
    }
}

fn row(golden: &Golden, sequence: usize, start: usize, len: usize) -> Row<'_> {
    Row { sequence, ids: &golden.sequences[sequence].ids, start, len }
}

/// All positions of all sequences, each sequence fed whole.
fn whole(golden: &Golden, model: &mut Model) -> (Errors, Vec<u32>) {
    let (mut errors, mut bits) = (Errors::default(), Vec::new());
    for (n, sequence) in golden.sequences.iter().enumerate() {
        feed(model, &[row(golden, n, 0, sequence.ids.len())], |_, position, logits| {
            errors.add(logits, sequence, position);
            bits.extend(logits.iter().map(|x| x.to_bits()));
        });
    }
    (errors, bits)
}

const CACHES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

#[test]
fn whole_prompt_extend() {
    for golden in GOLDEN_MODELS.map(Golden::load) {
        for kv in CACHES {
            let (errors, _) = whole(&golden, &mut golden.model(kv, 1));
            errors.check(&format!("{} whole, {kv:?} cache", golden.name), golden.bounds(kv));
        }
    }
}

#[test]
fn token_by_token() {
    for golden in GOLDEN_MODELS.map(Golden::load) {
        for kv in CACHES {
            let mut model = golden.model(kv, 1);
            let mut errors = Errors::default();
            for (n, sequence) in golden.sequences.iter().enumerate() {
                for position in 0..sequence.ids.len() {
                    feed(&mut model, &[row(&golden, n, position, 1)], |_, p, logits| {
                        errors.add(logits, sequence, p)
                    });
                }
            }
            errors.check(&format!("{} token by token, {kv:?} cache", golden.name), golden.bounds(kv));
        }
    }
}

#[test]
fn mixed_batches() {
    for golden in GOLDEN_MODELS.map(Golden::load) {
        let kv = DType::F32;
        let mut model = golden.model(kv, 2);
        let mut errors = Errors::default();
        let mut done = [0; 3];
        for turn in 0.. {
            let mut rows = Vec::new();
            for n in 0..3 {
                let left = golden.sequences[n].ids.len() - done[n];
                let take = [1, 7, 1, 16, 3][(turn + 2 * n) % 5].min(left);
                if take > 0 {
                    rows.push(row(&golden, n, done[n], take));
                    done[n] += take;
                }
            }
            if rows.is_empty() {
                break;
            }
            feed(&mut model, &rows, |row, p, logits| errors.add(logits, &golden.sequences[row.sequence], p));
        }
        errors.check(&format!("{} mixed batches", golden.name), golden.bounds(kv));
    }
}

/// Two models write one sequence in turns. Each keeps a watermark and, when its turn comes, feeds
/// what it has not seen: one token while it stays in charge, a suffix after the other's turn. The
/// second model reads the configuration written in the other style, from the same weights.
#[test]
fn through_a_handoff_and_back() {
    for golden in GOLDEN_MODELS.map(Golden::load) {
        let other = other_style(&golden);
        let kv = DType::F32;
        let mut models = [golden.model(kv, 1), build(other.path(), kv, 2)];
        let mut errors = [Errors::default(), Errors::default()];
        for (n, sequence) in golden.sequences.iter().enumerate() {
            let mut watermark = [0; 2];
            // The prompt is the first third; then turns of 1, 2, 3, 4, 5 tokens and again.
            for (turn, len) in (sequence.ids.len() / 3..=sequence.ids.len()).skip(1).enumerate() {
                let who = [0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0][turn % 15];
                let part = row(&golden, n, watermark[who], len - watermark[who]);
                feed(&mut models[who], &[part], |_, p, logits| errors[who].add(logits, sequence, p));
                watermark[who] = len;
            }
        }
        for (who, errors) in errors.into_iter().enumerate() {
            errors.check(&format!("{} handoff, model {who}", golden.name), golden.bounds(kv));
        }
    }
}

/// Both ways of writing the rotary settings give the same bits.
#[test]
fn both_configuration_styles_are_one_model() {
    for golden in GOLDEN_MODELS.map(Golden::load) {
        let (_, bits) = whole(&golden, &mut golden.model(DType::F32, 1));
        let (_, other) = whole(&golden, &mut build(other_style(&golden).path(), DType::F32, 2));
        assert!(bits == other, "{}", golden.name);
    }
}

#[test]
fn eos_ids_come_from_both_files() {
    let golden = Golden::load("qwen3-tied");
    let generation: Value =
        serde_json::from_slice(&std::fs::read(golden.dir.join("generation_config.json")).unwrap()).unwrap();
    let ids = Model::open(&golden.dir).unwrap().config().eos_ids.clone();
    for id in generation["eos_token_id"].as_array().unwrap() {
        assert!(ids.contains(&(id.as_u64().unwrap() as u32)), "{id} not in {ids:?}");
    }
}

/// A copy of a checkpoint whose `config.json` is the one in the other style; removed at the end.
struct Copied(PathBuf);

impl Copied {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // A folder left behind in the system's temporary place harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn other_style(golden: &Golden) -> Copied {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("tokenrouter-golden-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for entry in std::fs::read_dir(&golden.dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if name != "config.json" {
            let name = if name == "config-other-style.json" { "config.json".into() } else { name };
            std::fs::copy(entry.path(), dir.join(name)).unwrap();
        }
    }
    Copied(dir)
}
