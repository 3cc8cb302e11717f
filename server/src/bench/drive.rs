//! Clients against a server for one window of time.
//!
//! Everything is counted by when it happened: tokens, first tokens and ends of answers between the two moments at which the
//! server's own counters are read. Clients go on all the while, so the window has neither a start nor a tail of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::arrivals::{Load, Schedule};
use super::ask::{Answer, Prompt, Terms, ask};
use super::http::{Client, Fault, Site};
use super::workload::Workload;

/// How often the window's ends are looked for.
const LOOK: Duration = Duration::from_millis(2);
/// A client's pauses after faults: the first, doubled up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// An arrival sent later than this after its time found no free client.
const LATE: Duration = Duration::from_millis(10);
/// Clients need little stack.
const STACK: usize = 512 * 1024;

/// What ends a window: the first of these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    pub(super) tokens: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) seconds: Option<f64>,
}

/// What is run before a window: until so many answers or seconds, whichever is first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WarmUp {
    pub(super) answers: u64,
    pub(super) seconds: f64,
}

/// What is run.
pub(super) struct Plan<'a> {
    pub(super) site: &'a Site,
    pub(super) workload: &'a Workload,
    pub(super) terms: Terms<'a>,
    pub(super) load: Load,
    pub(super) warm_up: WarmUp,
    pub(super) limits: Limits,
    pub(super) repeat: u32,
    /// How long the server may say nothing.
    pub(super) patience: Duration,
    /// Most requests at once under Poisson arrivals.
    pub(super) most_open: u32,
}

/// What happened in a window.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) tokens: u64,
    pub(super) first: Vec<Duration>,
    pub(super) between: Vec<Duration>,
    /// Whole answers.
    pub(super) answers: Vec<Done>,
    pub(super) faults: Vec<Fault>,
    /// Arrivals that were sent late, since too many requests were open.
    pub(super) late: u64,
    /// Why it ended before its limit.
    pub(super) cut: Option<Cut>,
}

/// Why a window ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The user does not want to wait.
    Interrupted,
    /// Every request failed; the last in words.
    Failing(String),
    /// The server's process is gone.
    Dead,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) answer: Answer,
    /// From its sending, or its arrival, to its end.
    pub(super) time: Duration,
    /// Whether its text is right; none where that is not known.
    pub(super) right: Option<bool>,
}

/// What a client tells.
enum Event {
    /// So many tokens at once, so long after the last ones of the answer, or after the question.
    Tokens {
        at: Instant,
        tokens: u32,
        first: bool,
        gap: Duration,
    },
    Answer {
        at: Instant,
        done: Box<Done>,
    },
    Fault {
        at: Instant,
        fault: Fault,
    },
    Late {
        at: Instant,
    },
}

/// What clients and the window share.
struct Shared<'a> {
    plan: &'a Plan<'a>,
    check: &'a (dyn Fn(&str, &str) -> bool + Sync),
    stop: AtomicBool,
    tokens: AtomicU64,
    answers: AtomicU64,
    /// Faults since the last answer.
    failing: AtomicU32,
}

/// Runs the load; `edge` is called at both ends of the window, `alive` says whether there is still a server.
pub(super) fn drive(
    plan: &Plan<'_>,
    check: &(dyn Fn(&str, &str) -> bool + Sync),
    interrupted: &AtomicBool,
    edge: &mut dyn FnMut(),
    alive: &mut dyn FnMut() -> bool,
) -> Result<Window, String> {
    let (events, told) = channel();
    let shared = Shared {
        plan,
        check,
        stop: AtomicBool::new(false),
        tokens: AtomicU64::new(0),
        answers: AtomicU64::new(0),
        failing: AtomicU32::new(0),
    };
    // Without a warm-up the window begins before the first request.
    let from = (plan.warm_up.answers == 0).then(|| begin(edge));
    let started = Instant::now();
    let schedule = match plan.load {
        Load::Poisson(rate) => Some(Schedule::new(rate, plan.workload.seed ^ u64::from(plan.repeat))),
        Load::Closed(_) => None,
    };
    let clients = match plan.load {
        Load::Closed(clients) => clients,
        Load::Poisson(_) => plan.most_open,
    };
    std::thread::scope(|scope| {
        for index in 0..clients {
            let (shared, schedule, events) = (&shared, schedule.as_ref(), events.clone());
            let run = move || {
                let mut one = One::new(shared, events);
                match schedule {
                    Some(schedule) => one.arrivals(schedule, started),
                    None => one.closed(index, clients),
                }
            };
            let spawned =
                std::thread::Builder::new().name("client".into()).stack_size(STACK).spawn_scoped(scope, run);
            if let Err(e) = spawned {
                shared.stop.store(true, Ordering::Relaxed);
                return Err(format!("no thread for client {index}: {e}"));
            }
        }
        let ends = shared.watch((started, from), clients, interrupted, edge, alive);
        shared.stop.store(true, Ordering::Relaxed);
        Ok(ends)
    })
    .map(|(from, to, cut)| {
        drop(events);
        gather(&told, from, to, cut)
    })
}

impl Shared<'_> {
    /// Waits for the warm-up and then for the window's end; says when both were.
    fn watch(
        &self,
        (started, from): (Instant, Option<Instant>),
        clients: u32,
        interrupted: &AtomicBool,
        edge: &mut dyn FnMut(),
        alive: &mut dyn FnMut() -> bool,
    ) -> (Instant, Instant, Option<Cut>) {
        let Plan { warm_up, limits, .. } = self.plan;
        let mut cut = None;
        let mut wait = |over: &dyn Fn() -> bool| {
            while !over() && cut.is_none() {
                cut = if interrupted.load(Ordering::Relaxed) {
                    Some(Cut::Interrupted)
                } else if !alive() {
                    Some(Cut::Dead)
                } else if self.failing.load(Ordering::Relaxed) >= (3 * clients).max(10) {
                    Some(Cut::Failing(String::new()))
                } else {
                    std::thread::sleep(LOOK);
                    None
                };
            }
        };
        let mut before = [0, 0];
        let from = from.unwrap_or_else(|| {
            wait(&|| {
                self.answers.load(Ordering::Relaxed) >= warm_up.answers
                    || started.elapsed().as_secs_f64() >= warm_up.seconds
            });
            let from = begin(edge);
            before = [self.tokens.load(Ordering::Relaxed), self.answers.load(Ordering::Relaxed)];
            from
        });
        wait(&|| {
            let full = |limit: Option<u64>, now: &AtomicU64, before: u64| {
                limit.is_some_and(|limit| now.load(Ordering::Relaxed) - before >= limit)
            };
            full(limits.tokens, &self.tokens, before[0])
                || full(limits.requests, &self.answers, before[1])
                || limits.seconds.is_some_and(|s| from.elapsed().as_secs_f64() >= s)
        });
        let to = Instant::now();
        edge();
        (from, to, cut)
    }
}

/// The first end of a window.
fn begin(edge: &mut dyn FnMut()) -> Instant {
    edge();
    Instant::now()
}

/// One client.
struct One<'a> {
    shared: &'a Shared<'a>,
    client: Client<'a>,
    events: Sender<Event>,
    pause: Duration,
}

impl<'a> One<'a> {
    fn new(shared: &'a Shared<'a>, events: Sender<Event>) -> Self {
        let client = Client::new(shared.plan.site, &shared.stop, shared.plan.patience);
        One { shared, client, events, pause: PAUSES.0 }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Conversations one after another.
    fn closed(&mut self, index: u32, clients: u32) {
        let mut number = u64::from(index);
        // Answers of one length would all begin and end together for ever: the first ones have different lengths.
        let Plan { warm_up, terms, .. } = self.shared.plan;
        let part = u64::from(terms.max_tokens) * u64::from(index + 1) / u64::from(clients);
        let mut cap = (warm_up.answers > 0).then_some(part.max(1) as u32);
        while !self.stopped() {
            self.talk(number, Instant::now(), cap.take());
            number += u64::from(clients);
        }
    }

    /// A conversation at each moment of the schedule that this client takes.
    fn arrivals(&mut self, schedule: &Schedule, started: Instant) {
        while !self.stopped() {
            let (number, after) = schedule.next();
            let Some(at) = started.checked_add(after) else { return };
            self.sleep_until(at);
            if self.stopped() {
                return;
            }
            if at.elapsed() > LATE {
                let _ = self.events.send(Event::Late { at: Instant::now() });
            }
            self.talk(number, at, None);
        }
    }

    fn sleep_until(&self, at: Instant) {
        while let Some(left) = at.checked_duration_since(Instant::now()).filter(|_| !self.stopped()) {
            std::thread::sleep(left.min(PAUSES.0));
        }
    }

    /// One conversation; the first question counts from `since`.
    fn talk(&mut self, number: u64, since: Instant, cap: Option<u32>) {
        let plan = self.shared.plan;
        let mut talk = plan.workload.talk(plan.repeat, number);
        let mut since = since;
        while let Some(prompt) = talk.next().filter(|_| !self.stopped()) {
            let Some(answer) = self.question(&prompt, number, since, cap, talk.right()) else { return };
            talk.hear(&answer);
            since = Instant::now();
        }
    }

    /// One question; none when it was not answered.
    fn question(
        &mut self,
        prompt: &Prompt,
        number: u64,
        since: Instant,
        cap: Option<u32>,
        right: Option<&str>,
    ) -> Option<Answer> {
        let Shared { plan, tokens: counted, .. } = self.shared;
        let mut terms = plan.terms.clone();
        terms.seed = plan.workload.seed.wrapping_add(number);
        terms.max_tokens = cap.unwrap_or(terms.max_tokens);
        let (mut last, mut first) = (since, true);
        let events = &self.events;
        let outcome = ask(&mut self.client, prompt, &terms, &mut |piece| {
            counted.fetch_add(u64::from(piece.tokens), Ordering::Relaxed);
            let gap = piece.at.saturating_duration_since(last);
            let _ = events.send(Event::Tokens { at: piece.at, tokens: piece.tokens, first, gap });
            (last, first) = (piece.at, false);
        });
        let at = Instant::now();
        match outcome {
            Ok(answer) => {
                self.pause = PAUSES.0;
                self.shared.failing.store(0, Ordering::Relaxed);
                // What a server did not show piece by piece counts at the end.
                let unseen = answer.tokens.saturating_sub(answer.seen);
                if unseen > 0 {
                    counted.fetch_add(u64::from(unseen), Ordering::Relaxed);
                    let _ = self.events.send(Event::Tokens { at, tokens: unseen, first, gap: at - last });
                }
                // An answer that was cut, or driven on, says nothing about what the model knows.
                let free = cap.is_none() && !terms.to_the_end;
                let right = right.filter(|_| free).map(|right| (self.shared.check)(&answer.text, right));
                let done = Done { answer: answer.clone(), time: at.saturating_duration_since(since), right };
                let _ = self.events.send(Event::Answer { at, done: Box::new(done) });
                self.shared.answers.fetch_add(1, Ordering::Relaxed);
                Some(answer)
            }
            Err(Fault::Stopped) => None,
            Err(fault) => {
                // A full queue is an answer, and says nothing about whether the server works.
                if !matches!(fault, Fault::Status(429, _)) {
                    self.shared.failing.fetch_add(1, Ordering::Relaxed);
                }
                let _ = self.events.send(Event::Fault { at, fault });
                self.sleep_until(at + self.pause);
                self.pause = (2 * self.pause).min(PAUSES.1);
                None
            }
        }
    }
}

/// What happened between two moments.
fn gather(told: &Receiver<Event>, from: Instant, to: Instant, cut: Option<Cut>) -> Window {
    let mut window = Window { seconds: (to - from).as_secs_f64(), cut, ..Window::default() };
    let inside = |at: Instant| from <= at && at < to;
    let mut last = None;
    for event in told {
        match event {
            Event::Tokens { at, tokens, first, gap } if inside(at) => {
                window.tokens += u64::from(tokens);
                if first {
                    window.first.push(gap)
                } else {
                    window.between.push(gap)
                }
                // Tokens that come together have no time between them.
                window.between.extend((1..tokens).map(|_| Duration::ZERO));
            }
            Event::Answer { at, done } if inside(at) => window.answers.push(*done),
            // Also before the window: a server that fails at once has none.
            Event::Fault { at, fault } if at < to => {
                last = Some(fault.to_string());
                window.faults.push(fault);
            }
            Event::Late { at } if inside(at) => window.late += 1,
            _ => {}
        }
    }
    if let Some(Cut::Failing(why)) = &mut window.cut {
        *why = last.unwrap_or_default();
    }
    window
}
