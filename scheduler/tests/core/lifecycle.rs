//! Birth, admission, ordinary life, refusals.

use crate::rig::*;
use tokenrouter_scheduler::*;

#[test]
fn one_request_from_prompt_to_length() {
    let mut rig = Rig::new(config(1));
    let id = rig.submit(request(5, 3));
    assert_eq!((rig.core.counters().waiting, rig.core.pages(id).len()), (1, 0));
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(0, 0, 5, true)]);
    let batch = rig.core.batch(A).unwrap();
    assert_eq!((batch.seq, batch.fed_tokens, batch.launched_at), (1, 5, 1));
    assert_eq!((rig.core.counters().running[0], rig.core.pages(id).len()), (1, 1));
    rig.complete(A, &[stay(11)]);
    assert!(rig.core.batch(A).is_none());
    assert_eq!(rig.tokens(), [(11, A)]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(0, 5, 1, true)], "decode feeds the last token");
    rig.complete(A, &[stay(12)]);
    assert_eq!(rig.core.tokens(id), [100, 101, 102, 103, 104, 11, 12]);
    assert_eq!(rig.core.prompt_len(id), 5);
    rig.step(A, &[stay(13)]);
    let (over, reason, usage) = rig.terminal();
    assert_eq!((over, reason), (id, FinishReason::Length));
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.handoffs), (5, 3, 0));
    assert_eq!((usage.steps[0], usage.prefill[0], usage.committed[0]), (3, 4, 3));
    assert!(rig.core.tokens(id).is_empty() && rig.core.pages(id).is_empty());
    rig.assert_empty();
}

#[test]
fn what_can_never_be_served_is_refused_at_submit() {
    let mut rig = Rig::new(CoreConfig { pages: 4, context_len: 70, ..config(1) });
    let mut refuse = |new: NewRequest| {
        let error = rig.core.submit(0, new).unwrap_err();
        rig.core.audit();
        error
    };
    assert_eq!(refuse(request(0, 5)), SubmitError::EmptyPrompt);
    assert_eq!(refuse(request(5, 0)), SubmitError::NothingToWrite);
    let context = SubmitError::ContextExceeded { prompt: 31, max_new_tokens: 40, context_len: 70 };
    assert_eq!(refuse(request(31, 40)), context);
    let huge = SubmitError::ContextExceeded { prompt: 1, max_new_tokens: u32::MAX, context_len: 70 };
    assert_eq!(refuse(request(1, u32::MAX)), huge);
    let capacity = SubmitError::CapacityExceeded { tokens: 65, capacity: 64 };
    assert_eq!(refuse(request(25, 40)), capacity);
    let route = SubmitError::UnknownRoute { route: RouteId(3), routes: 1 };
    assert_eq!(refuse(NewRequest { route: RouteId(3), ..request(1, 1) }), route);
    let min = SubmitError::MinTokens { min_tokens: 6, max_new_tokens: 5 };
    assert_eq!(refuse(NewRequest { min_tokens: 6, ..request(1, 5) }), min);
    let nan = NewRequest { threshold: Some(Threshold::Value(f32::NAN)), ..request(1, 5) };
    assert_eq!(refuse(nan), SubmitError::ThresholdNotANumber);
    rig.submit(request(24, 40));
    assert_eq!(rig.core.counters().submitted, 1);
}

#[test]
fn impossible_configurations_are_refused() {
    let build = |config: CoreConfig, entry, reach| {
        let log = Default::default();
        Core::new(config, vec![Box::new(Scripted { entry, reach, log })]).err().expect("it was accepted")
    };
    let one = ModelSet::first(1);
    assert_eq!(build(config(0), A, one), ConfigError::Models(0));
    assert_eq!(build(config(9), A, one), ConfigError::Models(9));
    assert_eq!(build(CoreConfig { pages: 0, ..config(1) }, A, one), ConfigError::Zero("pages"));
    let no_rows = vec![ModelLimits { max_batch_rows: 0, max_step_tokens: 1 }];
    let zero = ConfigError::Zero("max_batch_rows");
    assert_eq!(build(CoreConfig { models: no_rows, ..config(1) }, A, one), zero);
    let far = build(config(2), A, ModelSet::first(3)).to_string();
    assert!(far.contains("scripted") && far.contains("model 2") && far.contains("only 2"), "{far}");
    let outside = build(config(2), B, one).to_string();
    assert!(outside.contains("model 1") && outside.contains("outside its own reach"), "{outside}");
    assert_eq!(Core::new(config(1), vec![]).err(), Some(ConfigError::Routes(0)));
}

#[test]
fn a_full_queue_refuses_and_forgets() {
    let mut rig = Rig::new(CoreConfig { max_waiting: 2, max_running: 1, ..config(1) });
    let first = rig.submit(request(1, 1));
    rig.submit(request(1, 1));
    rig.submit(request(1, 1));
    assert_eq!(rig.core.counters().admitted, 1, "the first was admitted to make room");
    assert_eq!(rig.core.submit(0, request(1, 1)), Err(SubmitError::QueueFull { waiting: 2 }));
    rig.core.audit();
    assert_eq!(rig.core.counters().submitted, 3);
    assert!(rig.cancel(first));
    rig.submit(request(1, 1));
    assert_eq!(rig.core.submit(0, request(1, 1)), Err(SubmitError::QueueFull { waiting: 2 }));
}

#[test]
fn admission_is_in_order_and_bounded_by_pages_and_rows() {
    // Pages: 6. The prompts need 2, 4, 3, 1.
    let mut rig = Rig::new(CoreConfig { pages: 6, ..config(1) });
    let lifetimes = [(28, 4), (60, 4), (40, 8), (10, 6)];
    let ids: Vec<RequestId> = lifetimes.iter().map(|&(p, n)| rig.submit(request(p, n))).collect();
    rig.launch();
    assert_eq!(rig.core.counters().admitted, 2);
    assert_eq!(rig.core.counters().pages, PageCounts { free: 0, leased: 6, deferred: 0, cached: 0 });
    rig.complete(A, &[stay(9), stay(9)]);
    assert!(rig.cancel(ids[0]));
    rig.launch();
    assert_eq!(rig.core.counters().waiting, 2, "the small one does not overtake the large one");
    rig.complete(A, &[stay(9)]);
    assert!(rig.cancel(ids[1]));
    rig.launch();
    assert_eq!((rig.core.counters().waiting, rig.core.counters().admitted), (0, 2));

    let mut rig = Rig::new(CoreConfig { max_running: 2, ..config(1) });
    for _ in 0..5 {
        rig.submit(request(1, 1));
    }
    rig.step(A, &[stay(9), stay(9)]);
    rig.step(A, &[stay(9), stay(9)]);
    rig.step(A, &[stay(9)]);
    rig.assert_empty_after_drain();
}

impl Rig {
    fn assert_empty_after_drain(&mut self) {
        self.core.drain_effects();
        self.assert_empty();
    }
}

#[test]
fn stale_ids_do_nothing() {
    let mut rig = Rig::new(config(1));
    let first = rig.submit(request(1, 1));
    assert!(rig.cancel(first));
    rig.terminal();
    let second = rig.submit(request(2, 1));
    assert_eq!(first.slot(), second.slot());
    for stale in [first, RequestId::new(99, 0), RequestId::new(0, 99)] {
        assert!(!rig.cancel(stale) && !rig.stop(stale, 0));
        assert!(rig.core.tokens(stale).is_empty() && rig.core.pages(stale).is_empty());
        assert_eq!(rig.core.prompt_len(stale), 0);
    }
    assert_eq!(rig.tokens(), []);
    assert_eq!(rig.core.tokens(second).len(), 2);
}

#[test]
fn slots_stay_below_the_stated_capacity() {
    let mut rig = Rig::new(CoreConfig { max_waiting: 3, max_running: 2, ..config(2) });
    assert_eq!(rig.core.slot_capacity(), 3 + 2 + 2 + 2);
    for _ in 0..50 {
        // Cancelled while in flight: slots are held by the batch, and new requests come in.
        let running: Vec<RequestId> = (0..2).map(|_| rig.submit(request(1, 4))).collect();
        rig.launch();
        running.iter().for_each(|&id| assert!(rig.cancel(id)));
        let waiting: Vec<RequestId> = (0..5).map(|_| rig.submit(request(1, 4))).collect();
        assert!(waiting.iter().all(|id| id.slot() < rig.core.slot_capacity()));
        rig.complete(A, &[stay(5), stay(5)]);
        waiting.iter().for_each(|&id| assert!(rig.cancel(id)));
        rig.assert_empty_after_drain();
    }
}

#[test]
fn a_bad_completion_changes_nothing() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(1, 2));
    rig.launch();
    let wrong = CompleteError::RowCount { model: A, results: 2, rows: 1 };
    assert_eq!(rig.core.complete(9, A, &[stay(5), stay(5)]), Err(wrong));
    assert_eq!(rig.core.complete(9, B, &[]), Err(CompleteError::NoBatch(B)));
    assert_eq!(rig.core.complete(9, ModelId(200), &[]), Err(CompleteError::NoBatch(ModelId(200))));
    rig.core.complete_failed(9, B, "nothing is in flight here");
    rig.core.audit();
    assert_eq!(rig.tokens(), []);
    rig.complete(A, &[stay(5)]);
    assert_eq!(rig.tokens(), [(5, A)]);
}

#[test]
fn a_launch_is_due_within_the_guard_time() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(1, 5));
    rig.now = 500;
    rig.launch();
    assert_eq!(rig.core.wake(), None, "everything that could launch did");
    rig.now = 700;
    rig.complete(A, &[stay(5)]);
    assert_eq!(rig.core.wake(), Some(701 + 8 * 200), "eight steps, which is longer than the configured time");
    rig.now += 5_000;
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.core.wake(), None);
    assert_eq!(rig.core.counters().guard_launches, 0, "eager wanted to launch anyway");
}
