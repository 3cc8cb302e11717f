//! How long the steps of one model take: alone, by fed tokens, and beside other models.
//!
//! A step's cost depends on the tokens it feeds (weights are read once, every token is computed; a captured graph is
//! keyed by them, DESIGN rule 8), so times are kept by fed tokens. The rows of a batch enter through the tokens that
//! a row feeds on average.
//!
//! *Level and shape.* The logarithm of a time is the sum of a shape by fed tokens, which is learned slowly, and a
//! level that all batches share. When the machine becomes slower or faster the level says so at once, also for
//! batches that have not been seen since; a level that was wrong for a while leaves no trace in them. Times are
//! skewed, so means are of logarithms, a time far from its prediction counts only so far, and the spread is added
//! where a mean time is asked for.
//!
//! *Slowdown.* A step that runs beside others for a share `x` of its time progresses then at `1 / s` of its speed:
//! its speed over all, `1 / time`, is `(1 - c x) / alone` with `c = 1 - 1 / s`. So `c` is the slope of the speed over
//! the share within a bucket of fed tokens, from all buckets together. While the share hardly varies it is pulled to
//! that of the other models, which run on the same device, and to 0 (no slowdown) while they know nothing either.
//! What a step alone takes follows from it. It is forgotten only as far as new shares say something else: a policy
//! that never lets two models run together teaches nothing about what happens when they do.
//!
//! *Changes.* The last few times are compared with the level. When they are off by three standard errors (and 5 %),
//! and the next steps too, the level jumps there.

mod seed;

use crate::estimate::overlap::Spent;
use crate::ids::Nanos;

/// Fed tokens are sorted into exact buckets up to 8 and four per octave above.
const BUCKETS: usize = 64;
/// The shape follows the last so many steps of a bucket.
const WINDOW: f64 = 32.0;
/// The level follows the last so many steps, and passes into the shape of all buckets over so many.
const LEVEL_WINDOW: f64 = 60.0;
const PASSING: f64 = 300.0;
/// The usual time is of the last so many steps.
const USUAL_WINDOW: f64 = 32.0;
/// The slope follows as many of the last steps as have this sum of squared deviations of the share.
const SLOPE_WINDOW: f64 = 20.0;
/// The slope is pulled as by this sum of squares: two steps that differ by half in their share.
const PULL: f64 = 0.5;
/// ...and by this times the relative variance of the times: half a standard deviation is what c is before it is known.
const NOISE_PULL: f64 = 4.0;
/// Whatever rows are said to cost, at least this part of a step is for its tokens.
const LEAST_TOKENS: f64 = 0.2;
/// Tokens per row follow the last so many steps.
const ROWS_WINDOW: f64 = 300.0;
/// A time so many times as long as predicted, or as short, is not taken for the effect of what is predicted, and
/// counts as this one.
const OUTLIER: f64 = 2.0;
const FURTHEST: f64 = 3.0;
/// The short window of times that are compared with the level, in steps, and that of their spread.
const SHORT: usize = 6;
const SPREAD_WINDOW: f64 = 60.0;
/// Steps after a suspicion that must confirm it; one when it took an outlier to raise it.
const CONFIRMING: usize = 2;
const STANDARD_ERRORS: f64 = 3.0;
const LEAST_CHANGE: f64 = 0.05;

/// Steps of about as many fed tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    samples: f64,
    /// Mean of fed tokens, and of the logarithm of the time alone less the level.
    fed: f64,
    shape: f64,
    /// For the slope: samples, mean speed over all (1 / ns), and mean share beside others.
    pairs: f64,
    speed: f64,
    share: f64,
}

impl Bucket {
    fn add(&mut self, fed: f64, shape: f64) {
        self.samples = (self.samples + 1.0).min(WINDOW);
        self.fed += (fed - self.fed) / self.samples;
        self.shape += (shape - self.shape) / self.samples;
    }

    /// Speed and share are averaged alike, so that one is a straight line of the other at any time.
    fn pair(&mut self, speed: f64, share: f64) {
        self.pairs = (self.pairs + 1.0).min(WINDOW);
        self.speed += (speed - self.speed) / self.pairs;
        self.share += (share - self.share) / self.pairs;
    }
}

/// The step times of one model.
#[derive(Clone, Debug)]
pub(crate) struct StepTimes {
    buckets: [Bucket; BUCKETS],
    /// The logarithm that is added to the shape.
    level: f64,
    /// Mean time of all steps as they were, and how many are in it.
    usual: f64,
    steps: f64,
    /// Fed tokens per row, over steps that fed no prompt.
    fed_per_row: f64,
    rows_seen: f64,
    /// Sums over deviations from the bucket's means: share times speed (in units of the speed alone), share squared.
    cross: f64,
    square: f64,
    /// c of the other models.
    prior: f64,
    /// The models that take turns with it, itself included; 1 for a model that runs when it likes.
    turns: f64,
    /// The last logarithms of time over shape, how many there were, and their mean square distance from the level.
    offsets: [f64; SHORT],
    watched: usize,
    spread: f64,
    /// The number of the step that made the offsets suspicious, and whether it was an outlier.
    suspected: Option<usize>,
    raised_by_outlier: bool,
    age: u64,
    total: u64,
    /// It began with measured times.
    seeded: bool,
    /// What rows cost beside the tokens that they feed, as it was measured: points (rows, ns) in order of rows.
    rows: Vec<(f64, f64)>,
}

impl StepTimes {
    pub(crate) fn new() -> Self {
        Self {
            buckets: [Bucket::default(); BUCKETS],
            level: 0.0,
            usual: 0.0,
            steps: 0.0,
            fed_per_row: 1.0,
            rows_seen: 0.0,
            cross: 0.0,
            square: 0.0,
            prior: 0.0,
            turns: 1.0,
            offsets: [0.0; SHORT],
            watched: 0,
            spread: 0.0,
            suspected: None,
            raised_by_outlier: false,
            age: 0,
            total: 0,
            seeded: false,
            rows: Vec::new(),
        }
    }

    /// A step of `rows` rows and `fed` tokens, `prompt` of them of prompts, took `spent`. True when steps take longer
    /// or shorter than before.
    pub(crate) fn add(&mut self, rows: usize, fed: usize, prompt: usize, spent: Spent) -> bool {
        let time = (spent.total() as f64).max(1.0);
        let share = spent.beside as f64 / time;
        self.age += 1;
        self.total += 1;
        self.steps = (self.steps + 1.0).min(USUAL_WINDOW);
        self.usual += (time - self.usual) / self.steps;
        if prompt == 0 {
            self.rows_seen = (self.rows_seen + 1.0).min(ROWS_WINDOW);
            self.fed_per_row += (fed as f64 / rows.max(1) as f64 - self.fed_per_row) / self.rows_seen;
        }
        // The logarithm of the time alone that the tokens took, without what rows cost beside them.
        let whole = time * (1.0 - self.loss() * share);
        let alone = (whole - self.of_rows(rows as f64)).max(LEAST_TOKENS * whole).ln();
        let at = bucket(fed);
        let Some((_, shape)) = self.seen(at) else {
            let shape = self.plausible(fed, alone - self.level);
            self.buckets[at].add(fed as f64, shape);
            self.buckets[at].pair(1.0 / time, share);
            return false;
        };
        let offset = alone - shape;
        let changed = self.watch(offset);
        // A time that something else explains says nothing about the share.
        if self.suspected.is_none() && is_usual(offset - self.level) {
            self.add_slope(at, time, share);
        }
        let furthest = FURTHEST.ln();
        let offset = self.level + (offset - self.level).clamp(-furthest, furthest);
        self.buckets[at].add(fed as f64, shape + offset - self.level);
        self.pass();
        changed
    }

    /// The shape that the first step of a bucket says, unless it is far from what its neighbours say: a step that feeds
    /// so many times the tokens takes between as long and so many times as long.
    fn plausible(&self, fed: usize, shape: f64) -> f64 {
        let at = bucket(fed);
        let near = (0..at).rev().find_map(|i| self.seen(i)).or((at + 1..BUCKETS).find_map(|i| self.seen(i)));
        let Some((near_fed, near)) = near else { return shape };
        let in_proportion = near + (fed.max(1) as f64 / near_fed.max(1.0)).ln();
        let furthest = FURTHEST.ln();
        shape.clamp(near.min(in_proportion) - furthest, near.max(in_proportion) + furthest)
    }

    /// A step of the bucket for the slope of the speed over the share.
    fn add_slope(&mut self, at: usize, time: f64, share: f64) {
        let before = self.buckets[at];
        if before.pairs < 1.0 || !is_usual((time * before.speed).ln()) {
            // What the bucket remembers is of another time.
            (self.buckets[at].pairs, self.buckets[at].speed, self.buckets[at].share) = (0.0, 0.0, 0.0);
            return self.buckets[at].pair(1.0 / time, share);
        }
        // A deviation from a mean over few counts less by the variance of that mean.
        let weight = before.pairs / (before.pairs + 1.0);
        let unit = 1.0 - self.loss() * before.share;
        let (x, y) = (share - before.share, unit * (1.0 / (time * before.speed) - 1.0));
        let kept = 1.0 - weight * x * x / SLOPE_WINDOW;
        self.cross = self.cross * kept + weight * x * y;
        self.square = self.square * kept + weight * x * x;
        self.buckets[at].pair(1.0 / time, share);
    }

    /// Compares a time with the level, which follows it.
    fn watch(&mut self, offset: f64) -> bool {
        self.offsets[self.watched % SHORT] = offset;
        self.watched += 1;
        let off = offset - self.level;
        let Some(since) = self.suspected else {
            let outlier = !is_usual(off) && self.off(1);
            let suspicious = self.watched >= SHORT && (outlier || self.off(SHORT));
            self.suspected = suspicious.then_some(self.watched);
            self.raised_by_outlier = outlier;
            // What is suspicious is no noise, unless it was a false alarm.
            if !suspicious {
                self.follow(off);
            }
            return false;
        };
        let confirming = if self.raised_by_outlier { 1 } else { CONFIRMING };
        if self.watched < since + confirming {
            return false;
        }
        self.suspected = None;
        let changed = self.off(confirming);
        if changed {
            self.jump(self.mean_offset(confirming));
        } else {
            for back in 1..=confirming + 1 {
                self.follow(self.offsets[(self.watched - back) % SHORT] - self.level);
            }
        }
        changed
    }

    /// The level and the spread follow a time that is `off` from the level.
    fn follow(&mut self, off: f64) {
        let off = off.clamp(-FURTHEST.ln(), FURTHEST.ln());
        let count = (self.watched as f64).max(1.0);
        self.level += off / count.min(LEVEL_WINDOW);
        self.spread += (off * off - self.spread) / count.min(SPREAD_WINDOW);
    }

    /// What has become of the level goes over into the shape of all buckets.
    fn pass(&mut self) {
        let part = self.level / PASSING;
        self.level -= part;
        self.offsets.iter_mut().for_each(|offset| *offset -= part);
        self.buckets.iter_mut().for_each(|bucket| bucket.shape += part);
    }

    /// A step of `fed` tokens is in flight. When the last one took surprisingly long, and this one does already, that
    /// confirms it: the steps of a large model are few and far between. True when steps take longer than before.
    pub(crate) fn note_running(&mut self, fed: usize, spent: Spent) -> bool {
        if self.suspected != Some(self.watched) || !self.raised_by_outlier {
            return false;
        }
        let offset = self.mean_offset(1);
        let predicted = self.alone(fed).unwrap_or(f64::INFINITY);
        let late = offset - self.level > OUTLIER.ln() && self.done(spent) as f64 > OUTLIER * predicted;
        if late {
            self.suspected = None;
            self.jump(offset);
        }
        late
    }

    /// The mean of the last offsets; of more than two without the one furthest up and the one furthest down, so that a
    /// hiccup is none.
    fn mean_offset(&self, count: usize) -> f64 {
        let last = || (1..=count).map(|back| self.offsets[(self.watched - back) % SHORT]);
        let sum: f64 = last().sum();
        if count <= CONFIRMING {
            return sum / count as f64;
        }
        let (most, least) = (last().fold(f64::MIN, f64::max), last().fold(f64::MAX, f64::min));
        (sum - most - least) / (count - 2) as f64
    }

    /// Whether the last offsets are too far from the level.
    fn off(&self, count: usize) -> bool {
        let kept = if count <= CONFIRMING { count } else { count - 2 };
        let error = (self.spread / kept as f64).sqrt();
        (self.mean_offset(count) - self.level).abs() > (STANDARD_ERRORS * error).max(LEAST_CHANGE)
    }

    /// All steps take as long as `level` says.
    fn jump(&mut self, level: f64) {
        self.level = level;
        self.watched = 0;
        self.age = 0;
    }

    /// c: the share of its speed that the model loses beside others, 0 to the most that may be lost.
    pub(crate) fn loss(&self) -> f64 {
        // With noisy times the same shares say less.
        let pull = PULL + NOISE_PULL * self.spread;
        ((pull * self.prior - self.cross) / (self.square + pull)).clamp(0.0, crate::sharing::MOST_LOSS)
    }

    /// How much is known about it: the sum of squared deviations of the share.
    pub(crate) fn knowledge(&self) -> f64 {
        self.square
    }

    /// What the other models lose.
    pub(crate) fn set_prior(&mut self, loss: f64) {
        self.prior = loss;
    }

    /// s: how much longer a step takes while other models run; 1 while nothing is known. A model that takes turns is that
    /// much slower in effect, and is never seen beside the others.
    pub(crate) fn slowdown(&self) -> f64 {
        (1.0 / (1.0 - self.loss())).max(self.turns)
    }

    /// The model takes turns with others; `models` of them in all.
    pub(crate) fn set_turns(&mut self, models: usize) {
        self.turns = self.turns.max(models as f64);
    }

    /// Whether the model never runs beside some others.
    pub(crate) fn takes_turns(&self) -> bool {
        self.turns > 1.0
    }

    /// The part of a step alone that was done in the time spent so far, in ns.
    pub(crate) fn done(&self, spent: Spent) -> Nanos {
        spent.alone + (spent.beside as f64 * (1.0 - self.loss())) as Nanos
    }

    /// The usual time of a step as it was; none before the first.
    pub(crate) fn usual(&self) -> Option<Nanos> {
        (self.steps > 0.0).then_some(self.usual as Nanos)
    }

    /// The mean time of a step of `fed` tokens alone: of its bucket, or between the nearest buckets that were seen
    /// (the nearest one beyond the first and last); none before the first step.
    pub(crate) fn latency(&self, fed: usize) -> Option<Nanos> {
        self.alone(fed).map(|time| time.round() as Nanos)
    }

    fn alone(&self, fed: usize) -> Option<f64> {
        let rows = self.of_rows((fed as f64 / self.fed_per_row).max(1.0));
        self.shape(fed).map(|(_, shape)| self.time(shape) + rows)
    }

    /// The mean time of a shape.
    fn time(&self, shape: f64) -> f64 {
        (shape + self.level + 0.5 * self.spread).exp()
    }

    /// Fed tokens, and the shape of a step that feeds them.
    fn shape(&self, fed: usize) -> Option<(f64, f64)> {
        let at = bucket(fed);
        if let Some(seen) = self.seen(at) {
            return Some(seen);
        }
        let below = (0..at).rev().find_map(|i| self.seen(i));
        let above = (at + 1..BUCKETS).find_map(|i| self.seen(i));
        let fed = fed as f64;
        Some(match (below, above) {
            (Some((a, low)), Some((b, high))) => {
                let (low, high) = (low.exp(), high.exp());
                (fed, (low + (high - low) * (fed - a) / (b - a)).ln())
            }
            (Some((_, shape)), None) | (None, Some((_, shape))) => (fed, shape),
            (None, None) => return None,
        })
    }

    fn seen(&self, i: usize) -> Option<(f64, f64)> {
        let bucket = &self.buckets[i];
        (bucket.samples > 0.0).then_some((bucket.fed, bucket.shape))
    }

    /// Tokens that a row feeds, on average.
    pub(crate) fn fed_per_row(&self) -> f64 {
        self.fed_per_row
    }

    /// L: mean times of steps of 1, 2, .. `most` rows alone, for planning; none before the first step. Beyond what was
    /// seen they follow a straight line through all of it.
    pub(crate) fn by_rows(&self, most: usize) -> Option<Vec<Nanos>> {
        let point =
            |i: usize| self.seen(i).map(|(fed, shape)| (fed, self.time(shape), self.buckets[i].samples));
        let seen: Vec<(f64, f64, f64)> = (0..BUCKETS).filter_map(point).collect();
        let (first, last) = (*seen.first()?, *seen.last()?);
        let slope = line(&seen).max(0.0);
        let time = |rows: usize| {
            let fed = self.fed_per_row * rows as f64;
            let time = if fed > last.0 {
                last.1 + slope * (fed - last.0)
            } else if fed < first.0 {
                (first.1 - slope * (first.0 - fed)).max(first.1 / 4.0)
            } else {
                let above = seen.iter().position(|&(f, ..)| f >= fed).unwrap_or(0);
                let (b, a) = (seen[above], seen[above.saturating_sub(1)]);
                if b.0 > a.0 { a.1 + (b.1 - a.1) * (fed - a.0) / (b.0 - a.0) } else { b.1 }
            };
            (time + self.of_rows(rows as f64)).round().max(1.0) as Nanos
        };
        Some((1..=most.max(1)).map(time).collect())
    }

    /// Steps since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Steps since the start, or since they changed.
    pub(crate) fn age(&self) -> u64 {
        self.age
    }
}

/// Whether the logarithm of a time over its prediction may be chance.
fn is_usual(off: f64) -> bool {
    off.abs() < OUTLIER.ln()
}

/// The slope of the line through weighted points.
fn line(points: &[(f64, f64, f64)]) -> f64 {
    let total: f64 = points.iter().map(|p| p.2).sum();
    let mean =
        |value: fn(&(f64, f64, f64)) -> f64| points.iter().map(|p| value(p) * p.2).sum::<f64>() / total;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let (mut cross, mut square) = (0.0, 0.0);
    for &(fed, time, weight) in points {
        cross += weight * (fed - x) * (time - y);
        square += weight * (fed - x) * (fed - x);
    }
    if square > 0.0 { cross / square } else { 0.0 }
}

/// The bucket of a number of fed tokens.
fn bucket(fed: usize) -> usize {
    if fed < 8 {
        return fed;
    }
    let octave = fed.ilog2() as usize;
    (8 + (octave - 3) * 4 + ((fed >> (octave - 2)) & 3)).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    fn alone(time: Nanos) -> Spent {
        Spent { alone: time, beside: 0 }
    }

    fn times(samples: impl IntoIterator<Item = (usize, Spent)>) -> StepTimes {
        let mut times = StepTimes::new();
        samples.into_iter().for_each(|(fed, spent)| {
            times.add(fed, fed, 0, spent);
        });
        times
    }

    #[test]
    fn buckets_are_ordered() {
        for fed in 0..100_000usize {
            assert!(bucket(fed + 1) >= bucket(fed), "{fed}");
        }
        assert_eq!(
            (bucket(7), bucket(8), bucket(9), bucket(10), bucket(usize::MAX)),
            (7, 8, 8, 9, BUCKETS - 1)
        );
    }

    #[test]
    fn step_times_are_found_between_the_buckets_seen() {
        assert_eq!((StepTimes::new().latency(3), StepTimes::new().usual()), (None, None));
        let one = times([(2, alone(100))]);
        assert_eq!([1, 2, 9].map(|fed| one.latency(fed)), [Some(100); 3]);
        let two = times([(2, alone(100)), (6, alone(300))]);
        assert_eq!([1, 2, 4, 6, 7].map(|fed| two.latency(fed).unwrap()), [100, 100, 200, 300, 300]);
        assert_eq!(two.usual(), Some(200));
        assert_eq!(two.by_rows(8).unwrap(), [50, 100, 150, 200, 250, 300, 350, 400]);
    }

    #[test]
    fn rows_that_feed_several_tokens_are_planned_so() {
        // Two tokens per row; the prompt of 64 tokens says nothing about that.
        let mut times = StepTimes::new();
        for rows in [1, 3, 2, 4] {
            times.add(rows, 2 * rows, 0, alone(1_000 + 100 * rows as u64));
            times.add(1, 64, 64, alone(5_000));
        }
        let by_rows = times.by_rows(4).unwrap();
        assert_eq!(by_rows, [1_100, 1_200, 1_300, 1_400]);
    }

    #[test]
    fn a_change_is_found_within_a_few_steps_and_scales_every_bucket() {
        let mut random = Random::new(5);
        for (factor, jitter) in [(2.0, 0.0), (0.5, 0.05), (1.3, 0.02), (3.0, 0.2)] {
            let mut times = StepTimes::new();
            let mut step = |times: &mut StepTimes, fed: usize, factor: f64| {
                let noise = 1.0 + jitter * (random.range(0, 200) as f64 / 100.0 - 1.0);
                times.add(fed, fed, 0, alone((factor * noise * (1e6 + 1e5 * fed as f64)) as Nanos))
            };
            let early = (0..2_000).filter(|i| step(&mut times, 1 + i % 8, 1.0)).count();
            assert!(early <= 2, "{early} changes that are none");
            let found = (0..20).position(|_| step(&mut times, 3, factor));
            assert!(found.is_some_and(|at| at < 12), "{factor}: {found:?}");
            (0..60).for_each(|_| {
                step(&mut times, 3, factor);
            });
            let other = times.latency(8).unwrap() as f64 / (1.8e6 * factor);
            assert!((other - 1.0).abs() < 0.15, "{factor}: a bucket not seen since is at {other}");
        }
    }

    #[test]
    fn two_long_steps_are_a_change_and_one_is_none() {
        let steady = || times((0..50).map(|_| (3, alone(1_000))));
        let mut once = steady();
        assert!(!once.add(3, 3, 0, alone(9_000)) && !once.note_running(3, alone(1_500)));
        assert!(!once.add(3, 3, 0, alone(1_000)));
        assert!(!once.note_running(3, alone(5_000)), "the next one was as usual");
        let mut twice = steady();
        assert!(!twice.add(3, 3, 0, alone(3_000)) && twice.note_running(3, alone(2_200)));
        assert!((twice.latency(3).unwrap() as f64 / 3_000.0 - 1.0).abs() < 0.1, "{:?}", twice.latency(3));
    }

    #[test]
    fn the_slowdown_is_the_slope_of_the_speed_over_the_share() {
        for (s, jitter) in [(1.0, 0.1), (1.5, 0.0), (1.5, 0.1), (3.0, 0.05)] {
            let mut random = Random::new(9);
            let mut times = StepTimes::new();
            for i in 0..2_000 {
                let fed = 1 + i % 5;
                let noise = 1.0 + jitter * (random.range(0, 200) as f64 / 100.0 - 1.0);
                let work = noise * (1e6 + 2e5 * fed as f64);
                let done_alone = work * random.range(0, 100) as f64 / 100.0;
                let spent = Spent { alone: done_alone as Nanos, beside: ((work - done_alone) * s) as Nanos };
                times.add(fed, fed, 0, spent);
            }
            assert!((times.slowdown() / s - 1.0).abs() < 0.06, "{s}: {}", times.slowdown());
            let latency = times.latency(2).unwrap() as f64 / 1.4e6;
            assert!((latency - 1.0).abs() < 0.06, "{s}: alone {latency}");
        }
    }

    /// Exclusive rules teach nothing about running together; what was known before stays known.
    #[test]
    fn the_slowdown_is_not_forgotten_while_nothing_runs_beside() {
        let mixed = (0..200).map(|i| match i % 2 {
            0 => (4, alone(1_000_000)),
            _ => (4, Spent { alone: 0, beside: 1_500_000 }),
        });
        let mut times = times(mixed);
        (0..5_000).for_each(|_| {
            times.add(4, 4, 0, alone(1_000_000));
        });
        assert!((times.slowdown() - 1.5).abs() < 0.05, "{}", times.slowdown());
    }

    /// As on a machine that others use: log-normal times, one step in fifty stalls, whole phases are slower. Batches that
    /// are hardly seen must not drift away with every false alarm.
    #[test]
    fn noise_stalls_and_slow_phases_leave_rare_batches_alone() {
        let mut random = Random::new(11);
        let mut times = StepTimes::new();
        let mut changes = 0;
        for i in 0..30_000 {
            let normal = (0..12).map(|_| random.range(0, 1_000) as f64 / 1_000.0).sum::<f64>() - 6.0;
            let stall = if random.chance(0.02) { 20.0 } else { 1.0 };
            let phase = if i / 3_000 % 2 == 1 { 1.7 } else { 1.0 };
            let fed = if i % 1_000 == 5 { 8 } else { 1 + i % 4 };
            let time = (0.4 * normal).exp() * stall * phase * (1e6 + 1e5 * fed as f64);
            let beside = time * random.range(0, 100) as f64 / 100.0;
            let spent = Spent { alone: (time - beside) as Nanos, beside: beside as Nanos };
            changes += u32::from(times.add(fed, fed, 0, spent));
        }
        let rare = times.latency(8).unwrap() as f64 / times.latency(2).unwrap() as f64;
        assert!((0.7..3.0).contains(&rare), "1.8 / 1.2 is {rare}");
        let now = times.latency(2).unwrap() as f64 / (1.7 * 1.2e6);
        assert!((0.7..1.8).contains(&now), "{now}");
        assert!(times.slowdown() < 1.2, "{}", times.slowdown());
        assert!(changes < 300, "{changes} changes, 9 of them real");
    }

    #[test]
    fn without_a_time_alone_no_slowdown_is_claimed() {
        let mut random = Random::new(3);
        let steps = (0..1_000).map(|_| (4, Spent { alone: 0, beside: 1_000_000 + random.range(0, 100_000) }));
        assert!(times(steps).slowdown() < 1.02);
    }
}
