//! The simulation behind a forecast: counts of requests per model, the engine's own launch rules, a clock in work.

use super::draws::Draws;
use super::setting::Setting;
use super::tail::Tail;
use crate::ids::{MAX_MODELS, Nanos};
use crate::policy::{ModelView, Policy, decide};
use crate::router::mix;
use crate::sharing::{Parts, slowdown_beside};

/// Steps that end within half a nanosecond end together...
const TOGETHER: f64 = 0.5;
/// ...or within the rounding of what has passed, which the step that ends first never exceeds.
const ROUNDING: f64 = 1e-12;

/// A setting for N requests, laid out for the simulation. Shared by all candidates.
pub(super) struct Prepared {
    models: usize,
    requests: usize,
    /// Most rows of a batch, at most N.
    most: [usize; MAX_MODELS],
    /// `[model][rows - 1]`.
    latency: Vec<Vec<f64>>,
    routing: [[f64; MAX_MODELS]; MAX_MODELS],
    tokens_per_row: [f64; MAX_MODELS],
    commit: [[f64; MAX_MODELS]; MAX_MODELS],
    /// How many times longer a step takes while another model runs, at the most.
    slowdown: [f64; MAX_MODELS],
    /// How much of that it suffers and causes, `[model][rows - 1]`.
    parts: Vec<Vec<Parts>>,
    slowed: bool,
    /// Requests per model at the start: where they are in the long run if nobody waits.
    start: [usize; MAX_MODELS],
}

impl Prepared {
    /// The setting must have passed its check.
    pub(super) fn new(setting: &Setting, requests: usize) -> Self {
        let models = setting.models().min(MAX_MODELS);
        let mut this = Self {
            models,
            requests,
            most: [0; MAX_MODELS],
            latency: Vec::with_capacity(models),
            routing: [[0.0; MAX_MODELS]; MAX_MODELS],
            tokens_per_row: [0.0; MAX_MODELS],
            commit: [[0.0; MAX_MODELS]; MAX_MODELS],
            slowdown: [1.0; MAX_MODELS],
            parts: Vec::with_capacity(models),
            slowed: setting.slowdown.iter().any(|&s| s > 1.0),
            start: [0; MAX_MODELS],
        };
        let visits = setting.visits();
        let mut time = [0.0; MAX_MODELS];
        for i in 0..models {
            this.most[i] = setting.max_batch[i].min(requests);
            // No table has steps of no time where it was checked; one beyond that must not stop the clock.
            let step = |rows| setting.latency[i].at(rows).max(1) as f64;
            this.latency.push((1..=this.most[i]).map(step).collect());
            this.routing[i][..models].copy_from_slice(&setting.routing[i]);
            this.commit[i][..models].copy_from_slice(&setting.commit[i]);
            this.tokens_per_row[i] = setting.tokens_per_row(i);
            this.slowdown[i] = setting.slowdown[i];
            let parts = |rows: usize| setting.parts[i].get(rows - 1).or(setting.parts[i].last());
            this.parts
                .push((1..=this.most[i]).map(|rows| parts(rows).copied().unwrap_or_default()).collect());
            time[i] = visits[i] * step(1);
        }
        this.spread(&time[..models]);
        this
    }

    /// Deals the requests out in proportion to `time`.
    fn spread(&mut self, time: &[f64]) {
        let total: f64 = time.iter().sum();
        let (mut passed, mut dealt) = (0.0, 0);
        for (start, share) in self.start.iter_mut().zip(time) {
            passed += share;
            let until = (passed / total * self.requests as f64).round() as usize;
            *start = until.min(self.requests) - dealt;
            dealt += *start;
        }
    }

    /// N.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    fn step(&self, model: usize, rows: usize) -> f64 {
        self.latency[model][rows.clamp(1, self.most[model]) - 1]
    }
}

/// Sums over the time so far. Steps in progress count by the part that is done, so that differences of two sums
/// hold no jump at their ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) time: f64,
    pub(super) tokens: f64,
    pub(super) busy: [f64; MAX_MODELS],
    pub(super) rows: [u64; MAX_MODELS],
    pub(super) batches: [u64; MAX_MODELS],
    pub(super) epochs: u64,
}

impl Sums {
    /// Adds what lies between two moments.
    pub(super) fn add(&mut self, from: &Sums, to: &Sums) {
        self.time += to.time - from.time;
        self.tokens += to.tokens - from.tokens;
        self.epochs += to.epochs - from.epochs;
        for i in 0..MAX_MODELS {
            self.busy[i] += to.busy[i] - from.busy[i];
            self.rows[i] += to.rows[i] - from.rows[i];
            self.batches[i] += to.batches[i] - from.batches[i];
        }
    }

    /// Tokens per second.
    pub(super) fn tokens_per_s(&self) -> f64 {
        if self.time > 0.0 { self.tokens * 1e9 / self.time } else { 0.0 }
    }
}

/// One candidate's simulation; it can be continued.
pub(super) struct Run {
    views: [ModelView; MAX_MODELS],
    /// Rows in flight.
    batch: [usize; MAX_MODELS],
    /// Work left on them.
    left: [f64; MAX_MODELS],
    running: usize,
    launches: u64,
    /// Where each model reads its draws.
    cursor: [usize; MAX_MODELS],
    sums: Sums,
    /// Rows that are finished.
    done: u64,
    /// Changes of the phase so far.
    shifts: u64,
    predicts: bool,
    tail: Option<Tail>,
}

impl Run {
    /// All requests wait. `tail`: also measures the times between the tokens of each request.
    pub(super) fn new(setting: &Prepared, policy: &Policy, tail: bool) -> Self {
        let mut this = Self {
            views: [ModelView::default(); MAX_MODELS],
            batch: [0; MAX_MODELS],
            left: [0.0; MAX_MODELS],
            running: 0,
            launches: 0,
            cursor: [0; MAX_MODELS],
            sums: Sums::default(),
            done: 0,
            shifts: 0,
            predicts: policy.predicts(),
            tail: tail.then(|| Tail::new(&setting.start[..setting.models])),
        };
        for model in 0..setting.models {
            let view = &mut this.views[model];
            view.ready = setting.start[model];
            view.visitors = setting.requests;
            view.step = Some(setting.step(model, 1) as Nanos);
            this.renew_queue(setting, model);
        }
        this
    }

    /// Rows finished so far.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Epochs so far.
    pub(super) fn epochs(&self) -> u64 {
        self.sums.epochs
    }

    /// The sums now, with what is in flight.
    pub(super) fn sums(&self, setting: &Prepared) -> Sums {
        let mut sums = self.sums;
        for model in 0..setting.models {
            if self.batch[model] > 0 {
                let whole = setting.step(model, self.batch[model]);
                let part = 1.0 - self.left[model] / whole;
                sums.tokens += setting.tokens_per_row[model] * self.batch[model] as f64 * part;
            }
        }
        sums
    }

    /// Whether times between tokens count from now on.
    pub(super) fn count_tail(&mut self, counts: bool) {
        if let Some(tail) = &mut self.tail {
            tail.count(counts);
        }
    }

    /// Puts every batch in flight at some other point of its step, the same for every candidate.
    pub(super) fn shift(&mut self, setting: &Prepared) {
        self.shifts += 1;
        for model in 0..setting.models {
            if self.batch[model] > 0 {
                let word = mix(self.shifts * MAX_MODELS as u64 + model as u64);
                let part = (word >> 11) as f64 / (1u64 << 53) as f64;
                self.left[model] = setting.step(model, self.batch[model]) * (1.0 - part);
            }
        }
    }

    /// The 99th percentile of the times between tokens, in nanoseconds.
    pub(super) fn p99(&mut self) -> Option<Nanos> {
        self.tail.as_mut().and_then(Tail::p99)
    }

    /// Goes on until `rows` rows are finished, or nothing runs.
    pub(super) fn advance(&mut self, setting: &Prepared, policy: &Policy, draws: &Draws, rows: u64) {
        while self.done < rows {
            let decision = decide(policy, &self.views[..setting.models]);
            for model in decision.launch.iter() {
                self.launch(setting, model.index());
            }
            if self.running == 0 {
                return;
            }
            let ended = self.pass_time(setting);
            for model in (0..setting.models).rev().filter(|m| ended & (1 << m) != 0) {
                self.deliver(setting, draws, model);
            }
            self.renew(setting);
        }
    }

    fn launch(&mut self, setting: &Prepared, model: usize) {
        let view = &mut self.views[model];
        let rows = view.ready.min(setting.most[model]);
        view.ready -= rows;
        view.busy = true;
        view.full = view.ready >= setting.most[model];
        self.launches += 1;
        view.last_launch = self.launches;
        self.batch[model] = rows;
        self.left[model] = setting.step(model, rows);
        self.running += 1;
        self.sums.batches[model] += 1;
        self.sums.rows[model] += rows as u64;
    }

    /// To the next end of a step; says which have ended, as bits.
    fn pass_time(&mut self, setting: &Prepared) -> u32 {
        let mut speeds = [1.0; MAX_MODELS];
        if setting.slowed && self.running > 1 {
            self.share(setting, &mut speeds);
        }
        let speed = |m: usize| speeds[m];
        let mut next = f64::INFINITY;
        for model in 0..setting.models {
            if self.batch[model] > 0 {
                next = next.min(self.left[model] / speed(model));
            }
        }
        self.sums.time += next;
        self.sums.epochs += 1;
        let mut ended = 0;
        for model in 0..setting.models {
            if self.batch[model] > 0 {
                self.sums.busy[model] += next;
                self.left[model] -= next * speed(model);
                ended |= u32::from(self.left[model] <= TOGETHER + next * ROUNDING) << model;
            }
        }
        ended
    }

    /// The speeds of steps that run beside one another.
    fn share(&self, setting: &Prepared, speeds: &mut [f64; MAX_MODELS]) {
        let parts = |m: usize| setting.parts[m][self.batch[m] - 1];
        let running = |m: &usize| self.batch[*m] > 0;
        for m in (0..setting.models).filter(running) {
            let others = (0..setting.models).filter(|other| *other != m).filter(running);
            let imposed = others.map(|other| parts(other).imposed).fold(0.0, f64::max);
            speeds[m] = 1.0 / slowdown_beside(setting.slowdown[m], parts(m).own, imposed);
        }
    }

    /// Ends a step: its requests go where the draws say.
    fn deliver(&mut self, setting: &Prepared, draws: &Draws, model: usize) {
        let mut rows = self.batch[model];
        self.batch[model] = 0;
        self.views[model].busy = false;
        self.running -= 1;
        self.done += rows as u64;
        self.sums.tokens += setting.tokens_per_row[model] * rows as f64;
        let sequence = draws.of(model);
        while rows > 0 {
            let at = self.cursor[model];
            let part = &sequence[at..sequence.len().min(at + rows)];
            let mut arrivals = [0usize; MAX_MODELS];
            part.iter().for_each(|&to| arrivals[usize::from(to) % MAX_MODELS] += 1);
            for (view, new) in self.views.iter_mut().zip(arrivals) {
                view.ready += new;
            }
            if let Some(tail) = &mut self.tail {
                tail.deliver(model, part, &setting.commit[model], self.sums.time);
            }
            rows -= part.len();
            self.cursor[model] = if at + part.len() >= sequence.len() { 0 } else { at + part.len() };
        }
    }

    /// Brings the views up to the new counts and times.
    fn renew(&mut self, setting: &Prepared) {
        for model in 0..setting.models {
            if self.batch[model] == 0 {
                self.renew_queue(setting, model);
            } else {
                self.views[model].full = self.views[model].ready >= setting.most[model];
                self.views[model].ends_in = Some(self.left[model] as Nanos);
            }
        }
    }

    /// The view of an idle model.
    fn renew_queue(&mut self, setting: &Prepared, model: usize) {
        let view = &mut self.views[model];
        view.full = view.ready >= setting.most[model];
        if self.predicts {
            let rows = view.ready.min(setting.most[model]);
            view.ends_in = Some(setting.step(model, rows) as Nanos);
            for to in 0..setting.models {
                view.sends[to] = setting.routing[model][to] * rows as f64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::Contention;
    use crate::ids::ModelId;
    use crate::policy::LatencyTable;

    fn three(slowdown: [f64; 3]) -> Setting {
        Setting {
            routing: vec![vec![0.5, 0.3, 0.2]; 3],
            commit: vec![vec![1.0; 3]; 3],
            latency: [6_000_000, 12_100_000, 27_900_000].map(LatencyTable::constant).to_vec(),
            slowdown: slowdown.to_vec(),
            parts: vec![Vec::new(); 3],
            entry: ModelId(0),
            max_batch: vec![64, 3, 64],
        }
    }

    #[test]
    fn the_clock_is_that_of_the_simulator() {
        the_clocks_agree(&three([1.5, 1.0, 1.23]));
    }

    #[test]
    fn the_clock_is_that_of_the_simulator_where_steps_share_by_their_size() {
        let parts = |rows: usize| Parts { own: 1.0 / rows as f64, imposed: 0.5 + 0.5 / rows as f64 };
        let parts = vec![(1..=9).map(parts).collect(), Vec::new(), (1..=4).map(parts).collect()];
        the_clocks_agree(&Setting { parts, ..three([1.5, 1.3, 1.23]) });
    }

    fn the_clocks_agree(setting: &Setting) {
        let (policy, draws) = (Policy::default(), Draws::new(setting, 10_000, 3).expect("draws"));
        let prepared = Prepared::new(setting, 9);
        let mut run = Run::new(&prepared, &policy, false);
        let mut clock = Contention::new(&setting.slowdown);
        let mut now = 0;
        while run.done < 5_000 {
            for model in decide(&policy, &run.views[..3]).launch.iter().map(ModelId::index) {
                run.launch(&prepared, model);
                let parts = prepared.parts[model][run.batch[model] - 1];
                clock.start(model, run.left[model] as Nanos, parts, now);
            }
            let ended = run.pass_time(&prepared);
            now = clock.next().expect("a step runs");
            // The simulator's clock rounds every step to a nanosecond.
            assert!((run.sums.time - now as f64).abs() < run.sums.epochs as f64, "{now}: {:?}", run.sums);
            let mut over = 0;
            while over != ended {
                // Ends that rounding has split are a few nanoseconds apart.
                now = clock.next().expect("a step runs");
                over |= (0..3).filter(|&m| clock.finish(m, now)).map(|m| 1 << m).sum::<u32>();
                assert_eq!(over & !ended, 0, "at {now}");
            }
            for model in (0..3).filter(|m| ended & (1 << m) != 0) {
                run.deliver(&prepared, &draws, model);
            }
            run.renew(&prepared);
            assert!((0..3).all(|m| clock.is_busy(m) == (run.batch[m] > 0)));
        }
    }

    #[test]
    fn requests_are_neither_lost_nor_made() {
        let setting = three([1.3; 3]);
        let draws = Draws::new(&setting, 1_000, 3).expect("draws");
        for policy in [Policy::StepSync, Policy::Eager, Policy::default()] {
            let prepared = Prepared::new(&setting, 11);
            let mut run = Run::new(&prepared, &policy, true);
            for rows in (0..4_000).step_by(40) {
                run.advance(&prepared, &policy, &draws, rows);
                run.shift(&prepared);
                let waiting: usize = run.views.iter().map(|v| v.ready).sum();
                assert_eq!(waiting + run.batch.iter().sum::<usize>(), 11, "{policy:?}");
                assert!(run.batch[1] <= 3, "a batch over its limit");
            }
        }
    }
}
