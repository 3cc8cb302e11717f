//! 9.7 (g): ME draws by its weights, and the next token follows the weighted mixture.

use crate::drive::{A, B, fake, request, run};
use tokenrouter_scheduler::router::{Mixture, draw};
use tokenrouter_scheduler::*;

const TOKENS: usize = 6;
/// What three sampling models say after any prefix.
const SPEAKS: [[f64; TOKENS]; 3] =
    [[0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.2, 0.2, 0.4], [0.1, 0.1, 0.6, 0.1, 0.05, 0.05]];

/// Sampled with a draw of its own, keyed as an engine's is.
fn sampled(seed: u64, tokens: &[u32], model: ModelId) -> RowResult {
    let mut left = draw(seed, 0, tokens.len() as u32, 2_000, model);
    let shares = SPEAKS[model.index()];
    let token = shares.iter().position(|p| {
        left -= p;
        left < 0.0
    });
    RowResult { token: 10 + token.unwrap_or(TOKENS - 1) as u32, ..RowResult::default() }
}

fn chi_square(counts: &[usize], shares: &[f64]) -> f64 {
    let total: usize = counts.iter().sum();
    let expected = shares.iter().map(|p| p * total as f64);
    counts.iter().zip(expected).map(|(&n, e)| (n as f64 - e).powi(2) / e).sum()
}

/// Answers of three tokens for many seeds.
fn answers(weights: &[f64], draw_at_admission: bool) -> Vec<(Vec<u32>, Vec<ModelId>)> {
    let mut all = Vec::new();
    for block in 0..160u64 {
        let router = Mixture::new(A, weights, draw_at_admission).unwrap();
        let seed = |client: u64| 60 * block + client;
        let requests =
            (0..60).map(|client| NewRequest { prompt: vec![1], ..request(seed(client), 3) }).collect();
        let say = |client: u64, tokens: &[u32], model| sampled(seed(client), tokens, model);
        all.extend(run(Box::new(router), requests, &say).into_iter().map(|a| (a.tokens, a.writers)));
    }
    all
}

/// 0.9999 quantiles of chi-square with 1, 2 and 5 degrees of freedom. The draws are fixed, so this never flakes.
const LIMITS: [f64; 6] = [0.0, 15.14, 18.42, 0.0, 0.0, 25.74];

#[test]
fn over_seeds_the_next_token_follows_the_weighted_mixture() {
    for weights in [&[0.7, 0.3][..], &[0.5, 0.3, 0.2]] {
        let all = answers(weights, true);
        let mixture: Vec<f64> =
            (0..TOKENS).map(|t| weights.iter().zip(SPEAKS).map(|(w, p)| w * p[t]).sum()).collect();
        for place in 0..3 {
            let mut tokens = [0; TOKENS];
            let mut draws = vec![0; weights.len()];
            for (answer, writers) in &all {
                tokens[answer[place] as usize - 10] += 1;
                draws[writers[place].index()] += 1;
            }
            let (by_token, by_model) = (chi_square(&tokens, &mixture), chi_square(&draws, weights));
            assert!(by_token < LIMITS[TOKENS - 1], "token {place}: {tokens:?}, chi-square {by_token}");
            assert!(by_model < LIMITS[weights.len() - 1], "draw {place}: {draws:?}, chi-square {by_model}");
            // The test can tell: one model's own words are far away.
            assert!(chi_square(&tokens, &SPEAKS[0]) > 100.0);
        }
        // Draws of neighbouring positions are independent.
        let mut pairs = vec![0; weights.len() * weights.len()];
        for (_, writers) in &all {
            pairs[writers[0].index() * weights.len() + writers[1].index()] += 1;
        }
        let shares: Vec<f64> = weights.iter().flat_map(|a| weights.iter().map(move |b| a * b)).collect();
        let chi = chi_square(&pairs, &shares);
        assert!(chi < 31.83, "pairs {pairs:?}, chi-square {chi}");
    }
}

#[test]
fn without_a_draw_at_admission_the_entry_writes_the_first_token() {
    let all = answers(&[0.5, 0.5], false);
    assert!(all.iter().all(|(_, writers)| writers[0] == A));
    let second = all.iter().filter(|(_, writers)| writers[1] == B).count();
    assert!(chi_square(&[second, all.len() - second], &[0.5, 0.5]) < LIMITS[1], "{second}");
}

#[test]
fn a_long_answer_is_shared_by_the_weights_and_models_never_drawn_do_no_work() {
    for weights in [[3.0, 5.0, 2.0, 0.0], [1.0, 0.0, 1.0, 0.0]] {
        let router = Mixture::new(A, &weights, true).unwrap();
        let requests = (0..8).map(|seed| NewRequest { ignore_eos: true, ..request(seed, 600) }).collect();
        let mut counts = [0; 4];
        for answer in run(Box::new(router), requests, &fake) {
            answer.writers.iter().for_each(|w| counts[w.index()] += 1);
            assert_eq!(answer.usage.discarded, [0; MAX_MODELS], "every candidate is kept");
            let drawn = |model: usize| weights[model] > 0.0;
            assert!((0..4).all(|m| drawn(m) == (answer.usage.steps[m] > 0)), "{:?}", answer.usage);
        }
        let sum: f64 = weights.iter().sum();
        let taking: Vec<usize> = (0..4).filter(|&m| weights[m] > 0.0).collect();
        let (n, w): (Vec<_>, Vec<_>) = taking.iter().map(|&m| (counts[m], weights[m] / sum)).unzip();
        assert!(chi_square(&n, &w) < LIMITS[n.len() - 1], "{counts:?}");
    }
}
