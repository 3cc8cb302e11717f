//! Against transformers and against the CPU: the numeric policy of `docs/cuda.md`.

use tokenrouter_scheduler::router::Registry;

use crate::pretend::{Setup, machine, run, sweep};
use crate::support::engine::{request, start, stop};
use crate::support::{Golden, golden};

/// Greedy answers of each model alone and of the routed pair, whole, with the writer of every token.
#[test]
fn greedy_answers_are_those_of_transformers() {
    let Some(_machine) = machine(0) else { return };
    let Golden { mut cases, threshold, max_new_tokens } = golden();
    cases.truncate(if sweep() { 16 } else { 4 });
    let setup = Setup { max_step_tokens: 128, threshold, ..Setup::default() };
    let asked: Vec<_> = cases
        .iter()
        .enumerate()
        .flat_map(|(i, case)| {
            (0..3u16).map(move |route| {
                request(i as u64 * 3 + u64::from(route), &case.prompt, route, max_new_tokens)
            })
        })
        .collect();
    let engine = start(&setup.config(), &Registry::builtin());
    let answers = run(&engine, &asked, asked.len());
    stop(&engine);
    for (i, case) in cases.iter().enumerate() {
        for (route, expected) in case.answers.iter().enumerate() {
            let (tokens, _) = &answers[&(i as u64 * 3 + route as u64)];
            assert_eq!(tokens, expected, "{} route {route}", case.id);
        }
        assert_eq!(answers[&(i as u64 * 3 + 2)].1, case.writers, "{}", case.id);
    }
}
