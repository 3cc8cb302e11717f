//! Log-probabilities of answers and prompts on the device: near the CPU's, and the same bits on two ranks.

use tokenrouter_engine::{DeviceKind, EngineConfig, EngineRequest, TokenLogprobs};
use tokenrouter_scheduler::router::Registry;

use crate::pretend::{Setup, machine};
use crate::support::engine::{Outcome, request, run_all, start, stop};
use crate::support::golden;

/// The golden answers of both models, as prompts that are scored; and one that is answered and routed.
fn asked() -> Vec<EngineRequest> {
    let cases = golden().cases;
    let ask = |i: usize| {
        let case = &cases[i];
        let scored =
            EngineRequest { logprobs: Some(4), prompt_logprobs: true, ..request(0, &case.prompt, 0, 0) };
        match i {
            0 => EngineRequest { client: 0, max_new_tokens: 6, ..scored },
            1 => EngineRequest { client: 1, route: tokenrouter_scheduler::RouteId(1), ..scored },
            _ => EngineRequest {
                client: 2,
                route: tokenrouter_scheduler::RouteId(2),
                max_new_tokens: 6,
                ..scored
            },
        }
    };
    (0..3).map(ask).collect()
}

fn run(config: &EngineConfig) -> Vec<Outcome> {
    let engine = start(config, &Registry::builtin());
    let mut found = run_all(&engine, asked());
    stop(&engine);
    (0..3).map(|client| found.remove(&client).unwrap()).collect()
}

fn bits(outcome: &Outcome) -> Vec<(u32, Vec<(u32, u32)>)> {
    let of = |e: &TokenLogprobs| (e.logprob.to_bits(), e.top.iter().map(|t| (t.0, t.1.to_bits())).collect());
    outcome.prompt.iter().chain(&outcome.logprobs).map(of).collect()
}

#[test]
fn log_probabilities_are_the_cpu_s_within_rounding_and_the_same_on_two_ranks() {
    let Some(machine) = machine(5) else { return };
    let cpu = run(&EngineConfig { device: DeviceKind::Cpu, ..Setup::default().config() });
    // Pieces of three positions, and chunks.
    let setup = Setup { max_batch_rows: 3, max_step_tokens: 16, ..Setup::default() };
    let one = run(&setup.config());
    let (mut sum, mut largest, mut count) = (0.0, 0.0f64, 0);
    for (cpu, cuda) in cpu.iter().zip(&one) {
        assert_eq!((&cpu.tokens, cpu.prompt.len()), (&cuda.tokens, cuda.prompt.len()));
        let pairs = cpu.prompt.iter().chain(&cpu.logprobs).zip(cuda.prompt.iter().chain(&cuda.logprobs));
        for (a, b) in pairs {
            assert!(b.logprob.is_finite() && b.logprob <= 0.0 && b.top.len() == 4);
            if a.logprob > -6.9 {
                let off = f64::from(a.logprob - b.logprob).abs();
                (sum, largest, count) = (sum + off, largest.max(off), count + 1);
            }
        }
    }
    println!("mean {:.4}, largest {largest:.4} of {count}", sum / f64::from(count));
    assert!(
        sum / f64::from(count) <= 0.04 && largest <= 0.25,
        "mean {}, largest {largest}",
        sum / f64::from(count)
    );
    if machine.reaches(1) {
        let two = run(&Setup { small: &[0, 1], large: &[1, 0], ..setup }.config());
        for (one, two) in one.iter().zip(&two) {
            assert_eq!((&one.tokens, bits(one)), (&two.tokens, bits(two)));
        }
    }
    drop(machine);
}
