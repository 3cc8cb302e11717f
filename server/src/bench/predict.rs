//! The throughput that the paper's chain (appendix D) gives for a measured setting: its routing and its step times are those
//! that were measured, so what is compared is the queueing.

use std::fmt::Write as _;

use tokenrouter_scheduler::planner::{Grid, Limits, StepQuanta, System, SystemSpec, search_all};

use super::arrivals::Load;
use super::outcome::Row;
use super::run::Bench;
use super::scrape::ServerSide;
use super::sweep::Setting;

/// Larger chains are not built.
const MOST_STATES: usize = 200_000;
/// Nor are more vectors tried.
const MOST_VECTORS: usize = 10_000;
/// Quanta of the shortest step: coarser than the planner's own grid, whose chains grow large for a closed loop of 8.
const QUANTA: f64 = 8.0;

/// Predicted tokens per second; none for other settings than two models under `threshold=B`, or `eager`, in a closed loop.
pub(super) fn tokens_per_s(setting: &Setting, row: &Row) -> Option<f64> {
    let Load::Closed(clients) = setting.load else { return None };
    let threshold: u32 = match setting.choice.change.policy.as_deref()? {
        "eager" => 1,
        policy => policy.strip_prefix("threshold=")?.parse().ok()?,
    };
    let kept = row.kept();
    let side =
        kept.iter().filter_map(|r| r.server.as_ref()).fold(None, |sum: Option<ServerSide>, side| {
            Some(sum.map_or_else(|| side.clone(), |sum| sum.and(side)))
        })?;
    predicted(&side, clients, threshold)
}

/// The chain's throughput with B = (1, `threshold`).
fn predicted(side: &ServerSide, clients: u32, threshold: u32) -> Option<f64> {
    let [small, large] = side.models.as_slice() else { return None };
    if small.rows <= 0.0 || large.rows <= 0.0 {
        return None;
    }
    let p = (small.handoffs / small.rows).clamp(0.0, 1.0);
    let back = (large.handoffs / large.rows).clamp(0.0, 1.0);
    // Tokens of a handoff: what the model wrote beyond one per step that stayed.
    let kept = |model: &super::scrape::ModelSide| {
        let stayed = model.rows - model.handoffs;
        if model.handoffs > 0.0 { ((model.committed - stayed) / model.handoffs).clamp(0.0, 1.0) } else { 0.0 }
    };
    let step = |model: &super::scrape::ModelSide| 1e3 * model.busy / model.launches.max(1.0);
    let latency = [step(small), step(large)];
    let shortest = latency[0].min(latency[1]);
    let grid = Grid::with_quantum(&latency, shortest / QUANTA).ok()?;
    let system = System::new(SystemSpec {
        routing: vec![vec![1.0 - p, p], vec![back, 1.0 - back]],
        commit: vec![vec![1.0, kept(small)], vec![kept(large), 1.0]],
        steps: StepQuanta::Constant(grid.steps.clone()),
        quantum_ms: grid.quantum_ms,
        requests: clients,
        entry: 0,
    })
    .ok()?;
    let limits = Limits { states: MOST_STATES, vectors: MOST_VECTORS };
    let table = search_all(&system, 1.0, limits).ok()?;
    let row = table.rows.iter().find(|row| row.thresholds == [1, threshold])?;
    Some(row.performance.tokens_per_s)
}

/// Measured beside predicted.
pub(super) fn text(bench: &Bench<'_>) -> String {
    let mut out =
        String::from("\npredicted by the chain from each setting's own routing and mean step times\n");
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let (Some(found), Some(predicted)) = (row.spread("tokens_per_s"), tokens_per_s(setting, row)) else {
            continue;
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{}: measured {:.1}, predicted {predicted:.1} tokens/s ({:+.1} %)",
            bench.label(setting),
            found.mean,
            100.0 * (predicted / found.mean - 1.0)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scrape::ModelSide;

    /// The paper's example: p = 0.35, 6.0 and 27.9 ms; a token of the large model and back.
    fn paper() -> ServerSide {
        let model = |rows: f64, launches: f64, ms: f64, committed: f64, handoffs: f64| ModelSide {
            rows,
            launches,
            busy: ms * launches / 1e3,
            committed,
            handoffs,
            ..ModelSide::default()
        };
        // Of 1,000 steps of the small model 350 hand over and drop; the large one hands all back and keeps.
        let models = vec![model(1000.0, 500.0, 6.0, 650.0, 350.0), model(350.0, 100.0, 27.9, 350.0, 350.0)];
        ServerSide { models, ..ServerSide::default() }
    }

    #[test]
    fn one_client_gets_what_can_be_counted_by_hand() {
        // Per step of the small model: 6 ms, and 0.35 steps of the large one; a token each time.
        let expected = 1e3 / (6.0 + 0.35 * 27.9);
        let found = predicted(&paper(), 1, 1).expect("a chain");
        assert!((found / expected - 1.0).abs() < 0.03, "{found} for {expected}");
        let many = predicted(&paper(), 4, 2).expect("a chain");
        assert!(many > 1.5 * found && many < 4.0 * found, "{many}");
        assert_eq!(predicted(&ServerSide::default(), 1, 1), None);
    }
}
