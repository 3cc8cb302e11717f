//! The measurement: kinds of steps, each sampled in every round, so that slow phases of the machine hit all alike.

use std::time::{Duration, Instant};

use tokenrouter_engine::probe::{Probe, Timing};

use super::file::{Beside, ModelProfile, Noise, Point, Trusted};
use super::machine::Others;
use crate::cli::tell;

/// Rows of the steps that are measured, up to the model's most.
const ROWS: &[usize] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Tokens that one row feeds, up to the longest that is asked for.
/// Between 4 and 16, where kernels change from reading weights to multiplying, they are close together.
const FED: &[usize] = &[2, 4, 6, 8, 10, 12, 14, 16, 24, 32, 64, 128, 256, 512, 1_024, 2_048];
/// Tokens that a row feeds behind the longest context: enough to tell what each further one reads, few enough that two
/// steps do not take the whole round.
pub(super) const FAR_FED: usize = 16;
/// Rows of two models that run beside one another: few wait for the memory, many multiply.
const BESIDE: &[[usize; 2]] = &[[1, 1], [4, 1], [1, 4], [16, 1], [1, 16]];
/// A sample of several steps begins with one that is not counted: other models' weights lie in the caches.
const WARM: usize = 3;
/// With a larger share of the samples discarded, processor time is trusted and not the wall.
const MOST_DISCARDED: f64 = 0.5;

/// How to measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// Steps are repeated for so long in a sample, or run once when one takes longer.
    pub(super) sample: Duration,
    pub(super) context: usize,
    /// Longer contexts that are measured with one row.
    pub(super) contexts: Vec<usize>,
    /// Most tokens that a row feeds.
    pub(super) longest: usize,
    /// Most rows.
    pub(super) rows: usize,
    /// A sample with a larger share of all cores taken by others is discarded.
    pub(super) most_foreign: f64,
    pub(super) cores: usize,
}

/// A kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// So many rows feed a token each.
    Decode(usize),
    /// A row feeds so many tokens.
    Extend(usize),
    /// A row with so many tokens in the cache feeds one.
    Cached(usize),
    /// A row with the most tokens in the cache feeds so many.
    Far(usize),
}

/// What is sampled.
#[derive(Clone, Debug)]
enum Task {
    Alone { model: usize, kind: Kind, rows: Vec<(usize, usize)> },
    Pair { models: [usize; 2], rows: [Vec<(usize, usize)>; 2] },
}

/// Medians of the steps of a sample, per model of the task, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    wall: f64,
    busy: f64,
    cpu: f64,
}

#[derive(Clone, Debug)]
struct Sample {
    times: Vec<Times>,
    foreign: f64,
}

/// Everything that was measured of models.
pub(super) struct Measurement {
    pub(super) trusted: Trusted,
    pub(super) noise: Noise,
    pub(super) models: Vec<ModelProfile>,
    pub(super) beside: Vec<Beside>,
}

/// Measures every model alone, and every two beside one another.
///
/// # Errors
/// A step that failed.
pub(super) fn measure(probe: &mut Probe, plan: &Plan) -> Result<Measurement, String> {
    let tasks = tasks(probe, plan);
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); tasks.len()];
    for round in 0..plan.rounds {
        // Another order each time: nobody always comes after the same one.
        for place in 0..tasks.len() {
            let index = (place + round * 7) % tasks.len();
            let index = if round % 2 == 1 { tasks.len() - 1 - index } else { index };
            samples[index].push(sample(probe, plan, &tasks[index])?);
        }
        let foreign =
            samples.iter().filter_map(|s| s.last()).map(|s| s.foreign).sum::<f64>() / tasks.len() as f64;
        tell(&format!(
            "round {} of {}: others took {:.0} % of the cores",
            round + 1,
            plan.rounds,
            100.0 * foreign
        ));
    }
    // What was never undisturbed gets another chance.
    for (task, taken) in tasks.iter().zip(&mut samples) {
        for _ in 0..plan.rounds {
            if taken.iter().any(|s| s.foreign <= plan.most_foreign) {
                break;
            }
            taken.push(sample(probe, plan, task)?);
        }
    }
    Ok(summarise(probe, plan, &tasks, &samples))
}

fn tasks(probe: &Probe, plan: &Plan) -> Vec<Task> {
    let mut tasks = Vec::new();
    for (index, model) in probe.models().iter().enumerate() {
        let context = plan.context;
        let mut alone =
            |kind: Kind, rows: Vec<(usize, usize)>| tasks.push(Task::Alone { model: index, kind, rows });
        for &rows in ROWS.iter().filter(|rows| **rows <= model.max_rows.min(plan.rows)) {
            alone(Kind::Decode(rows), vec![(context, 1); rows]);
        }
        for &fed in FED.iter().filter(|fed| **fed <= model.max_tokens.min(plan.longest)) {
            alone(Kind::Extend(fed), vec![(context, fed)]);
        }
        for &cached in &plan.contexts {
            alone(Kind::Cached(cached), vec![(cached, 1)]);
        }
        let most = FAR_FED.min(model.max_tokens).min(plan.longest);
        if let Some(&cached) = plan.contexts.last().filter(|_| most > 1) {
            alone(Kind::Far(most), vec![(cached, most)]);
        }
    }
    for a in 0..probe.models().len() {
        for b in a + 1..probe.models().len() {
            let most = [a, b].map(|model| probe.models()[model].max_rows.min(plan.rows));
            let fits = |rows: &&[usize; 2]| rows[0] <= most[0] && rows[1] <= most[1];
            for rows in BESIDE.iter().filter(fits) {
                tasks.push(Task::Pair {
                    models: [a, b],
                    rows: rows.map(|rows| vec![(plan.context, 1); rows]),
                });
            }
        }
    }
    tasks
}

fn sample(probe: &mut Probe, plan: &Plan, task: &Task) -> Result<Sample, String> {
    let others = Others::watch(plan.cores);
    let times = match task {
        Task::Alone { model, rows, .. } => vec![alone(probe, plan.sample, *model, rows)?],
        Task::Pair { models, rows } => beside(probe, plan.sample, *models, rows)?,
    };
    Ok(Sample { times, foreign: others.share() })
}

fn alone(probe: &mut Probe, long: Duration, model: usize, rows: &[(usize, usize)]) -> Result<Times, String> {
    let began = Instant::now();
    let mut steps = Vec::new();
    loop {
        probe.launch(model, rows);
        steps.extend(probe.wait()?);
        if began.elapsed() >= long {
            return Ok(medians(&steps));
        }
    }
}

/// Both run one step after another. Steps count that ended while the other model ran.
fn beside(
    probe: &mut Probe,
    long: Duration,
    models: [usize; 2],
    rows: &[Vec<(usize, usize)>; 2],
) -> Result<Vec<Times>, String> {
    let mut steps = [Vec::new(), Vec::new()];
    for (model, rows) in models.iter().zip(rows) {
        probe.launch(*model, rows);
    }
    let began = Instant::now();
    while let Some(step) = probe.wait()? {
        let side = usize::from(step.model == models[1]);
        steps[side].push(step);
        // Twice as long as one alone, and three steps of the slower one.
        let enough = steps.iter().all(|s| s.len() >= WARM) && began.elapsed() >= 2 * long;
        if enough {
            break;
        }
        probe.launch(step.model, &rows[side]);
    }
    // The one that still runs ends alone for a part.
    while probe.wait()?.is_some() {}
    Ok(steps.iter().map(|steps| medians(steps)).collect())
}

fn medians(steps: &[Timing]) -> Times {
    let counted = if steps.len() > WARM { &steps[1..] } else { steps };
    let of = |value: fn(&Timing) -> Duration| median(counted.iter().map(|s| 1e3 * value(s).as_secs_f64()));
    Times { wall: of(|s| s.wall), busy: of(|s| s.cpu.busiest), cpu: of(|s| s.cpu.total) }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => 0.5 * (values[n / 2 - 1] + values[n / 2]),
    }
}

fn summarise(probe: &Probe, plan: &Plan, tasks: &[Task], samples: &[Vec<Sample>]) -> Measurement {
    let noisy = |sample: &&Sample| sample.foreign > plan.most_foreign;
    let all = || samples.iter().flatten();
    let (count, discarded) = (all().count(), all().filter(noisy).count());
    let never = samples.iter().any(|s| s.iter().all(|s| noisy(&s)));
    let share = discarded as f64 / count.max(1) as f64;
    let clocks = probe.has_clocks();
    let trusted = if clocks && (never || share > MOST_DISCARDED) { Trusted::Cpu } else { Trusted::Wall };
    let noise = Noise {
        limit: plan.most_foreign,
        samples: count,
        discarded,
        foreign: all().map(|s| s.foreign).sum::<f64>() / count.max(1) as f64,
    };
    let mut models: Vec<ModelProfile> = probe.models().iter().map(empty).collect();
    for (task, samples) in tasks.iter().zip(samples) {
        let Task::Alone { model, kind, .. } = task else { continue };
        let model = &mut models[*model];
        let (list, at) = match kind {
            Kind::Decode(rows) => (&mut model.decode, *rows),
            Kind::Extend(fed) => (&mut model.extend, *fed),
            Kind::Cached(tokens) => (&mut model.cached, *tokens),
            Kind::Far(fed) => (&mut model.far, *fed),
        };
        list.push(point(at, samples, 0, plan.most_foreign, trusted));
    }
    let mut found = Vec::new();
    for (task, samples) in tasks.iter().zip(samples) {
        let Task::Pair { models: pair, rows } = task else { continue };
        for side in 0..2 {
            let (own, other) = (&models[pair[side]], &models[pair[1 - side]]);
            let both = point(rows[side].len(), samples, side, plan.most_foreign, trusted);
            let alone = own.decode.iter().find(|p| p.at == both.at);
            // A model that is alone for want of a point of its own is not slowed down as far as is known.
            let Some(alone) = alone else { continue };
            let ratio = |both: f64, alone: f64| if alone > 0.0 { both / alone } else { 1.0 };
            found.push(Beside {
                model: own.name.clone(),
                other: other.name.clone(),
                rows: both.at,
                other_rows: Some(rows[1 - side].len()),
                wall: ratio(both.wall_ms, alone.wall_ms),
                busy: ratio(both.busy_ms, alone.busy_ms),
                samples: both.samples,
                discarded: both.discarded,
            });
        }
    }
    Measurement { trusted, noise, models, beside: found }
}

fn empty(model: &tokenrouter_engine::probe::ProbeModel) -> ModelProfile {
    ModelProfile {
        name: model.name.clone(),
        print: model.print.clone(),
        threads: model.threads,
        weight_bytes: model.weight_bytes,
        decode: Vec::new(),
        extend: Vec::new(),
        cached: Vec::new(),
        far: Vec::new(),
    }
}

/// Medians over the samples of one side: of the wall over those that were not disturbed (over all, when all were), of
/// processor time over all.
fn point(at: usize, samples: &[Sample], side: usize, most_foreign: f64, trusted: Trusted) -> Point {
    let quiet: Vec<Times> =
        samples.iter().filter(|s| s.foreign <= most_foreign).map(|s| s.times[side]).collect();
    let all: Vec<Times> = samples.iter().map(|s| s.times[side]).collect();
    let walls = if quiet.is_empty() { &all } else { &quiet };
    let wall_ms = median(walls.iter().map(|t| t.wall));
    let busy_ms = median(all.iter().map(|t| t.busy));
    let (values, middle): (Vec<f64>, f64) = match trusted {
        Trusted::Wall => (walls.iter().map(|t| t.wall).collect(), wall_ms),
        Trusted::Cpu => (all.iter().map(|t| t.busy).collect(), busy_ms),
    };
    let (least, most) = values.iter().fold((f64::MAX, 0.0f64), |(a, b), v| (a.min(*v), b.max(*v)));
    Point {
        at,
        wall_ms,
        busy_ms,
        cpu_ms: median(all.iter().map(|t| t.cpu)),
        spread: if middle > 0.0 { (most - least) / middle } else { 0.0 },
        samples: samples.len(),
        discarded: samples.len() - quiet.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[(f64, f64, f64)]) -> Vec<Sample> {
        let sample =
            |&(wall, busy, foreign)| Sample { times: vec![Times { wall, busy, cpu: busy }], foreign };
        values.iter().map(sample).collect()
    }

    #[test]
    fn disturbed_samples_do_not_count_on_the_wall() {
        let taken = samples(&[(10.0, 9.0, 0.0), (30.0, 9.5, 0.4), (11.0, 9.2, 0.05), (12.0, 9.4, 0.1)]);
        let point = |trusted| point(4, &taken, 0, 0.1, trusted);
        let wall = point(Trusted::Wall);
        assert_eq!((wall.at, wall.wall_ms, wall.samples, wall.discarded), (4, 11.0, 4, 1));
        assert!((wall.busy_ms - 9.3).abs() < 1e-9 && (wall.spread - 2.0 / 11.0).abs() < 1e-9, "{wall:?}");
        assert!((point(Trusted::Cpu).spread - 0.5 / 9.3).abs() < 1e-9);
    }

    #[test]
    fn when_all_are_disturbed_all_count_and_are_counted() {
        let taken = samples(&[(20.0, 9.0, 0.5), (30.0, 9.0, 0.4)]);
        let point = point(1, &taken, 0, 0.1, Trusted::Cpu);
        assert_eq!((point.wall_ms, point.busy_ms, point.discarded), (25.0, 9.0, 2));
    }

    #[test]
    fn medians_of_steps_leave_the_first_out_when_there_are_more() {
        let step = |ms: u64| Timing { model: 0, wall: Duration::from_millis(ms), cpu: Default::default() };
        let few: Vec<Timing> = [50, 10, 12].map(step).to_vec();
        assert!((medians(&few).wall - 12.0).abs() < 1e-9);
        let more: Vec<Timing> = [50, 10, 11, 12].map(step).to_vec();
        assert!((medians(&more).wall - 11.0).abs() < 1e-9);
        assert_eq!(median([].into_iter()), 0.0);
    }
}
