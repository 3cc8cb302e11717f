//! A router written outside the crates, through the public API only: the example that the README points to.
//!
//! It looks at the candidate, which makes it the hardest case for sampling: the large model's token must follow
//! the large model's own distribution whatever the small model had drawn at that position.

mod support;

use std::collections::HashMap;

use support::engine::{demo_config, request, run_all, start, stop};
use support::golden_prompt;
use support::reference::{RefModel, Reference};
use tokenrouter_engine::{RouteConfig, SamplingParams};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, sample};
use tokenrouter_scheduler::router::{
    ParamReader, Payload, ReceiveRow, Registry, RouteRow, Router, RouterError, SignalSet, StepView, Verdict,
    Visit,
};
use tokenrouter_scheduler::{ModelId, ModelSet, conformance};

const SMALL: ModelId = ModelId(0);
const LARGE: ModelId = ModelId(1);

/// Drops every candidate of the small model whose id is even and lets the large model write that one token.
struct EvenGoesUp;

impl Router for EvenGoesUp {
    fn name(&self) -> &str {
        "even-goes-up"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        SMALL
    }

    fn reach(&self) -> ModelSet {
        ModelSet::first(2)
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let stays_small = match step.model {
                SMALL => row.candidate % 2 == 1,
                _ => row.visit.is_last(),
            };
            *to = if stays_small { SMALL } else { LARGE };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == SMALL { Verdict::Drop } else { Verdict::Keep }
    }

    fn receive(&self, row: &ReceiveRow, _from: ModelId, _payload: &Payload, visit: &mut Visit) {
        if row.model == LARGE {
            visit.limit = 1;
        }
    }
}

fn registry() -> Registry {
    let mut registry = Registry::builtin();
    let factory =
        |_: &mut ParamReader<'_>| -> Result<Box<dyn Router>, RouterError> { Ok(Box::new(EvenGoesUp)) };
    registry.register("even-goes-up", factory).expect("a new name");
    registry
}

fn route() -> RouteConfig {
    RouteConfig { name: "up".into(), router: "even-goes-up".into(), params: Default::default() }
}

#[test]
fn it_passes_the_conformance_kit() {
    conformance::check(|| Box::new(EvenGoesUp), 2).expect("a conforming router");
}

#[test]
fn the_verdict_reaches_the_batch() {
    let engine = start(&demo_config(vec![route()]), &registry());
    let prompt = golden_prompt();
    let requests = (0..8).map(|i| request(i, &prompt, 0, 40)).collect();
    for (_, answer) in run_all(&engine, requests) {
        for (token, writer) in answer.tokens.iter().zip(&answer.writers) {
            assert!(*writer == 1 || token % 2 == 1, "the small model's even tokens were all dropped");
        }
        assert!(answer.writers.contains(&1), "the large model wrote something");
        assert_eq!(answer.usage.discarded[0], answer.usage.committed[1], "one token for every dropped one");
    }
    stop(&engine);
}

const DRAWS: u64 = 4000;

/// Replaced tokens against the large model's distribution, at temperature 1.
#[test]
fn replaced_tokens_follow_the_large_models_distribution() {
    let reference = Reference::demo();
    let engine = start(&demo_config(vec![route()]), &registry());
    // Where the story begins, and inside of it: many tokens can follow.
    let prompt = golden_prompt();
    let prompts = [&prompt[..3], &prompt[..11]];
    for prompt in prompts {
        let [small, large] = reference.models.each_ref().map(|m| probabilities(m, prompt));
        let requests = (0..DRAWS).map(|seed| {
            let mut request = request(seed, prompt, 0, 1);
            request.seed = seed;
            request.sampling = SamplingParams::default();
            request
        });
        let mut counts = HashMap::<u32, u64>::new();
        for batch in requests.collect::<Vec<_>>().chunks(200) {
            for (_, answer) in run_all(&engine, batch.to_vec()) {
                if answer.writers == [1] {
                    *counts.entry(answer.tokens[0]).or_default() += 1;
                }
            }
        }
        let replaced: u64 = counts.values().sum();
        assert!(replaced > DRAWS / 10, "the router replaced {replaced} tokens of {DRAWS}");
        let fit = chi_square(&counts, &large);
        assert!(fit.accepted(), "against the large model: {fit:?}");
        // The test can tell: the small model's distribution is refused, and so is one draw shared by both models.
        assert!(!chi_square(&counts, &small).accepted(), "the models differ here");
        let shared = shared_draw_counts(&reference, prompt);
        assert!(!chi_square(&shared, &large).accepted(), "a shared draw would be seen");
    }
    stop(&engine);
}

fn probabilities(model: &RefModel, prompt: &[u32]) -> Vec<f64> {
    let logits = model.logits(&mut model.cache(), prompt);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|l| f64::from(l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// What would be counted if the large model reused the small model's draw.
fn shared_draw_counts(reference: &Reference, prompt: &[u32]) -> HashMap<u32, u64> {
    let [small, large] = reference.models.each_ref().map(|m| m.logits(&mut m.cache(), prompt));
    let mut scratch = SampleScratch::new(small.len().max(large.len()));
    let mut counts = HashMap::new();
    for seed in 0..DRAWS {
        let mut draw = |logits: &[f32]| {
            let key = DrawKey {
                seed,
                choice: 0,
                position: prompt.len() as u32,
                purpose: Purpose::Sample,
                model: 0,
            };
            let params = SamplingParams::default();
            let input =
                SampleInput { params: &params, key, history: &[], prompt_len: prompt.len(), forbidden: &[] };
            sample(&mut logits.to_vec(), &input, &mut scratch).expect("finite logits")
        };
        if draw(&small) % 2 == 0 {
            *counts.entry(draw(&large)).or_default() += 1;
        }
    }
    counts
}

#[derive(Debug)]
struct Fit {
    statistic: f64,
    degrees: f64,
}

impl Fit {
    /// Below the 99.99 % quantile of the chi-square distribution (Wilson-Hilferty).
    fn accepted(&self) -> bool {
        let k = self.degrees;
        let quantile = k * (1.0 - 2.0 / (9.0 * k) + 3.719 * (2.0 / (9.0 * k)).sqrt()).powi(3);
        self.statistic < quantile
    }
}

/// Pearson's statistic; tokens expected fewer than five times share one bin.
fn chi_square(counts: &HashMap<u32, u64>, expected: &[f64]) -> Fit {
    let total: u64 = counts.values().sum();
    let (mut statistic, mut bins) = (0.0_f64, 0.0_f64);
    let (mut rare_seen, mut rare_wanted) = (0.0_f64, 0.0_f64);
    for (token, p) in expected.iter().enumerate() {
        let seen = counts.get(&(token as u32)).copied().unwrap_or(0) as f64;
        let wanted = p * total as f64;
        if wanted < 5.0 {
            rare_seen += seen;
            rare_wanted += wanted;
        } else {
            statistic += (seen - wanted).powi(2) / wanted;
            bins += 1.0;
        }
    }
    if rare_wanted > 0.0 {
        statistic += (rare_seen - rare_wanted).powi(2) / rare_wanted.max(1.0);
        bins += 1.0;
    }
    Fit { statistic, degrees: (bins - 1.0).max(1.0) }
}
