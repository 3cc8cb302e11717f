//! Sampling against a written-out reference, and against the distributions it should follow.

use crate::common::{ISAS, Random};
use tokenrouter_kernels::cpu::math::exp;
use tokenrouter_kernels::logprobs::LogSoftmax;
use tokenrouter_kernels::rng::{self, DrawKey, Purpose};
use tokenrouter_kernels::sampling::{
    NonFinite, SampleInput, SampleScratch, SamplingParams, sample, signals_and_sample,
};
use tokenrouter_kernels::signals::{SignalFlags, signals_on};

fn key(position: u32) -> DrawKey {
    DrawKey { seed: 42, choice: 0, position, purpose: Purpose::Sample, model: 0 }
}

fn plain() -> SamplingParams {
    SamplingParams::default()
}

fn draw(logits: &[f32], params: &SamplingParams, position: u32) -> Result<u32, NonFinite> {
    draw_with(logits, params, position, &[], 0, &[])
}

/// Draws on both paths, which must agree.
fn draw_with(
    logits: &[f32],
    params: &SamplingParams,
    position: u32,
    history: &[u32],
    prompt_len: usize,
    forbidden: &[u32],
) -> Result<u32, NonFinite> {
    let input = SampleInput { params, key: key(position), history, prompt_len, forbidden };
    let tokens = ISAS.map(|isa| {
        let mut scratch = SampleScratch::on(isa, logits.len());
        let first = sample(&mut logits.to_vec(), &input, &mut scratch);
        assert_eq!(
            sample(&mut logits.to_vec(), &input, &mut scratch),
            first,
            "a used scratch is as good as new"
        );
        first
    });
    assert_eq!(tokens[0], tokens[1], "AVX2 and portable");
    tokens[0]
}

/// The documented rules in the plainest form: full sort, no selection.
fn reference(
    raw: &[f32],
    params: &SamplingParams,
    position: u32,
    history: &[u32],
    prompt_len: usize,
    forbidden: &[u32],
) -> Option<u32> {
    let usable = |x: &[f32]| {
        x.iter().all(|x| !x.is_nan() && *x != f32::INFINITY) && x.iter().any(|x| *x != f32::NEG_INFINITY)
    };
    let mut x = raw.to_vec();
    if !usable(&x) {
        return None;
    }
    for (id, bias) in &params.logit_bias {
        if (*id as usize) < x.len() {
            x[*id as usize] += bias;
        }
    }
    for id in forbidden.iter().filter(|id| (**id as usize) < raw.len()) {
        x[*id as usize] = f32::NEG_INFINITY;
    }
    for id in 0..x.len() {
        let seen = history.iter().any(|h| *h as usize == id);
        let output = history[prompt_len.min(history.len())..].iter().filter(|h| **h as usize == id).count();
        if seen && params.repetition_penalty != 1.0 {
            let p = params.repetition_penalty;
            x[id] = if x[id] > 0.0 { x[id] / p } else { x[id] * p };
        }
        if output > 0 {
            x[id] -= params.frequency_penalty * output as f32;
            x[id] -= params.presence_penalty;
        }
    }
    if !usable(&x) {
        return None;
    }
    let mut ranks: Vec<usize> = (0..x.len()).collect();
    ranks.sort_by(|a, b| x[*b].partial_cmp(&x[*a]).unwrap().then(a.cmp(b)));
    if params.temperature < 1e-5 {
        return Some(ranks[0] as u32);
    }
    let max = x[ranks[0]];
    let weight = |id: usize| {
        let e = exp((x[id] - max) / params.temperature);
        (e * 1_073_741_824.0).round_ties_even() as u64
    };
    if params.top_k > 0 {
        ranks.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: u64 = ranks.iter().map(|id| weight(*id)).sum();
        let mut before = 0;
        let mut keep = 0;
        while keep < ranks.len() && (keep == 0 || (before as f64) < f64::from(params.top_p) * total as f64) {
            before += weight(ranks[keep]);
            keep += 1;
        }
        ranks.truncate(keep);
    }
    let best = ranks[0];
    ranks.retain(|id| *id == best || weight(*id) as f64 >= f64::from(params.min_p) * 1_073_741_824.0);
    ranks.sort();
    let total: u64 = ranks.iter().map(|id| weight(*id)).sum();
    let target = ((u128::from(rng::bits(&key(position))) * u128::from(total)) >> 64) as u64;
    let mut sum = 0;
    ranks
        .into_iter()
        .find(|id| {
            sum += weight(*id);
            sum > target
        })
        .map(|id| id as u32)
}

#[test]
fn equals_the_written_out_reference() {
    let mut random = Random(11);
    for case in 0..3000 {
        let vocab = [1, 2, 7, 8, 30, 100, 333, 1500][random.below(8)];
        let spread = [0.5, 4.0, 20.0][random.below(3)];
        // Rounded, so that ties are frequent.
        let mut logits: Vec<f32> =
            random.vec(vocab).iter().map(|x| (x * 16.0).round() / 16.0 * spread).collect();
        if random.below(3) == 0 {
            logits[vocab * 3 / 4..].fill(f32::NEG_INFINITY);
        }
        let history: Vec<u32> = (0..random.below(12)).map(|_| random.below(vocab + 2) as u32).collect();
        let prompt_len = random.below(history.len() + 1);
        let pick = |random: &mut Random, values: &[f32]| values[random.below(values.len())];
        let params = SamplingParams {
            temperature: pick(&mut random, &[0.0, 1e-8, 2e-5, 0.7, 1.0, 1.0, 3.0, f32::INFINITY]),
            top_k: [0, 0, 1, 3, 40, 65, 5000][random.below(7)],
            top_p: pick(&mut random, &[1.0, 1.0, 0.0, 0.3, 0.9, 0.999]),
            min_p: pick(&mut random, &[0.0, 0.0, 0.05, 0.9, 1.0]),
            repetition_penalty: pick(&mut random, &[1.0, 1.3, 0.5]),
            presence_penalty: pick(&mut random, &[0.0, 0.5, -1.0]),
            frequency_penalty: pick(&mut random, &[0.0, 0.25]),
            logit_bias: (0..random.below(3)).map(|_| (random.below(vocab + 3) as u32, 2.0)).collect(),
        };
        let forbidden: Vec<u32> = (0..random.below(3)).map(|_| random.below(vocab + 3) as u32).collect();
        let expected = reference(&logits, &params, case, &history, prompt_len, &forbidden);
        let found = draw_with(&logits, &params, case, &history, prompt_len, &forbidden);
        assert_eq!(found.ok(), expected, "case {case}, vocabulary {vocab}, {params:?}");
    }
}

/// Large vocabularies go through the partial selection with every size of nucleus.
#[test]
fn large_vocabularies_equal_the_reference() {
    let mut random = Random(12);
    for (case, spread) in [0.1, 3.0, 12.0].into_iter().enumerate() {
        let logits: Vec<f32> = random.vec(20_011).iter().map(|x| x * spread).collect();
        for (top_k, top_p, min_p) in [
            (0, 0.97, 0.0),
            (50, 1.0, 0.0),
            (700, 0.9, 0.0),
            (0, 0.5, 0.01),
            (15_000, 1.0, 0.0),
            (15_000, 0.98, 0.001),
            (0, 0.999_999_9, 0.0),
            (0, 1.0, 0.2),
        ] {
            for temperature in [1.0, 0.6] {
                let params = SamplingParams { top_k, top_p, min_p, temperature, ..plain() };
                let position = case as u32;
                let expected = reference(&logits, &params, position, &[], 0, &[]);
                assert_eq!(draw(&logits, &params, position).ok(), expected, "{params:?}");
            }
        }
    }
}

/// A wide nucleus ends among equals: the lower ids stay.
#[test]
fn a_nucleus_that_ends_in_a_tie_equals_the_reference() {
    let mut random = Random(14);
    for vocab in [2_000, 5_003] {
        for levels in [1.0, 3.0, 20.0] {
            let logits: Vec<f32> = random.vec(vocab).iter().map(|x| (x * levels).round() / levels).collect();
            for (position, top_p) in (0..).zip([0.2, 0.35, 0.5, 0.77, 0.9, 0.99, 0.3, 0.6, 0.8, 0.95]) {
                let params = SamplingParams { top_p, ..plain() };
                let expected = reference(&logits, &params, position, &[], 0, &[]);
                assert_eq!(draw(&logits, &params, position).ok(), expected, "{levels} levels, {params:?}");
            }
        }
    }
}

#[test]
fn signals_and_a_draw_in_one_are_the_same_as_one_after_the_other() {
    let mut random = Random(15);
    let key = key(7);
    for case in 0..400 {
        let vocab = [1, 9, 300, 4_099][random.below(4)];
        let mut logits: Vec<f32> = random.vec(vocab).iter().map(|x| x * 6.0).collect();
        match case % 8 {
            0 => logits[random.below(vocab)] = f32::NAN,
            1 => logits[random.below(vocab)] = f32::INFINITY,
            2 => logits[vocab / 2..].fill(f32::NEG_INFINITY),
            3 => logits.fill(f32::NEG_INFINITY),
            _ => {}
        }
        let params = SamplingParams {
            temperature: [0.0, 1.0, 0.7][random.below(3)],
            top_k: [0, 0, 5][random.below(3)],
            top_p: [1.0, 0.9][random.below(2)],
            repetition_penalty: [1.0, 1.2][random.below(2)],
            logit_bias: if random.below(4) == 0 { vec![(0, 3.0)] } else { Vec::new() },
            ..plain()
        };
        let forbidden: &[u32] = if random.below(3) == 0 { &[0] } else { &[] };
        let input = SampleInput { params: &params, key, history: &[1, 2], prompt_len: 1, forbidden };
        for isa in ISAS {
            let mut scratch = SampleScratch::on(isa, vocab);
            let wanted = signals_on(isa, &logits, SignalFlags::ALL);
            let softmax = LogSoftmax::new(isa, &logits);
            let token = sample(&mut logits.clone(), &input, &mut scratch);
            let found = signals_and_sample(&mut logits.clone(), SignalFlags::ALL, &input, &mut scratch);
            assert_eq!((found.softmax, found.token), (softmax, token), "{params:?}");
            // As text, where a NaN equals itself.
            assert_eq!(format!("{:?}", found.signals), format!("{wanted:?}"), "{params:?}");
        }
    }
}

/// Chi-square of 40,000 draws, 1 in 10^6 to fail for a right sampler.
fn assert_follows(logits: &[f32], params: &SamplingParams, probabilities: &[f64], limit: f64) {
    let draws = 40_000;
    let mut counts = vec![0u32; logits.len()];
    for position in 0..draws {
        counts[draw(logits, params, position).unwrap() as usize] += 1;
    }
    let mut chi = 0.0;
    for (count, p) in counts.iter().zip(probabilities) {
        if *p == 0.0 {
            assert_eq!(*count, 0, "a token of probability 0 was drawn");
        } else {
            let expected = p * f64::from(draws);
            chi += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    assert!(chi < limit, "chi square {chi}, limit {limit}: {counts:?}");
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.iter().map(|x| x.exp() / sum).collect()
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [1.0f32, 0.0, -1.0, 2.0, f32::NEG_INFINITY, 1.5, -2.0, 0.5];
    let wide = logits.map(f64::from);
    // 6 degrees of freedom: 1e-6 at 38.3.
    assert_follows(&logits, &plain(), &softmax(&wide), 38.3);
    let hot = SamplingParams { temperature: 2.0, ..plain() };
    assert_follows(&logits, &hot, &softmax(&wide.map(|x| x / 2.0)), 38.3);
    let best3 = SamplingParams { top_k: 3, ..plain() };
    let masked = wide.map(|x| if x >= 1.0 { x } else { f64::NEG_INFINITY });
    assert_follows(&logits, &best3, &softmax(&masked), 27.7);
    // Cumulative: 0.43, 0.69, 0.85: top_p 0.7 keeps three.
    let nucleus = SamplingParams { top_p: 0.7, ..plain() };
    assert_follows(&logits, &nucleus, &softmax(&masked), 27.7);
    // min_p 0.2: logits above 2 + ln 0.2 = 0.39 stay.
    let above = wide.map(|x| if x > 0.39 { x } else { f64::NEG_INFINITY });
    assert_follows(&logits, &SamplingParams { min_p: 0.2, ..plain() }, &softmax(&above), 30.7);
}

#[test]
fn greedy_takes_the_lowest_of_the_best_and_ignores_filters() {
    let logits = [0.0f32, 3.0, -0.0, 3.0, 1.0, 3.0, 2.0, 2.0, 3.0];
    for temperature in [0.0, 1e-8, 9e-6] {
        for seed in 0..10 {
            let params = SamplingParams { temperature, top_p: 0.0, top_k: 5, min_p: 0.3, ..plain() };
            assert_eq!(draw(&logits, &params, seed), Ok(1));
        }
    }
    let zeros = [-1.0f32, -0.0, 0.0];
    assert_eq!(
        draw(&zeros, &SamplingParams { temperature: 0.0, ..plain() }, 0),
        Ok(1),
        "both zeros are equal"
    );
    let one = SamplingParams { top_k: 1, ..plain() };
    assert_eq!(draw(&logits, &one, 3), Ok(1));
    assert_eq!(draw(&zeros, &one, 3), Ok(1));
}

#[test]
fn penalties_bias_and_forbidden_ids() {
    let greedy = SamplingParams { temperature: 0.0, ..plain() };
    let logits = [4.0f32, 3.9, -1.0];
    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy.clone() };
    assert_eq!(draw_with(&logits, &repetition, 0, &[0], 1, &[]), Ok(1), "the prompt counts");
    let negative = [-1.0f32, -1.5];
    assert_eq!(draw_with(&negative, &repetition, 0, &[0], 1, &[]), Ok(1), "negative logits are multiplied");
    let presence = SamplingParams { presence_penalty: 1.0, ..greedy.clone() };
    assert_eq!(draw_with(&logits, &presence, 0, &[0], 1, &[]), Ok(0), "the prompt does not count");
    assert_eq!(draw_with(&logits, &presence, 0, &[0], 0, &[]), Ok(1));
    let frequency = SamplingParams { frequency_penalty: 0.04, ..greedy.clone() };
    assert_eq!(draw_with(&logits, &frequency, 0, &[0, 0], 0, &[]), Ok(0));
    assert_eq!(draw_with(&logits, &frequency, 0, &[0, 0, 0], 0, &[]), Ok(1), "each occurrence counts");
    let bias = SamplingParams { logit_bias: vec![(2, 100.0), (3, 1.0), (u32::MAX, 1.0)], ..greedy.clone() };
    assert_eq!(draw(&logits, &bias, 0), Ok(2));
    assert_eq!(draw_with(&logits, &bias, 0, &[], 0, &[2, 0, 99]), Ok(1), "forbidden ids beat the bias");
}

#[test]
fn broken_logits_are_reported() {
    let all = [f32::NEG_INFINITY; 20];
    for params in [plain(), SamplingParams { temperature: 0.0, ..plain() }] {
        assert_eq!(draw(&all, &params, 0), Err(NonFinite));
        for at in 0..20 {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits = [0.5f32; 20];
                logits[at] = bad;
                assert_eq!(draw(&logits, &params, 0), Err(NonFinite), "{bad} at {at}");
            }
        }
        assert_eq!(draw_with(&[1.0, 2.0], &params, 0, &[], 0, &[0, 1]), Err(NonFinite), "nothing is left");
        assert_eq!(draw(&[], &params, 0), Err(NonFinite));
    }
    let broken = SamplingParams { logit_bias: vec![(0, f32::NAN)], ..plain() };
    assert_eq!(draw(&[1.0, 2.0], &broken, 0), Err(NonFinite));
    let wild = SamplingParams { temperature: f32::NAN, top_p: f32::NAN, min_p: f32::NAN, ..plain() };
    assert_eq!(draw(&[1.0, 2.0], &wild, 0), Ok(1), "a temperature that is no number is greedy");
}

#[test]
fn the_draw_depends_on_its_key_only() {
    let logits: Vec<f32> = Random(13).vec(1000);
    let tokens: Vec<u32> = (0..50).map(|p| draw(&logits, &plain(), p).unwrap()).collect();
    let again: Vec<u32> = (0..50).rev().map(|p| draw(&logits, &plain(), p).unwrap()).rev().collect();
    assert_eq!(tokens, again);
    assert!(tokens.iter().collect::<std::collections::HashSet<_>>().len() > 30);
}
