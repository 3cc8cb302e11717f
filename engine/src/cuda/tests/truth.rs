//! Log-probabilities against the CPU's model, whose activations are f32 while the card's are bf16.

use super::support::*;
use crate::cuda::CudaModel;
use crate::model::{Model, OpenModel};

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    logits.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
}

/// What a teacher-forced run found.
#[derive(Debug, Default)]
struct Errors {
    positions: usize,
    /// Largest and sum of the differences of log-probabilities above one in a thousand.
    largest: f64,
    sum: f64,
    count: usize,
    /// Positions whose best token differs, with the CPU's difference between the two.
    swaps: Vec<f64>,
}

impl Errors {
    fn add(&mut self, cpu: &[f32], cuda: &[f32]) {
        let (a, b) = (log_probs(cpu), log_probs(cuda));
        self.positions += 1;
        for (x, y) in a.iter().zip(&b).filter(|(x, _)| **x > -6.9) {
            self.largest = self.largest.max((x - y).abs());
            self.sum += (x - y).abs();
            self.count += 1;
        }
        let best = |v: &[f64]| (0..v.len()).max_by(|i, j| v[*i].total_cmp(&v[*j])).unwrap();
        let (i, j) = (best(&a), best(&b));
        if i != j {
            self.swaps.push(a[i] - a[j]);
        }
    }
}

/// Feeds `ids` in chunks of `chunk` tokens to both and compares the logits of every chunk's last token.
fn teacher_forced(cpu: &mut Model, cuda: &mut CudaModel, ids: &[u32], chunk: usize, errors: &mut Errors) {
    let pages = pages(0, ids.len());
    let vocab = cpu.config().vocab_size;
    for from in (0..ids.len()).step_by(chunk) {
        let fed = from..(from + chunk).min(ids.len());
        let row = || TestRow { tokens: ids, fed: fed.clone(), pages: &pages, sample: greedy() };
        let step = step(&[row()]);
        let expected = cpu.forward(&step.ids, &step.tokens(), &step.logit_tokens).to_vec();
        run(cuda, step);
        let found = logits(cuda, 1);
        assert_eq!(expected.len(), vocab);
        errors.add(&expected, &found[0]);
    }
}

fn compare(open: &OpenModel, ids: &[u32], chunk: usize) -> Errors {
    let mut cuda = ready(open, 64, &BUCKETS, None);
    let mut cpu = reference(open, 64);
    let mut errors = Errors::default();
    teacher_forced(&mut cpu, &mut cuda, ids, chunk, &mut errors);
    errors
}

#[test]
fn the_demo_pair_is_the_cpu_s_within_rounding() {
    let Some(emu) = emulation(1) else { return };
    for name in ["slm", "llm"] {
        let open = Model::open(&demo(name)).unwrap();
        let errors = compare(&open, &problem(0), 3);
        println!("{name}: {errors:?}, mean {:e}", errors.sum / errors.count as f64);
        assert!(errors.positions >= 25, "{errors:?}");
    }
    drop(emu);
}
