//! From a profile to the numbers that others compute with: the planner's first estimates, virtual devices, tables of
//! step times by rows.

use tokenrouter_engine::probe::ModelPrint;
use tokenrouter_scheduler::sim::serving::ServingDevice;
use tokenrouter_scheduler::{Measured, Nanos, Sharing};

use super::file::{Beside, ModelProfile, Point, Profile, Trusted};
use super::machine::Machine;

/// Points (rows or tokens, milliseconds), ascending, with straight lines between.
type Line = Vec<(f64, f64)>;

impl Profile {
    /// The model of this name.
    ///
    /// # Errors
    /// The names that there are.
    pub(crate) fn model(&self, name: &str) -> Result<&ModelProfile, String> {
        self.models.iter().find(|m| m.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.models.iter().map(|m| m.name.as_str()).collect();
            format!("the profile has no model \"{name}\" (it has: {})", names.join(", "))
        })
    }

    /// Whether the profile is of these models: same shapes and types, same threads.
    ///
    /// # Errors
    /// The first model that differs, with what was measured and what is configured.
    pub(crate) fn check_models(&self, models: &[ModelPrint]) -> Result<(), String> {
        for wanted in models {
            let found = self.model(&wanted.name)?;
            if found.print != wanted.print {
                return Err(format!(
                    "model \"{}\" was measured as {}, but it is {}; measure again",
                    wanted.name, found.print, wanted.print
                ));
            }
            if found.threads != wanted.threads {
                return Err(format!(
                    "model \"{}\" was measured with {} threads, but it runs with {}; measure again",
                    wanted.name, found.threads, wanted.threads
                ));
            }
        }
        Ok(())
    }

    /// What differs between the machine that was measured and this one.
    pub(crate) fn foreign_machine(&self, here: &Machine) -> Option<String> {
        (self.machine != *here).then(|| format!("it was measured on {}, and this is {here}", self.machine))
    }

    fn ms(&self, point: &Point) -> f64 {
        match self.trusted {
            Trusted::Cpu if point.busy_ms > 0.0 => point.busy_ms,
            _ => point.wall_ms,
        }
    }

    fn points(&self, points: &[Point]) -> Vec<(f64, f64)> {
        points.iter().map(|p| (p.at as f64, self.ms(p))).collect()
    }

    /// The time of a step of `rows` rows that feed a token each, in milliseconds, at the profile's context.
    pub(crate) fn decode_ms(&self, model: &ModelProfile, rows: usize) -> f64 {
        line_at(&self.points(&model.decode), rows as f64)
    }

    /// The time of a step of one row that feeds `fed` tokens.
    pub(crate) fn extend_ms(&self, model: &ModelProfile, fed: usize) -> f64 {
        let mut points = self.points(&model.decode[..1]);
        points.extend(self.points(&model.extend).into_iter().filter(|(at, _)| *at > 1.0));
        line_at(&points, fed as f64)
    }

    /// What a further token in the cache of a row adds, in milliseconds; 0 where that is within the noise.
    pub(crate) fn cached_ms(&self, model: &ModelProfile) -> f64 {
        let (Some(last), one) = (model.cached.last(), self.decode_ms(model, 1)) else { return 0.0 };
        let further = last.at as f64 - self.context as f64;
        if further > 0.0 { ((self.ms(last) - one) / further).max(0.0) } else { 0.0 }
    }

    /// How many times longer its smallest steps are while another of `models` runs such ones: with several, beside the
    /// worst. By processor time, models with more threads than there are cores are slower by as much, since they wait for one
    /// another.
    pub(crate) fn slowdown(&self, model: &ModelProfile, models: &[&ModelProfile]) -> f64 {
        self.worst(model, models).map_or(1.0, |beside| self.factor(beside).max(1.0))
    }

    /// How much of its slowdown a step of the model suffers, beside the one of `models` that slows it down most, and how much
    /// it causes to the one that it slows down most, by the tokens that it feeds.
    pub(crate) fn sharing(&self, model: &ModelProfile, models: &[&ModelProfile]) -> Sharing {
        let loss = |beside: &Beside| 1.0 - 1.0 / self.factor(beside).max(1.0);
        // Those of the same two models as `worst`, of which one side feeds as little; by the rows of the other.
        let parts = |worst: Option<&Beside>, fixed: fn(&Beside) -> usize, varied: fn(&Beside) -> usize| {
            let Some(worst) = worst.filter(|worst| loss(worst) > 0.0) else { return Vec::new() };
            let alike = |b: &&Beside| {
                (&b.model, &b.other) == (&worst.model, &worst.other) && fixed(b) == fixed(worst)
            };
            let mut points: Vec<(usize, f64)> =
                self.beside.iter().filter(alike).map(|b| (varied(b), loss(b) / loss(worst))).collect();
            points.sort_by_key(|(rows, _)| *rows);
            points
        };
        let caused = models.iter().filter_map(|other| self.worst(other, &[model]));
        let caused = caused.max_by(|a, b| self.factor(a).total_cmp(&self.factor(b)));
        Sharing {
            own: parts(self.worst(model, models), Beside::other_rows, |b| b.rows),
            imposed: parts(caused, |b| b.rows, Beside::other_rows),
        }
    }

    /// The smallest steps of a model beside the smallest ones of another of `models`, the one that slows it down most.
    fn worst(&self, model: &ModelProfile, models: &[&ModelProfile]) -> Option<&Beside> {
        let of = |other: &&ModelProfile| {
            let of = self.beside.iter().filter(|b| b.model == model.name && b.other == other.name);
            of.min_by_key(|b| (b.rows, b.other_rows()))
        };
        models.iter().filter_map(of).max_by(|a, b| self.factor(a).total_cmp(&self.factor(b)))
    }

    fn factor(&self, beside: &Beside) -> f64 {
        let threads = |name: &str| self.model(name).map_or(1, |m| m.threads);
        match self.trusted {
            Trusted::Cpu if beside.busy > 0.0 => {
                let together = threads(&beside.model) + threads(&beside.other);
                beside.busy * (together as f64 / self.machine.cores.max(1) as f64).max(1.0)
            }
            _ => beside.wall,
        }
    }

    /// What the planner's estimates begin with: steps by the tokens that they feed, and what rows cost beside.
    pub(crate) fn measured(&self, model: &ModelProfile, models: &[&ModelProfile]) -> Measured {
        let [decode, extend] = self.without(model, &ServingDevice::default());
        let most = model.decode.last().map_or(1, |p| p.at);
        let mut fed: Vec<usize> = model.decode.iter().chain(&model.extend).map(|p| p.at).collect();
        fed.sort_unstable();
        fed.dedup();
        let tokens = |fed: usize| of_tokens(&decode, &extend, most, fed);
        let rows = model.decode.iter().map(|p| (p.at, nanos((self.ms(p) - tokens(p.at)).max(0.0)))).collect();
        let steps = fed.iter().map(|&fed| (fed, nanos(tokens(fed)))).collect();
        let (slowdown, sharing) = (self.slowdown(model, models), self.sharing(model, models));
        Measured { steps, rows, slowdown, sharing }
    }

    /// What reading a further token of context adds for every token that a row feeds behind its first, in milliseconds:
    /// those that are fed together share the reading. 0 where it was not measured.
    fn further_ms(&self, model: &ModelProfile) -> f64 {
        let (Some(far), Some(cached)) = (model.far.first(), model.cached.last()) else { return 0.0 };
        let (context, further) = (cached.at as f64 - self.context as f64, far.at as f64 - 1.0);
        if context <= 0.0 || further <= 0.0 {
            return 0.0;
        }
        let reading = self.ms(far) - self.extend_ms(model, far.at) - self.cached_ms(model) * context;
        (reading / (further * context)).clamp(0.0, self.cached_ms(model))
    }

    /// A virtual device that takes as long: by fed tokens, by what rows cost beside, and by what attention reads. Up to
    /// `most_tokens` per step. Attention is taken out of the measured points, since it depends on where a row's tokens
    /// stand: a chunk that was measured behind a context costs more than prompts as long together.
    pub(crate) fn device(
        &self,
        model: &ModelProfile,
        models: &[&ModelProfile],
        most_tokens: usize,
    ) -> ServingDevice {
        let mut fed: Vec<usize> = std::iter::once(1).chain(model.extend.iter().map(|p| p.at)).collect();
        // Outside its points a table is constant; a profile goes on as it ended.
        fed.push(most_tokens);
        let rows: Vec<usize> = model.decode.iter().map(|p| p.at).chain([4_096]).collect();
        fed.extend(&rows);
        fed.sort_unstable();
        fed.dedup();
        let most_rows = model.decode.last().map_or(1, |p| p.at);
        let attention = ServingDevice {
            per_cached: 1e6 * self.cached_ms(model),
            per_cached_further: 1e6 * self.further_ms(model),
            slowdown: self.slowdown(model, models),
            sharing: self.sharing(model, models),
            ..ServingDevice::default()
        };
        let [decode, extend] = self.without(model, &attention);
        let base = |fed: usize| of_tokens(&decode, &extend, most_rows, fed);
        let extra = |rows: usize| (line_at(&decode, rows as f64) - base(rows)).max(0.0);
        ServingDevice {
            table: fed.iter().map(|&fed| (fed as u32, nanos(base(fed)))).collect(),
            rows: rows.iter().map(|&rows| (rows as u32, nanos(extra(rows)))).collect(),
            ..attention
        }
    }

    /// The points of rows that feed a token each, and of one row that feeds several, less what attention read in them.
    fn without(&self, model: &ModelProfile, attention: &ServingDevice) -> [Line; 2] {
        let less = |ms: f64, reading: f64| (ms - reading / 1e6).max(0.0);
        let one = attention.reading(self.context, 1);
        let decode: Line =
            model.decode.iter().map(|p| (p.at as f64, less(self.ms(p), p.at as f64 * one))).collect();
        let chunks = model.extend.iter().filter(|p| p.at > 1);
        let chunks = chunks.map(|p| (p.at as f64, less(self.ms(p), attention.reading(self.context, p.at))));
        let extend = decode[..1].iter().copied().chain(chunks).collect();
        [decode, extend]
    }
}

/// What feeding so many tokens takes, by the times of rows that feed one each and of one row that feeds several. Rows cost
/// something beside their tokens; where a row that feeds as many took longer, that was noise.
fn of_tokens(decode: &[(f64, f64)], extend: &[(f64, f64)], most_rows: usize, fed: usize) -> f64 {
    match line_at(extend, fed as f64) {
        ms if fed <= most_rows => ms.min(line_at(decode, fed as f64)),
        ms => ms,
    }
}

fn nanos(ms: f64) -> Nanos {
    (ms * 1e6).round().max(0.0) as Nanos
}

/// Between points a straight line, before the first its value, behind the last the line through the last two (which does
/// not fall).
fn line_at(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|(at, _)| *at <= x);
    let (a, b) = match (after, points.len()) {
        (_, 0) => return 0.0,
        (0, _) | (_, 1) => return points[0].1,
        (after, count) if after == count => (points[count - 2], points[count - 1]),
        (after, _) => (points[after - 1], points[after]),
    };
    let slope = (b.1 - a.1) / (b.0 - a.0);
    if x > b.0 { b.1 + slope.max(0.0) * (x - b.0) } else { a.1 + slope * (x - a.0) }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::pair;
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn tables_are_read_between_and_beyond_the_points() {
        let profile = pair();
        let large = &profile.models[1];
        for (rows, ms) in [(1, 60.0), (2, 60.0), (3, 75.0), (8, 180.0), (16, 360.0)] {
            near(profile.decode_ms(large, rows), ms);
        }
        for (fed, ms) in [(1, 60.0), (4, 90.0), (10, 195.0), (128, 2_400.0)] {
            near(profile.extend_ms(large, fed), ms);
        }
        near(profile.cached_ms(large), 30.0 / (4_096.0 - 256.0));
    }

    #[test]
    fn a_virtual_device_takes_what_was_measured() {
        let profile = pair();
        let models: Vec<_> = profile.models.iter().collect();
        let device = profile.device(models[1], &models, 512);
        let ms = |rows: &[(usize, usize)]| device.step_time_of(rows.iter().copied()) as f64 / 1e6;
        near(ms(&[(256, 1)]), 60.0);
        near(ms(&[(256, 1); 2]), 60.0);
        near(ms(&[(256, 1); 8]), 180.0);
        near(ms(&[(256, 64)]), 1_200.0);
        near(ms(&[(4_096, 1)]), 90.0);
        near(ms(&[(4_096, 16)]), 360.0);
        near(device.slowdown, 1.1);
        assert_eq!(profile.device(models[1], &models[1..], 512).slowdown, 1.0, "no other model");
    }

    #[test]
    fn prompts_do_not_pay_for_the_context_behind_which_chunks_were_measured() {
        let profile = pair();
        let models: Vec<_> = profile.models.iter().collect();
        let device = profile.device(models[1], &models, 512);
        let ms = |rows: &[(usize, usize)]| device.step_time_of(rows.iter().copied()) as f64 / 1e6;
        let reading = |cached, fed| device.reading(cached, fed) / 1e6;
        near(ms(&[(0, 64)]), 1_200.0 - reading(256, 64) + reading(0, 64));
        // 512 tokens in one chunk behind 256 others read far more than eight prompts of 64.
        let (chunk, prompts) = (ms(&[(256, 512)]), ms(&[(0, 64); 8]));
        assert!(prompts < chunk - 0.9 * (reading(256, 512) - 8.0 * reading(0, 64)), "{prompts} {chunk}");
    }

    #[test]
    fn by_processor_time_the_busiest_thread_counts_and_shared_cores_are_waited_for() {
        let mut profile = pair();
        profile.trusted = Trusted::Cpu;
        let models: Vec<_> = profile.models.iter().collect();
        near(profile.decode_ms(models[1], 1), 30.0);
        near(profile.slowdown(models[1], &models), 1.0);
        assert_eq!(profile.sharing(models[1], &models).own, [], "nothing to share");
        let mut crowded = profile.clone();
        crowded.models[0].threads = 2;
        crowded.models[1].threads = 2;
        let models: Vec<_> = crowded.models.iter().collect();
        near(crowded.slowdown(models[0], &models), 2.0);
        assert_eq!(
            crowded.sharing(models[0], &models).own,
            [(1, 1.0), (4, 1.0)],
            "cores, whatever a step feeds"
        );
    }

    #[test]
    fn steps_share_by_the_tokens_of_both() {
        let profile = pair();
        let models: Vec<_> = profile.models.iter().collect();
        let [small, large] = [0, 1].map(|i| profile.sharing(models[i], &models));
        let points = |found: &[(usize, f64)], expected: &[(usize, f64)]| {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            found.iter().zip(expected).for_each(|(f, e)| {
                assert!(f.0 == e.0 && (f.1 - e.1).abs() < 1e-6, "{found:?} instead of {expected:?}");
            });
        };
        // The small one loses 1 - 1 / 1.25 = 0.2 with one row beside one row, the large one 1 - 1 / 1.1.
        let loss = |s: f64| 1.0 - 1.0 / s;
        points(&small.own, &[(1, 1.0), (4, loss(1.125) / 0.2)]);
        points(&small.imposed, &[(1, 1.0), (4, loss(1.05) / loss(1.1))]);
        points(&large.own, &[(1, 1.0), (8, 0.0)]);
        points(&large.imposed, &[(1, 1.0), (8, loss(1.05) / 0.2)]);
        assert_eq!(profile.sharing(models[1], &models[1..]), Sharing::default(), "no other model");
    }

    #[test]
    fn a_profile_of_an_older_program_has_one_slowdown_for_all_steps() {
        let mut profile = pair();
        profile.beside.truncate(2);
        profile.beside.iter_mut().for_each(|b| (b.rows, b.other_rows) = (4, None));
        let models: Vec<_> = profile.models.iter().collect();
        near(profile.slowdown(models[0], &models), 1.25);
        assert_eq!(profile.sharing(models[0], &models).parts(64).own, 1.0);
    }

    #[test]
    fn the_estimates_begin_with_chunks_and_what_rows_cost_beside() {
        let profile = pair();
        let models: Vec<_> = profile.models.iter().collect();
        let measured = profile.measured(models[0], &models);
        let at: Vec<usize> = measured.steps.iter().map(|(fed, _)| *fed).collect();
        assert_eq!(at, [1, 2, 4, 8, 16, 64]);
        // A row of eight tokens takes 16 ms, on the line from 9 to 30; eight rows take 18.
        assert_eq!((measured.steps[3].1, measured.slowdown), (16_000_000, 1.25));
        assert_eq!(measured.rows, [(1, 0), (2, 0), (4, 0), (8, 2_000_000)]);
    }

    #[test]
    fn other_models_threads_and_machines_are_named() {
        let profile = pair();
        let print =
            |name: &str, print: &str, threads| ModelPrint { name: name.into(), print: print.into(), threads };
        let good = [print("small", "Shape-small", 1), print("large", "Shape-large", 1)];
        assert_eq!(profile.check_models(&good), Ok(()));
        for (wrong, expected) in [
            (print("larger", "Shape-large", 1), "no model \"larger\" (it has: small, large)"),
            (
                print("large", "Shape-other", 1),
                "model \"large\" was measured as Shape-large, but it is Shape-other",
            ),
            (print("large", "Shape-large", 2), "measured with 1 threads, but it runs with 2"),
        ] {
            let error = profile.check_models(&[good[0].clone(), wrong]).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(profile.foreign_machine(&profile.machine), None);
        let here = Machine { cores: 64, ..profile.machine.clone() };
        let said = profile.foreign_machine(&here).expect("another one");
        assert!(said.contains("2 cores") && said.contains("64 cores"), "{said}");
    }
}
