//! Router files with random weights for the demo pair's small model, and their scores outside the engine's loop.

use std::path::{Path, PathBuf};

use tokenrouter_engine::DType;
use tokenrouter_engine::heads::{
    CiterShape, CoLlmShape, HeadShape, ModelPrint, NamedTensor, PromptEnd, QueryShape, R2rShape, RouterFile,
    write_router,
};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::cpu::StepTokens;
use tokenrouter_kernels::sampling::{SampleScratch, SamplingParams};

use super::reference::{RefRequest, Reference, draw_token};
use super::root;

/// The learned routers that judge every token.
pub const KINDS: [&str; 3] = ["r2r", "citer", "co-llm"];
const HIDDEN: usize = 64;
const WIDTH: usize = 12;
const LOGITS: usize = 20;
const CONTEXT: usize = 512;

fn model_dir() -> PathBuf {
    root().join("models/demo/slm")
}

/// Writes a small random head of a kind into `dir`.
pub fn write_random(kind: &str, dir: &Path, threshold: Option<f32>) {
    let mut random = Random(kind.len() as u64);
    let (shape, tensors) = match kind {
        "r2r" => r2r(&mut random),
        "citer" => citer(&mut random),
        "query" => query(&mut random),
        _ => {
            let row = NamedTensor {
                name: "defer_row".into(),
                shape: vec![1, HIDDEN],
                values: random.values(HIDDEN, 0.2),
            };
            (HeadShape::CoLlm(CoLlmShape { defer_id: None }), vec![row])
        }
    };
    let owner = ModelPrint::read(&model_dir()).expect("the small model").owner();
    write_router(dir, &RouterFile { shape, threshold, owner }, &tensors).expect("a router file");
}

/// Numbers between -1 and 1 from a counter.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * self.next()).collect()
    }

    fn linear(&mut self, name: &str, to: usize, from: usize, into: &mut Vec<NamedTensor>) {
        let scale = 2.0 / (from as f32).sqrt();
        let values = self.values(to * from, scale);
        into.push(NamedTensor { name: format!("{name}.weight"), shape: vec![to, from], values });
        into.push(NamedTensor {
            name: format!("{name}.bias"),
            shape: vec![to],
            values: self.values(to, 0.1),
        });
    }

    fn norm(&mut self, name: &str, width: usize, into: &mut Vec<NamedTensor>) {
        let values = self.values(width, 0.2).iter().map(|x| 1.0 + x).collect();
        into.push(NamedTensor { name: format!("{name}.weight"), shape: vec![width], values });
        into.push(NamedTensor {
            name: format!("{name}.bias"),
            shape: vec![width],
            values: self.values(width, 0.1),
        });
    }
}

fn r2r(random: &mut Random) -> (HeadShape, Vec<NamedTensor>) {
    let mut tensors = Vec::new();
    random.linear("logits_projection", HIDDEN, LOGITS, &mut tensors);
    random.linear("combined_projection", WIDTH, 3 * HIDDEN, &mut tensors);
    random.linear("backbone.input_projection", WIDTH, WIDTH, &mut tensors);
    for block in 0..2 {
        let name = |part: &str| format!("backbone.blocks.{block}.{part}");
        random.norm(&name("layer_norm"), WIDTH, &mut tensors);
        random.linear(&name("mlp.0"), 2 * WIDTH, WIDTH, &mut tensors);
        random.linear(&name("mlp.3"), WIDTH, 2 * WIDTH, &mut tensors);
    }
    random.norm("backbone.output_layer.0", WIDTH, &mut tensors);
    random.linear("backbone.output_layer.1", 1, WIDTH, &mut tensors);
    let shape = R2rShape {
        hidden_dims: vec![WIDTH; 2],
        expansion_factor: 2,
        logits_size: LOGITS,
        outputs: 1,
        normalize_input: false,
        layer_norm_eps: 1e-5,
    };
    (HeadShape::R2r(shape), tensors)
}

fn citer(random: &mut Random) -> (HeadShape, Vec<NamedTensor>) {
    let mut tensors = Vec::new();
    random.linear("mlp.0", WIDTH, HIDDEN, &mut tensors);
    random.norm("mlp.1", WIDTH, &mut tensors);
    let mean = random.values(WIDTH, 0.3);
    tensors.push(NamedTensor { name: "mlp.1.running_mean".into(), shape: vec![WIDTH], values: mean });
    let variance = random.values(WIDTH, 0.5).iter().map(|x| 1.0 + x).collect();
    tensors.push(NamedTensor { name: "mlp.1.running_var".into(), shape: vec![WIDTH], values: variance });
    random.linear("mlp.4", WIDTH, WIDTH, &mut tensors);
    random.linear("linear", 1, WIDTH, &mut tensors);
    (HeadShape::Citer(CiterShape { hidden_dims: [WIDTH, WIDTH], batch_norm_eps: 1e-5 }), tensors)
}

fn query(random: &mut Random) -> (HeadShape, Vec<NamedTensor>) {
    let mut tensors = Vec::new();
    random.linear("mlp.0", WIDTH, HIDDEN, &mut tensors);
    random.linear("mlp.2", 1, WIDTH, &mut tensors);
    (HeadShape::Query(QueryShape { hidden_dim: WIDTH }), tensors)
}

/// The small model with one head, one token at a time: no engine, no scheduler, no batch.
pub struct Scorer {
    model: Model,
    pages: Vec<u32>,
    seen: usize,
}

impl Scorer {
    /// The scorer of a router file.
    pub fn new(head: &Path) -> Self {
        let options = ModelOptions {
            threads: 1,
            max_batch_rows: 1,
            max_step_tokens: 1,
            kv_dtype: DType::F16,
            real_vocab: 455,
            context_len: CONTEXT,
        };
        let open = Model::open(&model_dir()).expect("the small model");
        let open = open.with_heads(&[head.to_path_buf()]).expect("the router file");
        let pages = CONTEXT / 16;
        let model = open.build(options, pages).expect("a model");
        Scorer { model, pages: (0..pages as u32).collect(), seen: 0 }
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.seen = 0;
    }

    /// The head's score after `tokens`, when the model proposes `candidate`.
    pub fn score(&mut self, tokens: &[u32], candidate: u32) -> f32 {
        self.feed(tokens);
        self.model.observe_logits(1);
        self.model.score(1, &[candidate]);
        self.model.scores(0)[0]
    }

    /// The score of a prompt by a head that reads whole prompts.
    pub fn prompt_score(&mut self, prompt: &[u32]) -> f32 {
        self.reset();
        self.feed(prompt);
        let step = StepTokens {
            token_row: &[0],
            positions: &[prompt.len() as u32 - 1],
            row_pages: &self.pages,
            row_page_start: &[0, self.pages.len() as u32],
        };
        self.model.score(1, &[0]);
        self.model.score_prompts(1, &step, &[PromptEnd { row: 0, sampled: 0, tokens: prompt.len() }]);
        self.model.scores(0)[0]
    }

    fn feed(&mut self, tokens: &[u32]) {
        for at in self.seen..tokens.len() {
            let step = StepTokens {
                token_row: &[0],
                positions: &[at as u32],
                row_pages: &self.pages,
                row_page_start: &[0, self.pages.len() as u32],
            };
            self.model.forward(&tokens[at..=at], &step, &[0]);
        }
        self.seen = tokens.len();
    }
}

/// The sequential loop of a router that returns after one token, greedy: the small model's candidate is dropped and the
/// large one writes the token where `asks` says so of the score.
pub fn run_scored(
    reference: &Reference,
    scorer: &mut Scorer,
    asks: impl Fn(f32) -> bool,
    prompt: &[u32],
    max_tokens: usize,
) -> (Vec<u32>, Vec<u8>) {
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = RefRequest { prompt, max_tokens, sampling, seed: 0, choice: 0 };
    let mut caches = reference.models.each_ref().map(|m| m.cache());
    let mut scratch = SampleScratch::new(reference.models[0].vocab.max(reference.models[1].vocab));
    let mut tokens = prompt.to_vec();
    let mut writers = Vec::new();
    scorer.reset();
    while writers.len() < max_tokens {
        let mut propose = |owner: usize| {
            let mut logits = reference.models[owner].logits(&mut caches[owner], &tokens);
            draw_token(&mut logits, &request, &tokens, owner, &mut scratch)
        };
        let mut token = propose(0);
        let delegated = asks(scorer.score(&tokens, token));
        if delegated {
            token = propose(1);
        }
        tokens.push(token);
        writers.push(u8::from(delegated));
        if reference.eos.contains(&token) {
            break;
        }
    }
    (tokens.split_off(prompt.len()), writers)
}
