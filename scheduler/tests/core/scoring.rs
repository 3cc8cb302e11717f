//! Prompts that are scored: every position is fed by the request itself, once is enough, and others share what it left.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn shared(models: usize) -> CoreConfig {
    CoreConfig { prefix_cache: true, ..config(models) }
}

fn scored(prompt: usize, max_new_tokens: u32) -> NewRequest {
    NewRequest { score_prompt: true, ..request(prompt, max_new_tokens) }
}

/// What the row in flight says for the first time.
fn range(rig: &Rig, model: ModelId) -> std::ops::Range<usize> {
    rig.core.scored(&rig.core.batch(model).unwrap().rows[0], model)
}

#[test]
fn no_position_is_found_in_the_cache_and_each_is_scored_once() {
    let mut rig = Rig::new(shared(1));
    for round in 0..2 {
        let id = rig.submit(scored(150, 5));
        let mut next = 0;
        for (fed, samples) in [(64, false), (64, false), (22, true)] {
            assert_eq!(rig.launch(), [A]);
            assert_eq!(rig.rows(A), [(id.slot(), next as u32, fed, samples)], "round {round}");
            let end = (next + fed as usize).min(149);
            assert_eq!(range(&rig, A), next..end, "nothing is asked behind the last token");
            next += fed as usize;
            rig.complete(A, &[if samples { stay(EOS) } else { RowResult::default() }]);
        }
        assert_eq!(rig.terminal().2.cached[0], 0);
    }
    // What it computed is there for others.
    rig.submit(request(150, 5));
    rig.launch();
    assert_eq!(rig.rows(A)[0].1, 144);
    assert!(range(&rig, A).is_empty(), "it did not ask");
    rig.complete(A, &[stay(EOS)]);
    rig.core.drain_effects();
    rig.assert_empty();
}

#[test]
fn others_that_share_its_pages_take_no_position_from_it() {
    let mut rig = Rig::new(shared(1));
    rig.submit(scored(100, 5));
    rig.submit(request(100, 5));
    rig.launch();
    let rows = rig.rows(A);
    assert_eq!(rows[0], (0, 0, 63, false));
    assert_eq!(rig.rows(A)[1].1, 0, "nothing is shared before it is computed");
    rig.complete(A, &[RowResult::default(), RowResult::default()]);
    rig.submit(request(100, 5));
    rig.launch();
    assert_eq!(range(&rig, A), 63..99);
    rig.cancel(RequestId::new(0, 0));
    rig.cancel(RequestId::new(1, 0));
    rig.cancel(RequestId::new(2, 0));
    rig.complete(A, &vec![stay(5); rig.rows(A).len()]);
    rig.core.drain_effects();
    rig.assert_empty();
}

#[test]
fn without_a_token_to_write_the_request_ends_when_its_prompt_is_fed() {
    for len in [1, 2, 64, 65, 200] {
        let mut rig = Rig::new(shared(2));
        assert!(rig.core.submit(0, request(len, 0)).is_err(), "only a prompt that is scored");
        let id = rig.submit(scored(len, 0));
        while !rig.core.idle() {
            assert_eq!(rig.launch(), [A]);
            rig.complete(A, &[discard(5, B)]);
        }
        let (ended, reason, usage) = rig.terminal();
        assert_eq!((ended, reason), (id, FinishReason::Length));
        assert_eq!((usage.completion_tokens, usage.discarded[0], usage.handoffs), (0, 0, 0));
        assert!(rig.log.lock().unwrap().routed.is_empty(), "no router is asked");
        rig.assert_empty();
    }
}
