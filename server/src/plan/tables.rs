//! Step times by the size of the batch, from a profile.

use std::path::Path;

use tokenrouter_scheduler::{Parts, slowdown_beside};

use crate::profile::Profile;

/// Beyond so many requests no chain can be built.
const MOST_REQUESTS: u32 = 1 << 12;

/// Tables of every model.
pub(super) struct Tables {
    /// `[model][rows - 1]`.
    latency_ms: Vec<Vec<f64>>,
    /// The mean over the models, of steps that feed what they do when the requests are spread evenly.
    pub(super) slowdown: f64,
}

/// Reads the tables of a profile for batches of 1 to `requests` rows. Every model evaluates every token: a row of a model
/// feeds what was committed since its last visit, on average all tokens over the visits to it.
///
/// # Errors
/// The file or the matrix at fault.
pub(super) fn read(
    path: &Path,
    routing: &[Vec<f64>],
    commit: &[Vec<f64>],
    requests: u32,
) -> Result<Tables, String> {
    let profile = Profile::load(path)?;
    if profile.models.len() != routing.len() {
        let (has, wanted) = (profile.models.len(), routing.len());
        return Err(format!("profile {} has {has} models, and --routing is of {wanted}", path.display()));
    }
    let fed = fed_per_row(routing, commit).ok_or("--routing and --commit must be square matrices")?;
    let models: Vec<_> = profile.models.iter().collect();
    let count = requests.clamp(1, MOST_REQUESTS) as usize;
    let table = |(model, fed): (&&crate::profile::file::ModelProfile, &f64)| {
        let device = profile.device(model, &models, (fed * count as f64).ceil() as usize);
        let of = |rows: usize| {
            let fed = ((fed * rows as f64).round() as usize).max(rows);
            // As even as whole tokens are.
            let share = |row: usize| fed * (row + 1) / rows - fed * row / rows;
            device.step_time_of((0..rows).map(|row| (profile.context, share(row)))) as f64 / 1e6
        };
        (1..=count).map(of).collect()
    };
    let latency_ms = models.iter().zip(&fed).map(table).collect();
    let rows = (count / models.len()).max(1) as f64;
    let fed: Vec<usize> = fed.iter().map(|fed| (fed * rows).round().max(1.0) as usize).collect();
    Ok(Tables { latency_ms, slowdown: mean_slowdown(&profile, &fed) })
}

/// The mean of what steps of so many tokens lose beside one another, each beside the worst of the others.
fn mean_slowdown(profile: &Profile, fed: &[usize]) -> f64 {
    let models: Vec<_> = profile.models.iter().collect();
    let parts: Vec<Parts> =
        models.iter().zip(fed).map(|(model, &fed)| profile.sharing(model, &models).parts(fed)).collect();
    let of = |i: usize| {
        let alone = profile.slowdown(models[i], &models);
        let others = (0..models.len()).filter(|&other| other != i);
        others.map(|other| slowdown_beside(alone, parts[i].own, parts[other].imposed)).fold(1.0, f64::max)
    };
    (0..models.len()).map(of).sum::<f64>() / models.len().max(1) as f64
}

impl Tables {
    /// The times of a single row.
    pub(super) fn of_one_row(&self) -> Vec<f64> {
        self.latency_ms.iter().map(|table| table[0]).collect()
    }

    /// Every time on the grid.
    pub(super) fn quanta(&self, quantum_ms: f64) -> Vec<Vec<u32>> {
        let quanta = |ms: &f64| (ms / quantum_ms).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        self.latency_ms.iter().map(|table| table.iter().map(quanta).collect()).collect()
    }
}

/// Tokens committed per visit to each model; none for matrices that are not square and of one size. What a model is never
/// visited for counts as one.
fn fed_per_row(routing: &[Vec<f64>], commit: &[Vec<f64>]) -> Option<Vec<f64>> {
    let models = routing.len();
    if commit.len() != models || routing.iter().chain(commit).any(|row| row.len() != models) {
        return None;
    }
    let mut visits = vec![1.0 / models as f64; models];
    // Half a step each time: a lazy chain has no period.
    for _ in 0..10_000 {
        let into = |to: usize| (0..models).map(|from| visits[from] * routing[from][to]).sum::<f64>();
        visits = (0..models).map(|to| 0.5 * (visits[to] + into(to))).collect();
    }
    let per_visit = |i: usize| routing[i].iter().zip(&commit[i]).map(|(p, c)| p * c).sum::<f64>();
    let tokens: f64 = (0..models).map(|i| visits[i] * per_visit(i)).sum();
    Some(visits.iter().map(|v| if *v > 1e-9 { (tokens / v).max(1.0) } else { 1.0 }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_model_catches_up_with_what_the_small_one_wrote() {
        let fed = fed_per_row(&[vec![0.65, 0.35], vec![1.0, 0.0]], &[vec![1.0, 0.0], vec![1.0, 0.0]]);
        let fed = fed.expect("square");
        assert!((fed[0] - 1.0).abs() < 1e-6 && (fed[1] - 1.0 / 0.35).abs() < 1e-6, "{fed:?}");
        assert_eq!(fed_per_row(&[vec![1.0]], &[vec![1.0, 1.0]]), None);
    }
}
