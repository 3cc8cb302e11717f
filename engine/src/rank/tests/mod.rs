//! Faults of devices, through the whole rank loop: who is answered how, and what is left.

mod bench;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bench::{A, B, Bench, PAGES, ROWS};
use tokenrouter_scheduler::{FailKind, FinishReason, ModelId, PeerLoss, RowFault, SubmitError};

use crate::faults::FaultOptions;
use crate::handle::{Command, RefuseError};
use crate::status::{EngineState, ModelState};

const NEVER: FaultOptions = FaultOptions { on_peer_loss: PeerLoss::Fail, step_timeout: None };
const CONTINUE: FaultOptions = FaultOptions { on_peer_loss: PeerLoss::Continue, step_timeout: None };

fn lost(model: ModelId) -> FinishReason {
    FinishReason::Failed(FailKind::ModelLost { model })
}

fn state(bench: &Bench, model: ModelId) -> ModelState {
    bench.handle.status.models[model.index()].state()
}

/// The loop has nothing left.
#[track_caller]
fn is_empty(bench: &mut Bench) {
    bench.until("nothing is left", |bench| {
        let status = &bench.handle.status;
        let left = [&status.waiting, &status.running];
        let models = status.models.iter().flat_map(|m| [&m.ready, &m.running, &m.pending]);
        left.into_iter().chain(models).all(|count| count.load(Relaxed) == 0)
            && status.pages_free.load(Relaxed) == PAGES
    });
}

/// What all of them give when nothing goes wrong.
fn clean(clients: std::ops::Range<u64>, route: u16) -> Bench {
    let mut bench = Bench::start(NEVER);
    clients.clone().for_each(|client| bench.submit(client, route, 5, 40));
    bench.all_end(clients);
    bench
}

/// Ten requests: three in a step of B, more in its queue or in a step of A, two that wait.
fn ten(options: FaultOptions) -> Bench {
    let mut bench = Bench::start(options);
    bench.set(|faults| {
        faults.hung.insert(A);
        faults.hung.insert(B);
    });
    // Two that are A's alone, so that some always run there.
    for client in 0..10 {
        bench.submit(client, if client < 2 { 1 } else { 0 }, 5, 40);
    }
    bench.until("A has a step", |bench| bench.held(A));
    // A step of A at a time, until B has one and A's next one is out.
    let mut ends = 0;
    while !(bench.held(B) && bench.handle.status.models[1].ready.load(Relaxed) > 0 && ends > 4) {
        bench.pass(A);
        ends += 1;
        bench.until("A goes on", |bench| bench.held(A));
        assert!(ends < 2_000, "B never fills: {:?}", bench.handle.status);
    }
    bench.until("A has a step", |bench| bench.held(A));
    let status = &bench.handle.status;
    assert!(status.waiting.load(Relaxed) == 2 && status.models[1].running.load(Relaxed) > 0);
    bench
}

/// Kill the large model with requests in its step, in its queue, away from it, and waiting.
#[test]
fn a_dead_model_fails_those_that_need_it_and_no_others() {
    let expected = clean(0..10, 0);
    let alone = clean(0..2, 1);
    let mut bench = ten(NEVER);
    let at_b = bench.look(|_| ROWS) as u64;
    bench.kill(B);
    bench.until("those at B end", |bench| bench.ended.len() as u64 > at_b);
    assert!(bench.ended.values().all(|ended| ended.reason == lost(B)), "{:?}", bench.ended);
    assert_eq!(state(&bench, B), ModelState::Lost);
    let trouble = bench.handle.status.models[1].trouble().expect("it says why");
    assert!(trouble.contains("rank 7"), "{trouble}");
    bench.release(A);
    bench.all_end(0..10);
    for (client, ended) in &bench.ended {
        let (got, alone) = (&bench.tokens.get(client), alone.tokens.get(client));
        if *client < 2 {
            assert_eq!((&ended.reason, *got), (&FinishReason::Length, alone), "never at B");
        } else {
            assert_eq!(ended.reason, lost(B), "half of its tokens are B's");
            let got = got.map_or(&[][..], Vec::as_slice);
            assert!(expected.tokens[client].starts_with(got), "up to there it is what it would be");
        }
        assert!(!ended.usage.degraded);
    }
    // Its route is refused, the other one serves, and who starts at A comes as far as A.
    bench.submit(20, 2, 5, 4);
    bench.submit(21, 1, 5, 4);
    bench.until("both are answered", |bench| bench.refused.len() + bench.ended.len() == 12);
    let refused = &bench.refused[&20];
    assert!(matches!(refused, RefuseError::Submit(SubmitError::ModelLost { model: B })), "{refused:?}");
    assert_eq!(bench.ended[&21].reason, FinishReason::Length);
    is_empty(&mut bench);
    assert_eq!(state(&bench, B), ModelState::Lost, "a dead one does not come back");
}

#[test]
fn the_other_model_goes_on_where_the_operator_wants_it_and_says_so() {
    let (whole, alone) = (clean(0..10, 0), clean(0..10, 1));
    let mut bench = ten(CONTINUE);
    bench.kill(B);
    bench.release(A);
    bench.all_end(0..10);
    for (client, ended) in &bench.ended {
        assert_eq!(ended.reason, FinishReason::Length, "{client}");
        assert_eq!((ended.usage.degraded, bench.tokens[client].len()), (*client >= 2, 40), "{client}");
        if *client < 2 {
            assert_eq!(bench.tokens[client], alone.tokens[client]);
        } else {
            // As far as B has written, it is what it would be; then A writes.
            let (got, whole) = (&bench.tokens[client], &whole.tokens[client]);
            let same = got.iter().zip(whole).take_while(|(a, b)| a == b).count();
            assert!(got[same..].iter().all(|(_, model)| *model == 0), "{client}");
        }
    }
    bench.submit(20, 2, 5, 4);
    bench.until("B alone is refused", |bench| bench.refused.contains_key(&20));
    is_empty(&mut bench);
}

/// A step that does not end: its requests are answered within its limit, and what comes late is dropped.
#[test]
fn a_hung_step_is_answered_and_the_model_comes_back() {
    for (on_peer_loss, polled) in [(PeerLoss::Fail, false), (PeerLoss::Continue, true)] {
        let step_timeout = Some(Duration::from_millis(50));
        let mut bench = Bench::start(FaultOptions { on_peer_loss, step_timeout });
        bench.set(|faults| faults.polled = polled);
        bench.hang(B);
        (0..8).for_each(|client| bench.submit(client, 0, 5, 40));
        bench.all_end(0..8);
        assert_eq!(state(&bench, B), ModelState::Lost);
        assert!(bench.held(B), "its device still works");
        assert_eq!(bench.look(|faults| faults.abandoned.clone()), [B]);
        let continues = on_peer_loss == PeerLoss::Continue;
        for ended in bench.ended.values() {
            let reason = if continues { FinishReason::Length } else { lost(B) };
            assert_eq!((&ended.reason, ended.usage.degraded), (&reason, continues));
        }
        is_empty(&mut bench);
        bench.release(B);
        bench.until("B is back", |bench| state(bench, B) == ModelState::Ready);
        assert_eq!(bench.handle.status.models[1].trouble(), None);
        assert_eq!(bench.handle.status.models[1].losses.load(Relaxed), 1);
        let expected = clean(20..28, 0);
        (20..28).for_each(|client| bench.submit(client, 0, 5, 40));
        bench.all_end(20..28);
        for client in 20..28 {
            assert_eq!(bench.tokens[&client], expected.tokens[&client], "as if nothing had been");
            assert!(!bench.ended[&client].usage.degraded);
        }
        is_empty(&mut bench);
    }
}

/// Idle for many limits, and a prompt so long that its step takes several: nobody is lost.
#[test]
fn the_watch_is_silent_while_idle_and_in_a_long_prefill() {
    let step_timeout = Some(Duration::from_millis(100));
    let mut bench = Bench::start(FaultOptions { step_timeout, ..NEVER });
    bench.submit(1, 1, 5, 1);
    bench.all_end(1..2);
    std::thread::sleep(Duration::from_millis(300));
    bench.hang(A);
    // 200 times the limit of a short step.
    bench.submit(0, 1, 12_800, 2);
    bench.until("it runs", |bench| bench.held(A));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(bench.ended.len(), 1);
    bench.release(A);
    bench.all_end(0..1);
    assert_eq!(bench.ended[&0].reason, FinishReason::Length);
    for model in [A, B] {
        assert_eq!(bench.handle.status.models[model.index()].losses.load(Relaxed), 0);
        assert_eq!(state(&bench, model), ModelState::Ready);
    }
}

/// Before it is given up, a late step shows; without a limit it only shows.
#[test]
fn a_late_step_shows() {
    let step_timeout = Some(Duration::from_secs(40));
    let options = FaultOptions { step_timeout, ..NEVER };
    assert_eq!(options.patience(1), 20_000_000_000);
    let options = FaultOptions { step_timeout: Some(Duration::from_millis(600)), ..NEVER };
    let mut bench = Bench::start(options);
    bench.submit(1, 1, 5, 1);
    bench.all_end(1..2);
    bench.hang(A);
    bench.submit(0, 1, 5, 4);
    bench.until("it shows", |bench| state(bench, A) != ModelState::Ready);
    bench.until("it is given up", |bench| state(bench, A) == ModelState::Lost);
    bench.all_end(0..1);
    assert_eq!(bench.ended[&0].reason, lost(A));
}

/// The end of the loop does not wait for a step that was given up.
#[test]
fn a_hung_device_does_not_hold_up_the_end() {
    let mut bench = Bench::start(FaultOptions { step_timeout: Some(Duration::from_millis(20)), ..NEVER });
    bench.hang(B);
    bench.end_waits();
    bench.submit(0, 2, 5, 4);
    bench.all_end(0..1);
    bench.handle.send(Command::Shutdown).unwrap();
    bench.until("the loop ends", |bench| bench.handle.status.state() == EngineState::Stopped);
    assert!(bench.held(B), "the step has not ended yet");
    bench.release(B);
}

/// One row of four has no finite logits, at its third token; the others are what they are without it.
#[test]
fn a_poisoned_row_fails_alone() {
    let expected = clean(0..4, 0);
    let mut bench = Bench::start(NEVER);
    bench.set(|faults| faults.poisoned.push((2, 7)));
    (0..4).for_each(|client| bench.submit(client, 0, 5, 40));
    bench.all_end(0..4);
    for client in 0..4 {
        let (got, whole) = (&bench.tokens[&client], &expected.tokens[&client]);
        if client == 2 {
            assert_eq!((got.len(), &whole[..2]), (2, &got[..]));
            let reason = &bench.ended[&2].reason;
            assert!(
                matches!(reason, FinishReason::Failed(FailKind::Row { fault: RowFault::NonFinite, .. })),
                "{reason:?}"
            );
        } else {
            assert_eq!(got, whole, "{client}");
        }
    }
    is_empty(&mut bench);
}

/// A thousand requests through the pair, a few at a time and many cancelled: nothing is kept of any.
#[test]
fn a_thousand_requests_leave_nothing() {
    let mut bench = Bench::start(NEVER);
    for client in 0..1_000 {
        bench.submit(client, (client % 3) as u16, 1 + client as usize % 40, 1 + client as u32 % 20);
        if client % 3 == 0 {
            bench.handle.send(Command::Cancel(client.saturating_sub(client % 7))).unwrap();
        }
    }
    bench.all_end(0..1_000);
    is_empty(&mut bench);
}
