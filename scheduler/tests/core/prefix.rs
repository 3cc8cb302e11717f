//! Pages shared by prompts with a common beginning, and kept for later ones.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn shared(models: usize) -> CoreConfig {
    let limits = ModelLimits { max_batch_rows: 8, max_step_tokens: 200 };
    CoreConfig { models: vec![limits; models], prefix_cache: true, ..config(models) }
}

fn prompt(tokens: impl IntoIterator<Item = u32>, max_new_tokens: u32) -> NewRequest {
    NewRequest { prompt: tokens.into_iter().collect(), max_new_tokens, ..request(1, 1) }
}

/// Runs one request to its end on model A; returns its only row and its usage.
fn run(rig: &mut Rig, new: NewRequest) -> ((usize, u32, u32, bool), Usage) {
    rig.submit(new);
    rig.launch();
    let rows = rig.rows(A);
    rig.complete(A, &[stay(EOS)]);
    let (_, _, usage) = rig.terminal();
    (rows[0], usage)
}

#[test]
fn the_same_prompt_again_computes_only_the_page_of_its_last_token() {
    for len in 1..70 {
        let mut rig = Rig::new(shared(1));
        let (cold, usage) = run(&mut rig, prompt(100..100 + len, 5));
        assert_eq!(((cold.1, cold.2), usage.cached[0]), ((0, len), 0));
        let (warm, usage) = run(&mut rig, prompt(100..100 + len, 5));
        let hit = (len - 1) / 16 * 16;
        assert_eq!(((warm.1, warm.2), usage.cached[0]), ((hit, len - hit), hit), "{len} tokens");
        rig.assert_empty();
        assert_eq!(rig.core.counters().pages.cached, len as usize / 16, "{len} tokens");
    }
}

#[test]
fn switched_off_nothing_is_kept() {
    let mut rig = Rig::new(config(1));
    run(&mut rig, prompt(100..150, 5));
    let (row, usage) = run(&mut rig, prompt(100..150, 5));
    assert_eq!((row.1, usage.cached[0], rig.core.counters().pages.cached), (0, 0, 0));
}

#[test]
fn a_prompt_shares_as_far_as_it_agrees_and_only_under_the_same_salt() {
    let mut rig = Rig::new(shared(1));
    run(&mut rig, prompt(100..150, 5));
    let mut other: Vec<u32> = (100..150).collect();
    other[35] = 9;
    assert_eq!(run(&mut rig, prompt(other, 5)).0.1, 32);
    let mut other: Vec<u32> = (100..150).collect();
    other[0] = 9;
    assert_eq!(run(&mut rig, prompt(other, 5)).0.1, 0, "equal blocks behind another first one");
    let salted = |salt| NewRequest { cache_salt: Some(salt), ..prompt(100..150, 5) };
    assert_eq!(run(&mut rig, salted(1)).0.1, 0);
    assert_eq!(run(&mut rig, salted(2)).0.1, 0);
    assert_eq!(run(&mut rig, salted(1)).0.1, 48);
}

#[test]
fn requests_that_arrive_together_share_the_work_of_one_step() {
    let mut rig = Rig::new(shared(1));
    for last in [1, 2, 3] {
        rig.submit(prompt((100..140).chain([last]), 5));
    }
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 0, 41, true), (1, 32, 9, true), (2, 32, 9, true)]);
    let table = |slot| rig.core.pages(RequestId::new(slot, 0)).to_vec();
    assert_eq!(table(0)[..2], table(1)[..2]);
    assert_ne!(table(0)[2], table(1)[2]);
    assert_eq!(rig.core.counters().pages.leased, 5);
}

#[test]
fn who_waits_for_a_cut_claimant_is_passed_over_and_then_reads_what_it_wrote() {
    let models = vec![ModelLimits { max_batch_rows: 8, max_step_tokens: 12 }; 2];
    let mut rig = Rig::new(CoreConfig { models, ..shared(2) });
    rig.submit(prompt(100..140, 5));
    rig.submit(prompt((100..132).chain(0..9), 5));
    rig.submit(prompt([7], 5));
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 0, 10, false), (2, 0, 1, true)], "the second cannot go on in page 0");
    rig.complete(A, &[stay(0), stay(9)]);
    rig.launch();
    // Page 0 is full at the end of this step, page 1 is not: the second passes again.
    assert_eq!(rig.rows(A), [(0, 10, 10, false), (2, 1, 1, true)]);
    rig.complete(A, &[stay(0), stay(9)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 20, 10, false), (2, 2, 1, true)]);
    rig.complete(A, &[stay(0), stay(EOS)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 30, 10, true), (1, 32, 2, false)]);
}

#[test]
fn the_claim_of_a_request_that_was_cancelled_ends_with_its_step() {
    let models = vec![ModelLimits { max_batch_rows: 8, max_step_tokens: 12 }];
    let mut rig = Rig::new(CoreConfig { models, ..shared(1) });
    let first = rig.submit(prompt(100..140, 5));
    rig.submit(prompt((100..132).chain(0..9), 5));
    rig.launch();
    assert!(rig.cancel(first));
    assert_eq!(rig.launch(), []);
    rig.complete(A, &[stay(0)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(1, 11, 12, false)], "its progress is kept");
}

#[test]
fn a_row_that_read_what_a_faulty_row_wrote_runs_again() {
    let mut rig = Rig::new(shared(1));
    let first = rig.submit(prompt((100..140).chain([1]), 5));
    let second = rig.submit(prompt((100..140).chain([2]), 5));
    rig.submit(prompt([7], 5));
    rig.launch();
    let broken = RowResult { fault: Some(RowFault::NonFinite), ..stay(6) };
    rig.complete(A, &[broken, stay(7), stay(8)]);
    let effects: Vec<Effect> = rig.core.drain_effects().collect();
    assert!(matches!(&effects[..], [
        Effect::Terminal { request, reason: FinishReason::Failed(FailKind::Row { .. }), .. },
        Effect::Token { token: 8, .. },
    ] if *request == first));
    rig.launch();
    assert_eq!(
        rig.rows(A)[0],
        (second.slot(), 0, 41, true),
        "from the start: nothing of the first is believed"
    );
    assert!(rig.cancel(second));
    rig.complete(A, &[stay(7), stay(9)]);
    assert_eq!(rig.core.counters().pages.cached, 0, "nor kept");
}

#[test]
fn a_failed_step_leaves_nothing_in_the_cache() {
    let mut rig = Rig::new(CoreConfig {
        models: vec![ModelLimits { max_batch_rows: 8, max_step_tokens: 20 }],
        ..shared(1)
    });
    rig.submit(prompt(100..150, 5));
    rig.step(A, &[stay(0)]);
    rig.launch();
    rig.core.complete_failed(rig.now, A, "device lost");
    rig.core.audit();
    assert_eq!(rig.core.counters().pages.free, 32);
    rig.terminal();
    rig.submit(prompt(100..150, 5));
    rig.launch();
    assert_eq!(rig.rows(A)[0].1, 0);
}

#[test]
fn each_model_has_computed_its_own_part_of_a_shared_page() {
    let mut rig = Rig::new(shared(2));
    // A sees the prompt; B the prompt and the first token of the answer.
    rig.submit(prompt(100..150, 9));
    rig.step(A, &[stay(5)]);
    rig.step(A, &[stay(EOS)]);
    rig.core.drain_effects();
    rig.submit(prompt(100..150, 9));
    rig.step(A, &[keep(5, B)]);
    rig.launch();
    assert_eq!(rig.rows(B), [(0, 0, 51, true)], "B has computed none of the pages that A found");
    rig.complete(B, &[stay(EOS)]);
    let (_, _, usage) = rig.terminal();
    assert_eq!(usage.cached[..2], [48, 0]);
    rig.submit(prompt(100..150, 9));
    rig.step(A, &[keep(5, B)]);
    rig.launch();
    assert_eq!(rig.rows(B), [(0, 48, 3, true)]);
}

#[test]
fn an_answer_is_found_by_the_next_turn_also_what_the_peer_wrote() {
    let mut rig = Rig::new(shared(2));
    rig.submit(prompt(100..110, 30));
    rig.step(A, &[keep(1, B)]);
    for token in 10..20 {
        rig.step(B, &[stay(token)]);
    }
    rig.step(B, &[keep(20, A)]);
    for token in 30..40 {
        rig.step(A, &[stay(token)]);
    }
    rig.step(A, &[stay(EOS)]);
    rig.core.drain_effects();
    let second: Vec<u32> = (100..110).chain([1]).chain(10..21).chain(30..40).chain([EOS, 99]).collect();
    assert_eq!(second.len(), 34);
    rig.submit(prompt(second, 5));
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 32, 2, true)], "A has computed 32 tokens, 11 of them written by B");
    rig.complete(A, &[keep(9, B)]);
    rig.launch();
    assert_eq!(rig.rows(B), [(0, 21, 14, true)], "B as far as it came");
}

#[test]
fn what_lies_past_a_stop_is_not_found() {
    let mut rig = Rig::new(shared(1));
    let id = rig.submit(prompt(100..120, 30));
    for token in 10..30 {
        rig.step(A, &[stay(token)]);
    }
    rig.core.drain_effects();
    // 40 tokens; the stop string began at the 31st, in the second page.
    assert!(rig.stop(id, 10));
    rig.terminal();
    let again: Vec<u32> = (100..120).chain(10..30).collect();
    rig.submit(prompt(again, 5));
    rig.launch();
    assert_eq!(rig.rows(A)[0].1, 16);
}

#[test]
fn cached_pages_make_room_for_those_who_need_it() {
    let mut rig = Rig::new(CoreConfig { pages: 4, ..shared(1) });
    run(&mut rig, prompt(100..133, 5));
    assert_eq!(rig.core.counters().pages, PageCounts { free: 2, leased: 0, deferred: 0, cached: 2 });
    run(&mut rig, prompt(200..250, 5));
    let counts = rig.core.counters().pages;
    assert_eq!((counts.free, counts.cached), (1, 3), "of the first prompt nothing is left");
    assert_eq!(run(&mut rig, prompt(100..133, 5)).0.1, 0);
}

#[test]
fn a_preempted_request_finds_what_is_left_of_its_own_pages() {
    let mut rig = Rig::new(CoreConfig { pages: 4, ..shared(1) });
    let first = rig.submit(prompt(100..115, 20));
    rig.submit(prompt(200..235, 20));
    rig.step(A, &[stay(9), stay(9)]);
    rig.step(A, &[stay(9), stay(9)]);
    rig.launch();
    assert_eq!(rig.core.counters().preemptions, 1, "the first wants a second page");
    assert!(rig.cancel(first));
    rig.complete(A, &[stay(9)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(1, 32, 5, true)], "32 tokens were still there");
}
