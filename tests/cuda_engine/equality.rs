//! On one arithmetic nothing changes an answer: not the policy, the concurrency, the bucket, the graphs, the placement, nor
//! the order in which the pretend driver gets around to its streams.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenrouter_engine::EngineRequest;
use tokenrouter_scheduler::{CountTable, Policy, Thresholds};

use crate::pretend::{Answer, Setup, machine, requests, sweep};

const REQUESTS: usize = 16;

/// Requests of a run: all, or half of them outside the sweep.
fn count(all: usize) -> usize {
    if sweep() { all } else { all / 2 }
}

/// What every run must give: one request at a time, without graphs, both models on one device.
fn expected() -> &'static HashMap<u64, Answer> {
    static EXPECTED: OnceLock<HashMap<u64, Answer>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let answers = Setup { graphs: false, ..Setup::default() }.answers(&requests(REQUESTS), 1);
        let by_both = |a: &&Answer| [0, 1].iter().all(|writer| a.1.contains(writer));
        assert!(answers.values().filter(by_both).count() >= REQUESTS / 2, "both models write");
        answers
    })
}

#[track_caller]
fn equal(setup: &Setup, asked: &[EngineRequest], at_once: usize) {
    let answers = setup.answers(asked, at_once);
    assert_eq!(answers.len(), asked.len());
    for request in asked {
        let (found, wanted) = (&answers[&request.client], &expected()[&request.client]);
        assert_eq!(found, wanted, "request {} at concurrency {at_once} with {setup:?}", request.client);
    }
}

/// One, four and sixteen requests at once, with graphs and without.
#[test]
fn concurrency_and_graphs_change_nothing() {
    let Some(_machine) = machine(0) else { return };
    let whole = [(1, true), (4, true), (16, true), (1, false), (4, false), (16, false)];
    for (at_once, graphs) in if sweep() { &whole[..] } else { &whole[1..3] } {
        equal(&Setup { graphs: *graphs, ..Setup::default() }, &requests(REQUESTS), *at_once);
    }
}

/// Both models on one device, the large one over it and another, over two others, both over the same two.
#[test]
fn placements_change_nothing() {
    let placements: [(&[usize], &[usize]); 4] =
        [(&[0], &[0]), (&[0], &[0, 1]), (&[0], &[1, 2]), (&[0, 1], &[0, 1])];
    for (i, (small, large)) in placements.into_iter().enumerate() {
        let Some(_machine) = machine(i as u64) else { return };
        let whole = [(true, 4), (true, 1), (true, 16), (false, 1), (false, 4), (false, 16)];
        for (graphs, at_once) in if sweep() { &whole[..] } else { &whole[..1] } {
            equal(
                &Setup { small, large, graphs: *graphs, ..Setup::default() },
                &requests(count(8)),
                *at_once,
            );
        }
    }
}

/// Every policy of the scheduler, sensible and absurd, on one device and over two.
#[test]
fn policies_change_nothing() {
    let peers = |b| Thresholds::peers(CountTable::constant(b));
    // The last of them plans from what it measures.
    let whole = [
        Policy::Threshold(peers(3)),
        Policy::Exclusive(peers(3)),
        Policy::Hold { thresholds: peers(4), beside: CountTable::constant(2) },
        Policy::StepSync,
        Policy::Eager,
        Policy::Exclusive(Thresholds::constants(&[1, 1])),
        Policy::Threshold(Thresholds::constants(&[4000, 4000])),
        Policy::Lookahead { alpha: 1.0 },
        Policy::Lookahead { alpha: 3.0 },
        Policy::Lookahead { alpha: 1.0 },
    ];
    let policies = if sweep() { &whole[..] } else { &whole[..3] };
    for (i, policy) in policies.iter().enumerate() {
        let Some(_machine) = machine(2 + i as u64) else { return };
        let large: &[usize] = if i % 2 == 0 { &[0] } else { &[0, 1] };
        let setup =
            Setup { policy: policy.clone(), large, planner: i + 1 == whole.len(), ..Setup::default() };
        equal(&setup, &requests(count(8)), 8);
    }
}

/// Prompts that end one token before, at and after the border of every bucket, and steps beyond the last one.
#[test]
fn bucket_borders_change_nothing() {
    let Some(_machine) = machine(1) else { return };
    let borders = [8usize, 16, 32, 64, 128, 256];
    let lengths: Vec<usize> = borders.iter().flat_map(|b| [b - 1, *b, b + 1]).collect();
    let asked: Vec<EngineRequest> = requests(lengths.len())
        .into_iter()
        .zip(&lengths)
        .map(|(mut request, len)| {
            request.prompt = request.prompt.iter().copied().cycle().take(*len).collect();
            request.max_new_tokens = 4;
            request
        })
        .collect();
    // Without the prefix cache a prompt's first step feeds just as many tokens as it has.
    let wide = Setup { max_step_tokens: 264, prefix_cache: false, ..Setup::default() };
    let alone = Setup { graphs: false, ..wide.clone() }.answers(&asked, 1);
    // Chunks of every size: the prompts are cut.
    let narrow = Setup { max_step_tokens: 24, ..wide.clone() };
    let whole = [(wide.clone(), 1), (narrow, 5), (wide, 12)];
    for (setup, at_once) in if sweep() { &whole[..] } else { &whole[..2] } {
        assert_eq!(setup.answers(&asked, *at_once), alone, "at concurrency {at_once} with {setup:?}");
    }
}
