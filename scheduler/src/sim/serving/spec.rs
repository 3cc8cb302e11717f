//! What is simulated: devices, workload, clients, how long.

use super::phase::Phase;
use crate::config::CoreConfig;
use crate::ids::Nanos;
use crate::measured::Measured;
use crate::router::mix;
use crate::sharing::Sharing;
use crate::sim::random::Random;

/// A whole run. Equal specs (and routers) give equal reports.
#[derive(Clone, Debug)]
pub struct ServingSpec {
    /// The core, its policy included. `eos_ids` is overwritten: the simulator ends answers itself.
    pub config: CoreConfig,
    /// One per model.
    pub devices: Vec<ServingDevice>,
    /// What the core knows about their steps from the start, one per model; empty: nothing.
    pub measured: Vec<Measured>,
    /// Who asks what when.
    pub workload: Workload,
    /// What clients do to their requests.
    pub clients: ClientFaults,
    /// Virtual time that a round of the online planner takes, if the core has one.
    pub planning_time: Nanos,
    /// Changes along the way, in order of time.
    pub changes: Vec<Change>,
    /// Where [`ChangeKind::Phase`] is written for a [`super::SwitchRouter`].
    pub phase: Phase,
    /// How much is run.
    pub length: RunLength,
    /// Seeds everything.
    pub seed: u64,
    /// [`crate::Core::audit`] after every event.
    pub audit: bool,
}

/// A virtual device: how long a step takes alone, and how it fails.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServingDevice {
    /// Of every step.
    pub base: Nanos,
    /// Per row.
    pub per_row: Nanos,
    /// Per token fed.
    pub per_token: Nanos,
    /// Added to the above: points (fed tokens, time) in order of fed tokens, linear between them, constant outside.
    pub table: Vec<(u32, Nanos)>,
    /// Added to the above: points (rows, time) in order of rows, linear between them, constant outside. What rows cost
    /// beside the tokens that they feed: the output matrix and a draw for each.
    pub rows: Vec<(u32, Nanos)>,
    /// Added: nanoseconds per token that is before the first token that a row feeds, for reading it.
    pub per_cached: f64,
    /// Added: the same for every further token that the row feeds. Tokens of a row are fed together and share the
    /// reading, so this is less than `per_cached` where reading is what takes time.
    pub per_cached_further: f64,
    /// Standard deviation of the step time, relative.
    pub jitter: f64,
    /// How many times slower it is while another model runs; at least 1.
    pub slowdown: f64,
    /// How much of that a step suffers and causes, by the tokens that it feeds.
    pub sharing: Sharing,
    /// Chance that a step fails.
    pub step_failure: f64,
    /// Chance that a row of a step has no usable result.
    pub row_fault: f64,
    /// Windows of time (from, to) in which no step ends: those that would, end at `to`.
    pub stalls: Vec<(Nanos, Nanos)>,
    /// Every step that ends at this time or later fails.
    pub dies_at: Option<Nanos>,
}

impl ServingDevice {
    /// A step of `rows` rows that feed `fed` tokens, without what attention reads, alone and without jitter.
    pub fn step_time(&self, rows: usize, fed: usize) -> Nanos {
        let by_rows = self.per_row.saturating_mul(rows as Nanos);
        let by_tokens = self.per_token.saturating_mul(fed as Nanos);
        let linear = self.base.saturating_add(by_rows).saturating_add(by_tokens);
        linear.saturating_add(at(&self.table, fed)).saturating_add(at(&self.rows, rows))
    }

    /// The step of these rows: tokens in the cache, and tokens that the row feeds behind them.
    pub fn step_time_of(&self, rows: impl IntoIterator<Item = (usize, usize)>) -> Nanos {
        let (mut count, mut fed, mut reading) = (0, 0, 0.0);
        for (cached, tokens) in rows {
            count += 1;
            fed += tokens;
            reading += self.reading(cached, tokens);
        }
        (self.step_time(count, fed) as f64 + reading).max(1.0) as Nanos
    }

    /// Nanoseconds of attention for a row that has `cached` tokens and feeds `fed` more: every token reads all before it.
    pub fn reading(&self, cached: usize, fed: usize) -> f64 {
        let (cached, further) = (cached as f64, fed.saturating_sub(1) as f64);
        let read = further * cached + further * (further + 1.0) / 2.0;
        cached * self.per_cached + read * self.per_cached_further
    }
}

/// The value of a table at `x`.
fn at(table: &[(u32, Nanos)], x: usize) -> Nanos {
    let x = x as f64;
    let after = table.partition_point(|&(at, _)| f64::from(at) <= x);
    let point = |i: usize| table.get(i).map(|&(at, time)| (f64::from(at), time as f64));
    match (after.checked_sub(1).and_then(point), point(after)) {
        (Some((x0, y0)), Some((x1, y1))) => (y0 + (y1 - y0) * (x - x0) / (x1 - x0)) as Nanos,
        (Some((_, y)), None) | (None, Some((_, y))) => y as Nanos,
        (None, None) => 0,
    }
}

/// A number that is drawn anew each time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Always the same.
    Constant(u32),
    /// From the first to the second, both included.
    Uniform(u32, u32),
    /// At least 1, with this mean, and without memory.
    Geometric(f64),
}

impl Length {
    /// Draws one.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Self::Constant(n) => n,
            Self::Uniform(low, high) => random.range(u64::from(low), u64::from(high.max(low))) as u32,
            Self::Geometric(mean) if mean > 1.0 => {
                let trials = random.unit().ln() / (1.0 - 1.0 / mean).ln();
                trials.ceil().clamp(1.0, f64::from(u32::MAX)) as u32
            }
            Self::Geometric(_) => 1,
        }
    }
}

/// Who asks what when.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// When conversations start.
    pub arrivals: Arrivals,
    /// Tokens of the first prompt of a conversation, the shared beginning not among them.
    pub prompt: Length,
    /// Tokens of the answers.
    pub answer: Length,
    /// Requests of a conversation. The prompt of each is all that was said before, and new tokens.
    pub turns: Length,
    /// New tokens of every later prompt.
    pub follow_up: Length,
    /// Time between the end of a request and the client's next one.
    pub think: Nanos,
    /// Tokens with which every first prompt begins, the same for all.
    pub shared_prefix: u32,
    /// The limit that clients ask for; without one, exactly the length of the answer.
    pub max_new_tokens: Option<u32>,
    /// Shares of the routes, by route; empty: all at the first.
    pub shares: Vec<f64>,
    /// Clients of a closed loop cut their first answers to different lengths, from a part to the whole, so that answers of
    /// one length do not begin and end together for ever (`tokenrouter bench` does so in its warm-up).
    pub staggered: bool,
}

/// When conversations start.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients; each starts its next conversation when the last one is over.
    Closed(usize),
    /// A Poisson process with so many conversations per second.
    Poisson(f64),
    /// So many at once, again and again after this time.
    Bursts(usize, Nanos),
    /// As recorded.
    Trace(Vec<TraceRequest>),
}

/// A recorded request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceRequest {
    /// Arrival. One of a session waits until the session's last request is over.
    pub at: Nanos,
    /// Tokens of the prompt, all in all.
    pub prompt: u32,
    /// Tokens of the answer.
    pub answer: u32,
    /// Requests of one session go on where the last one ended, as far as the length of the prompt allows.
    pub session: Option<u64>,
    /// So many leading tokens of the prompt are the same for all requests of the trace.
    pub shared: u32,
    /// Where the request went after each of its steps, for a [`super::ReplayRouter`].
    pub destinations: Vec<u8>,
}

/// What clients do to their requests. Whom it happens to, and when, is drawn from the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClientFaults {
    /// Share of the requests whose client goes away after some tokens.
    pub vanish: f64,
    /// Share of the requests in which a stop string matches after some tokens; up to three of them are taken back.
    pub stop: f64,
    /// How long a client waits for the first token before it goes away.
    pub patience: Option<Nanos>,
}

/// Something that changes while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at: Nanos,
    /// What.
    pub what: ChangeKind,
}

/// What can change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChangeKind {
    /// From now on, the steps of a model take so many times their original time.
    Latency(usize, f64),
    /// From now on, so many clients of a closed loop: those beyond go away.
    Clients(usize),
    /// From now on, a [`super::SwitchRouter`] follows the router of this number.
    Phase(usize),
}

/// How much is run. Whatever comes first ends the run; without tokens and time, the end of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunLength {
    /// Tokens that are run and not measured.
    pub warm_up: u64,
    /// Tokens that are measured.
    pub tokens: Option<u64>,
    /// Time, the warm-up included.
    pub time: Option<Nanos>,
}

/// A generator for one purpose.
pub(super) fn keyed(seed: u64, purpose: u64, number: u64) -> Random {
    Random::new(mix(mix(seed ^ mix(purpose)) ^ number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_times_add_up_and_the_table_is_linear_between_its_points() {
        let device = ServingDevice {
            base: 100,
            per_row: 10,
            per_token: 1,
            table: vec![(8, 1_000), (16, 2_000)],
            ..ServingDevice::default()
        };
        assert_eq!(
            [1, 8, 12, 16, 99].map(|fed| super::at(&device.table, fed)),
            [1000, 1000, 1500, 2000, 2000]
        );
        assert_eq!(device.step_time(3, 12), 100 + 30 + 12 + 1_500);
        assert_eq!(ServingDevice { base: 7, ..ServingDevice::default() }.step_time(9, 9), 7);
    }

    #[test]
    fn rows_and_contexts_cost_what_was_measured() {
        let device = ServingDevice {
            table: vec![(1, 1_000), (8, 8_000)],
            rows: vec![(1, 0), (8, 700)],
            per_cached: 2.5,
            per_cached_further: 0.5,
            ..ServingDevice::default()
        };
        assert_eq!([device.step_time(1, 8), device.step_time(8, 8)], [8_000, 8_700]);
        assert_eq!(device.step_time_of([(0, 1)]), 1_000);
        assert_eq!(device.step_time_of([(200, 1), (1_000, 1)]), device.step_time(2, 2) + 3_000);
        // Eight tokens in a row behind 100: the first reads 100 at 2.5, the others 101 to 107 at 0.5.
        assert_eq!(device.step_time_of([(100, 8)]), 8_000 + 250 + 364);
        // A prompt of eight reads only itself, however long the contexts of others are.
        assert_eq!(device.step_time_of([(0, 8), (100, 1)]), device.step_time(2, 9) + 14 + 250);
    }

    #[test]
    fn lengths_have_their_means_and_bounds() {
        let mut random = Random::new(3);
        for mean in [1.0, 2.5, 300.0] {
            let draws: Vec<u32> = (0..20_000).map(|_| Length::Geometric(mean).draw(&mut random)).collect();
            let found = draws.iter().map(|&n| f64::from(n)).sum::<f64>() / 20_000.0;
            assert!(draws.iter().all(|&n| n >= 1) && (found / mean - 1.0).abs() < 0.05, "{found} for {mean}");
        }
        let draws: Vec<u32> = (0..1_000).map(|_| Length::Uniform(3, 6).draw(&mut random)).collect();
        assert_eq!((draws.iter().min(), draws.iter().max()), (Some(&3), Some(&6)));
    }
}
