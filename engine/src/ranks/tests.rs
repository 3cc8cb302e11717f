//! The executor over pretend devices: records, ends, failures and deaths in every order.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PageId, RowResult};

use super::executor::{Placed, Rank, RankExecutor};
use super::{LaunchRecord, RankDevice, RankDone, Room};
use crate::executor::{Executor, NoGraph, Notify};
use crate::step::{Step, StepLimits};

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);
const C: ModelId = ModelId(2);

/// What a pretend device was asked, and what it shall say.
#[derive(Default)]
struct State {
    /// Sequence numbers and graphs, in the order of the launches.
    launched: Vec<(u64, ModelId, Option<u32>)>,
    aborted: Vec<(ModelId, String)>,
    in_flight: Vec<Arc<LaunchRecord>>,
    ended: Vec<RankDone>,
    panics: bool,
}

#[derive(Clone, Default)]
struct Fake {
    state: Arc<Mutex<State>>,
    wake: Arc<OnceLock<Notify>>,
    id: usize,
    polled: bool,
    samples: bool,
}

impl Fake {
    /// The part of `model` ends.
    fn end(&self, model: ModelId, failure: Option<&str>) {
        wait(|| self.runs(model));
        let mut state = self.state.lock().unwrap();
        let at = state.in_flight.iter().position(|record| record.model() == model).expect("it runs");
        let record = state.in_flight.remove(at);
        let results = if self.samples {
            vec![RowResult { token: record.seq as u32, ..RowResult::default() }]
        } else {
            vec![]
        };
        let room = Room { results, ..Room::default() };
        state.ended.push(RankDone { record, room, failure: failure.map(str::to_owned), gone: false });
        drop(state);
        if let (false, Some(wake)) = (self.polled, self.wake.get()) {
            wake();
        }
    }

    fn runs(&self, model: ModelId) -> bool {
        self.state.lock().unwrap().in_flight.iter().any(|record| record.model() == model)
    }

    fn aborts(&self) -> Vec<(ModelId, String)> {
        self.state.lock().unwrap().aborted.clone()
    }

    fn launches(&self) -> Vec<(u64, ModelId, Option<u32>)> {
        self.state.lock().unwrap().launched.clone()
    }
}

impl RankDevice for Fake {
    fn launch(&mut self, record: Arc<LaunchRecord>) {
        let panics = {
            let mut state = self.state.lock().unwrap();
            state.launched.push((record.seq, record.model(), record.graph));
            state.panics
        };
        assert!(!panics, "as the test wants it");
        self.state.lock().unwrap().in_flight.push(record);
    }
    fn poll(&mut self) -> Option<RankDone> {
        self.state.lock().unwrap().ended.pop()
    }
    fn abort(&mut self, model: ModelId, why: &str) {
        self.state.lock().unwrap().aborted.push((model, why.to_owned()));
    }
    fn polled(&self) -> bool {
        self.polled
    }
    fn name(&self) -> String {
        format!("pretend device {}", self.id)
    }
    fn wake_by(&mut self, notify: Notify) {
        assert!(self.wake.set(notify).is_ok(), "said once");
    }
}

#[track_caller]
fn wait(until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens");
        std::thread::yield_now();
    }
}

/// Model A on ranks 1 and 0, B on rank 2, C on all of 0, 1 and 2; graphs by the number of tokens.
fn rig(polled: bool) -> (RankExecutor, [Fake; 3]) {
    // Device numbers have gaps; C samples on rank 0, A on rank 4 and B on rank 7.
    let fakes = [0, 4, 7].map(|id| Fake { id, polled, samples: true, ..Fake::default() });
    let ranks = fakes.iter().map(|fake| Rank { id: fake.id, device: Box::new(fake.clone()) }).collect();
    let limits = StepLimits { rows: 2, tokens: 8, context_len: 32 };
    let placed = |devices: &[usize]| Placed {
        devices: devices.to_vec(),
        graph: Box::new(|step| if step.ids.len() < 5 { Ok(8) } else { Err(NoGraph::Size) }),
        limits,
    };
    let models = vec![placed(&[4, 0]), placed(&[7]), placed(&[0, 4, 7])];
    (RankExecutor::start(ranks, models, Arc::new(|| {})).unwrap(), fakes)
}

fn launch(executor: &mut RankExecutor, model: ModelId, tokens: usize) {
    let mut step = executor.buffers(model);
    assert!(step.results.capacity() > 0, "the room for results came back");
    step.begin(3, model, SignalFlags::default(), 0);
    step.push_row(&vec![1; tokens], 0..tokens, &[PageId(0)], None);
    executor.launch(step);
}

#[track_caller]
fn ended(executor: &mut RankExecutor) -> Box<Step> {
    let start = Instant::now();
    loop {
        if let Some(step) = executor.poll() {
            return step;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no step ends");
        std::thread::yield_now();
    }
}

/// A step that has not ended stays so for a while.
fn still_runs(executor: &mut RankExecutor) {
    for _ in 0..20 {
        assert!(executor.poll().is_none(), "a part is still out");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_step_ends_when_all_its_parts_have() {
    for polled in [false, true] {
        let (mut executor, [zero, four, seven]) = rig(polled);
        for round in 0..3u64 {
            launch(&mut executor, C, 7);
            launch(&mut executor, A, 4);
            launch(&mut executor, B, 2);
            assert_eq!(executor.must_poll(), polled, "parts run on the lead");
            // B is not on the lead, and ends by itself.
            seven.end(B, None);
            let step = ended(&mut executor);
            assert_eq!((step.model, step.failure.as_deref(), step.results.len()), (B, None, 1));
            assert_eq!(u64::from(step.results[0].token), 3 * round + 3);
            executor.recycle(step);
            four.end(C, None);
            zero.end(C, None);
            zero.end(A, None);
            still_runs(&mut executor);
            assert!(!executor.must_poll(), "the lead's parts have ended");
            seven.end(C, None);
            let step = ended(&mut executor);
            assert_eq!((step.model, step.ids.len()), (C, 7));
            executor.recycle(step);
            four.end(A, None);
            let step = ended(&mut executor);
            assert_eq!((step.model, step.failure.as_deref()), (A, None));
            executor.recycle(step);
        }
        let seen = |fake: &Fake| fake.launches().iter().map(|l| (l.0, l.1)).collect::<Vec<_>>();
        let all: Vec<_> = (0..3).flat_map(|r| [(3 * r + 1, C), (3 * r + 2, A), (3 * r + 3, B)]).collect();
        let without = |not: ModelId| all.iter().copied().filter(|l| l.1 != not).collect::<Vec<_>>();
        assert_eq!((seen(&zero), seen(&four), seen(&seven)), (without(B), without(B), without(A)));
        assert!(zero.launches().iter().all(|l| l.2 == (l.1 != C).then_some(8)), "the lead chose the graph");
    }
}

/// The first failure is the step's, with rank and device; the others are told, and the step ends with the last of them.
#[test]
fn the_first_failure_is_named_and_the_others_are_told() {
    for (first, name) in [(0, "rank 0 (pretend device 0)"), (1, "rank 4 (pretend device 4)")] {
        let (mut executor, fakes) = rig(false);
        launch(&mut executor, C, 3);
        launch(&mut executor, A, 3);
        fakes[first].end(C, Some("out of luck"));
        let others: Vec<&Fake> =
            fakes.iter().enumerate().filter(|(i, _)| *i != first).map(|(_, f)| f).collect();
        let start = Instant::now();
        while others.iter().any(|fake| fake.aborts().is_empty()) {
            assert!(executor.poll().is_none() && start.elapsed() < Duration::from_secs(20));
        }
        let why = format!("{name}: out of luck");
        for fake in &others {
            assert_eq!(fake.aborts(), [(C, why.clone())]);
            fake.end(C, Some("because of the other"));
        }
        assert!(fakes[first].aborts().is_empty());
        let step = ended(&mut executor);
        assert_eq!((step.model, step.failure.as_deref()), (C, Some(why.as_str())));
        executor.recycle(step);
        // Nobody else is hurt, and the next step works.
        fakes[0].end(A, None);
        fakes[1].end(A, None);
        let step = ended(&mut executor);
        assert_eq!((step.model, step.failure.as_deref()), (A, None));
        executor.recycle(step);
        launch(&mut executor, C, 3);
        fakes.iter().for_each(|fake| fake.end(C, None));
        assert_eq!(ended(&mut executor).failure, None);
    }
}

/// A panic in the loop of a rank: its parts fail by name, and so do later steps of models that need it; others go on.
#[test]
fn a_rank_that_dies_fails_its_models_and_no_others() {
    let (mut executor, [zero, four, seven]) = rig(false);
    launch(&mut executor, B, 3);
    wait(|| seven.runs(B));
    seven.state.lock().unwrap().panics = true;
    launch(&mut executor, C, 3);
    let dead = "rank 7 (pretend device 7): its thread has died";
    // B had no other part: it ends at once. C waits for the ranks that live.
    let step = ended(&mut executor);
    assert_eq!((step.model, step.failure.as_deref()), (B, Some(dead)));
    executor.recycle(step);
    wait(|| !four.aborts().is_empty() && !zero.aborts().is_empty());
    still_runs(&mut executor);
    zero.end(C, Some("aborted"));
    four.end(C, None);
    let step = ended(&mut executor);
    assert_eq!((step.model, step.failure.as_deref()), (C, Some(dead)));
    executor.recycle(step);
    let broken: Vec<_> = std::iter::from_fn(|| executor.broken()).collect();
    assert_eq!(broken, [B, C].map(|model| (model, dead.to_owned())), "each once, and A not");
    for _ in 0..3 {
        launch(&mut executor, A, 3);
        for model in [B, C] {
            launch(&mut executor, model, 3);
            let start = Instant::now();
            let step = loop {
                // Ranks that were asked before the dead one have begun, and are told to end.
                for fake in [&zero, &four] {
                    if fake.runs(C) {
                        fake.end(C, None);
                    }
                }
                match executor.poll() {
                    Some(step) => break step,
                    None => assert!(start.elapsed() < Duration::from_secs(20)),
                }
            };
            assert_eq!((step.model, step.failure.as_deref()), (model, Some(dead)));
            executor.recycle(step);
        }
        zero.end(A, None);
        four.end(A, None);
        let step = ended(&mut executor);
        assert_eq!((step.model, step.failure.as_deref()), (A, None), "a model without that rank");
        executor.recycle(step);
    }
    assert_eq!(executor.broken(), None, "they were named");
    assert!(
        zero.launches().iter().filter(|l| l.1 == C).count() <= 1,
        "the lead begins nothing that cannot end"
    );
}

/// A step that was given up: its parts need not wait for each other, and it comes back when the last one ends.
#[test]
fn a_step_that_was_given_up_ends_its_waits_and_comes_back_late() {
    let (mut executor, [zero, four, seven]) = rig(false);
    launch(&mut executor, C, 3);
    launch(&mut executor, B, 3);
    wait(|| four.runs(C) && seven.runs(C) && seven.runs(B));
    executor.abandon(C, "too late");
    executor.abandon(B, "too late");
    for fake in [&zero, &four, &seven] {
        wait(|| !fake.aborts().is_empty());
        assert_eq!(
            fake.aborts(),
            [(C, "too late".to_owned())],
            "one part waits for nobody, and is left alone"
        );
    }
    zero.end(C, Some("aborted"));
    four.end(C, None);
    still_runs(&mut executor);
    seven.end(C, None);
    let step = ended(&mut executor);
    assert_eq!((step.model, step.failure.as_deref()), (C, Some("too late")));
    executor.recycle(step);
    seven.end(B, None);
    let step = ended(&mut executor);
    assert_eq!((step.model, step.failure), (B, None));
    assert_eq!(executor.broken(), None, "both may work again");
}

/// A record that was changed on its way runs nowhere.
#[test]
fn a_record_that_does_not_match_its_checksum_is_refused() {
    let fake = Fake { id: 3, ..Fake::default() };
    let (events_in, events) = flume::bounded(4);
    let device = Box::new(fake.clone());
    let thread = super::thread::RankThread::start((1, 3), device, 1, events_in, Arc::new(|| {})).unwrap();
    let mut step = Box::new(Step::new(StepLimits { rows: 1, tokens: 4, context_len: 16 }));
    step.begin(1, A, SignalFlags::default(), 0);
    let mut record = LaunchRecord::new(9, None, step, true);
    record.checksum ^= 1;
    assert!(thread.launch(Arc::new(record)));
    let event = events.recv_timeout(Duration::from_secs(20)).unwrap();
    let super::thread::RankEvent::Done(1, done) = event else { panic!("another event") };
    assert_eq!(done.failure.as_deref(), Some("launch record 9 does not match its checksum"));
    assert!(fake.launches().is_empty());
}
