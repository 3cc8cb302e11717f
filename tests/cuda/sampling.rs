//! Sampling: the CPU's tokens for equal logits, whatever the parameters.

use tokenrouter_kernels::cuda::{Buffer, RowSample, SampleArgs};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample};

use crate::harness::{Gpu, Random, everywhere};

/// One row: its logits and how it is drawn.
#[derive(Clone)]
struct Row {
    logits: Vec<f32>,
    params: SamplingParams,
    key: DrawKey,
    history: Vec<u32>,
    prompt_len: usize,
    forbidden: Vec<u32>,
}

impl Row {
    /// The CPU's token; `None` where the logits allow no draw.
    fn on_cpu(&self) -> Option<u32> {
        let input = SampleInput {
            params: &self.params,
            key: self.key,
            history: &self.history,
            prompt_len: self.prompt_len,
            forbidden: &self.forbidden,
        };
        sample(&mut self.logits.clone(), &input, &mut SampleScratch::new(self.logits.len())).ok()
    }
}

/// Buffers of a step; the counts stay from launch to launch.
struct Sampler<'a> {
    gpu: &'a Gpu,
    vocab: usize,
    counts: Buffer<u32>,
}

impl Sampler<'_> {
    fn run(&self, rows: &[Row]) -> Vec<Option<u32>> {
        let (gpu, vocab, stride) = (self.gpu, self.vocab, self.vocab + 3);
        let mut logits = vec![f32::NAN; rows.len() * stride];
        let (mut draws, mut bias_ids, mut bias_values) = (Vec::new(), Vec::new(), Vec::new());
        let (mut forbidden, mut history) = (vec![0u32], vec![0u32]);
        for (row, to) in rows.iter().zip(logits.chunks_mut(stride)) {
            to[..vocab].copy_from_slice(&row.logits);
            draws.push(RowSample {
                bias: bias_ids.len() as u32,
                bias_len: row.params.logit_bias.len() as u32,
                forbidden: forbidden.len() as u32,
                forbidden_len: row.forbidden.len() as u32,
                history: history.len() as u32,
                history_len: row.history.len() as u32,
                prompt_len: row.prompt_len as u32,
                ..RowSample::new(&row.params, &row.key)
            });
            bias_ids.extend(row.params.logit_bias.iter().map(|b| b.0));
            bias_values.extend(row.params.logit_bias.iter().map(|b| b.1));
            forbidden.extend(&row.forbidden);
            history.extend(&row.history);
        }
        let logits_on = gpu.buffer(&logits);
        let work = gpu.buffer(&vec![f32::NAN; logits.len()]);
        let (draws, bias_ids, bias_values) =
            (gpu.buffer(&draws), gpu.buffer(&bias_ids), gpu.buffer(&bias_values));
        let (forbidden, history) = (gpu.buffer(&forbidden), gpu.buffer(&history));
        let (token, fault) =
            (gpu.buffer(&vec![u32::MAX; rows.len()]), gpu.buffer(&vec![u32::MAX; rows.len()]));
        let raw = gpu.buffer(&vec![f32::NAN; rows.len()]);
        let count = gpu.buffer(&[rows.len() as u32]);
        let args = SampleArgs {
            logits: logits_on.ptr(),
            work: work.ptr(),
            counts: self.counts.ptr(),
            draws: draws.ptr(),
            bias_ids: bias_ids.ptr(),
            bias_values: bias_values.ptr(),
            forbidden_ids: forbidden.ptr(),
            history_ids: history.ptr(),
            token: token.ptr(),
            fault: fault.ptr(),
            logit: raw.ptr(),
            rows: count.ptr(),
            vocab: vocab as u32,
            stride: stride as u32,
        };
        // SAFETY: the buffers have these shapes.
        unsafe { gpu.kernels.sample_tokens(&gpu.stream, rows.len() as u32, &args) }.unwrap();
        let (token, fault) = (gpu.read(&token), gpu.read(&fault));
        for ((row, token), raw) in rows.iter().zip(&token).zip(gpu.read(&raw)) {
            assert_eq!(raw.to_bits(), row.logits[*token as usize].to_bits(), "the token's raw logit");
        }
        let same = gpu.read(&logits_on).iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "routers read the raw logits later");
        assert!(gpu.read(&self.counts).iter().all(|c| *c == 0), "counts are left clean");
        token.into_iter().zip(fault).map(|(token, fault)| (fault == 0).then_some(token)).collect()
    }
}

fn sampler(gpu: &Gpu, vocab: usize, rows: usize) -> Sampler<'_> {
    Sampler { gpu, vocab, counts: gpu.zeroed(rows * vocab) }
}

/// Rows with all kinds of parameters, as the CPU's own test draws them.
fn random_row(random: &mut Random, vocab: usize, position: u32) -> Row {
    let spread = [0.5, 4.0, 20.0][random.below(3)];
    // Rounded, so that ties are frequent.
    let mut logits: Vec<f32> = random.vec(vocab).iter().map(|x| (x * 16.0).round() / 16.0 * spread).collect();
    if random.below(3) == 0 {
        logits[vocab * 3 / 4..].fill(f32::NEG_INFINITY);
    }
    if random.below(12) == 0 {
        logits[random.below(vocab)] = [f32::NAN, f32::INFINITY][random.below(2)];
    }
    // From few ids or from all: the lists meet each other and repeat themselves.
    let id = |random: &mut Random| {
        let below = [vocab.min(4) + 1, vocab + 3][random.below(2)];
        random.below(below) as u32
    };
    let history: Vec<u32> = (0..random.below(40)).map(|_| id(random)).collect();
    let prompt_len = random.below(history.len() + 1);
    let pick = |random: &mut Random, values: &[f32]| values[random.below(values.len())];
    let params = SamplingParams {
        temperature: pick(random, &[0.0, 1e-8, 2e-5, 0.7, 1.0, 1.0, 3.0, f32::INFINITY, f32::NAN]),
        top_k: [0, 0, 1, 3, 40, 65, 5000][random.below(7)],
        top_p: pick(random, &[1.0, 1.0, 0.0, 0.3, 0.9, 0.999, -1.0]),
        min_p: pick(random, &[0.0, 0.0, 0.05, 0.9, 1.0, 7.0]),
        repetition_penalty: pick(random, &[1.0, 1.3, 0.5]),
        presence_penalty: pick(random, &[0.0, 0.5, -1.0]),
        frequency_penalty: pick(random, &[0.0, 0.25]),
        // Ids repeat: the order of their values counts.
        logit_bias: (0..random.below(6)).map(|_| (id(random), random.unit())).collect(),
    };
    let forbidden = (0..random.below(4)).map(|_| id(random)).collect();
    let key = DrawKey {
        seed: random.next(),
        choice: random.below(3) as u32,
        position,
        purpose: [Purpose::Sample, Purpose::Router][random.below(2)],
        model: random.below(1 << 17) as u32,
    };
    Row { logits, params, key, history, prompt_len, forbidden }
}

#[test]
fn tokens_equal_the_cpu_s() {
    let mut random = Random(11);
    let batches: Vec<Vec<Row>> = [1usize, 2, 7, 30, 100, 333, 455]
        .iter()
        .flat_map(|vocab| vec![*vocab; 2])
        .map(|vocab| (0..8).map(|p| random_row(&mut random, vocab, p)).collect())
        .collect();
    let mut faults = 0;
    everywhere(|gpu| {
        let mut all = Vec::new();
        for rows in &batches {
            let found = sampler(gpu, rows[0].logits.len(), rows.len()).run(rows);
            for (row, found) in rows.iter().zip(&found) {
                let expected = row.on_cpu();
                assert_eq!(*found, expected, "vocabulary {}, {:?}", row.logits.len(), row.params);
            }
            all.push(found);
        }
        all
    });
    for row in batches.iter().flatten() {
        faults += usize::from(row.on_cpu().is_none());
    }
    assert!(faults > 2, "some rows must allow no draw, or the test shows less than it says: {faults}");
}

/// Nuclei of every size in a vocabulary of many tiles, and draws spread over it.
#[test]
fn large_vocabularies_equal_the_cpu_s() {
    let mut random = Random(12);
    let vocab = 5003;
    let mut rows = Vec::new();
    for (position, spread) in [0.1f32, 3.0, 12.0].into_iter().enumerate() {
        for (top_k, top_p, min_p) in
            [(0, 0.97, 0.0), (50, 1.0, 0.0), (700, 0.9, 0.0), (0, 0.5, 0.01), (0, 1.0, 0.2)]
        {
            let logits = random.vec(vocab).iter().map(|x| x * spread).collect();
            let mut row = random_row(&mut random, vocab, position as u32);
            row.params = SamplingParams { top_k, top_p, min_p, ..SamplingParams::default() };
            row.forbidden.clear();
            row.logits = logits;
            rows.push(row);
        }
    }
    let expected: Vec<Option<u32>> = rows.iter().map(Row::on_cpu).collect();
    everywhere(|gpu| assert_eq!(sampler(gpu, vocab, rows.len()).run(&rows), expected));
}

#[test]
fn a_draw_depends_on_its_row_only() {
    let mut random = Random(13);
    let rows: Vec<Row> = (0..9).map(|p| random_row(&mut random, 200, p)).collect();
    everywhere(|gpu| {
        let sampler = sampler(gpu, 200, 9);
        let together = sampler.run(&rows);
        let mut turned = rows.clone();
        turned.reverse();
        let mut reversed = sampler.run(&turned);
        reversed.reverse();
        assert_eq!(reversed, together);
        for (row, expected) in rows.iter().zip(&together) {
            assert_eq!(sampler.run(std::slice::from_ref(row)), [*expected]);
        }
    });
}
