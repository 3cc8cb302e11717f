//! The families by model, and by pair of models.

use std::sync::atomic::AtomicU64;

use tokenrouter_engine::ModelStatus;
use tokenrouter_engine::status::{FED_BUCKETS, ModelState, PHASE_NAMES};
use tokenrouter_engine::tally::{ROW_BUCKETS, TIME_BOUNDS, TIME_BUCKETS, Tally};

use super::histogram::Histogram;
use super::page::{Facts, get};
use super::text::Page;
use super::traffic::Traffic;

/// Upper bounds of the engine's buckets by fed tokens.
const FED: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const _: () = assert!(FED.len() + 1 == FED_BUCKETS, "one bound per bucket but the last");

/// Upper bounds of the engine's buckets by rows: the first of [`FED`].
const ROWS: &[f64] = FED.split_at(ROW_BUCKETS - 1).0;

/// Upper bounds of the engine's buckets of times, in seconds.
static SECONDS: [f64; TIME_BOUNDS.len()] = {
    let mut bounds = [0.0; TIME_BOUNDS.len()];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = TIME_BOUNDS[at] as f64 / 1e9;
        at += 1;
    }
    bounds
};

type Models<'a> = [(&'a str, &'a ModelStatus)];
type Read = fn(&ModelStatus) -> &AtomicU64;

const GAUGES: [(&str, &str, Read); 3] = [
    ("tokenrouter:ready_requests", "Requests that wait in a model's queue.", |m| &m.ready),
    ("tokenrouter:running_requests", "Requests in a model's batch in flight.", |m| &m.running),
    ("tokenrouter:pending_requests", "Requests that have visited a model and are away at a peer.", |m| {
        &m.pending
    }),
];

const COUNTERS: [(&str, &str, Read); 6] = [
    ("tokenrouter:launches_total", "Steps launched.", |m| &m.launches),
    ("tokenrouter:steps_total", "Steps that came back.", |m| &m.steps),
    ("tokenrouter:step_failures_total", "Steps that failed as a whole.", |m| &m.failures),
    (
        "tokenrouter:batch_rows_total",
        "Rows of the steps launched: divided by launches, the batch size.",
        |m| &m.rows,
    ),
    ("tokenrouter:fed_tokens_total", "Tokens fed by the steps launched.", |m| &m.fed),
    ("tokenrouter:nonfinite_logits_total", "Requests that failed for logits with NaN or infinity.", |m| {
        &m.nonfinite
    }),
];

/// Gauges and counters of every model.
pub(super) fn per_model(page: &mut Page, facts: &Facts<'_>, models: &Models<'_>) {
    for (name, help, read) in GAUGES {
        page.gauge(name, help);
        for (model, status) in models {
            page.sample(&[("model", model)], get(read(status)));
        }
    }
    for (name, help, read) in COUNTERS {
        page.counter(name, help);
        for (model, status) in models {
            page.sample(&[("model", model)], get(read(status)));
        }
    }
    let traffic = facts.traffic;
    for (name, help, counts) in [
        ("tokenrouter:committed_tokens_total", "Tokens a model wrote into answers.", &traffic.committed),
        (
            "tokenrouter:discarded_tokens_total",
            "Candidates dropped by the router, of ended requests.",
            &traffic.discarded,
        ),
        (
            "tokenrouter:cached_tokens_total",
            "Prompt tokens a model found in its cache, of ended requests.",
            &traffic.cached,
        ),
    ] {
        page.counter(name, help);
        for ((model, _), count) in models.iter().zip(counts) {
            page.sample(&[("model", model)], count);
        }
    }
    page.counter("tokenrouter:busy_seconds_total", "Time a model had a step in flight.");
    for (model, status) in models {
        page.float(&[("model", model)], get(&status.busy) as f64 * 1e-9);
    }
    page.gauge("tokenrouter:model_state", "1 for the state that a model is in: ready, stalled or lost.");
    for (model, status) in models {
        for state in [ModelState::Ready, ModelState::Stalled, ModelState::Lost] {
            page.sample(&[("model", model), ("state", state.name())], u8::from(status.state() == state));
        }
    }
    page.counter("tokenrouter:model_losses_total", "How often a model was lost.");
    for (model, status) in models {
        page.sample(&[("model", model)], get(&status.losses));
    }
    let now = facts.status.clock();
    page.gauge(
        "tokenrouter:last_step_age_seconds",
        "Time without progress of a model that has work: since the launch of its step in flight, or its last step.",
    );
    for (model, status) in models {
        page.float(&[("model", model)], status.age(now) as f64 * 1e-9);
    }
    page.counter("tokenrouter:graph_fallback_total", "Steps that no captured graph could run, by reason.");
    for (model, status) in models {
        page.sample(&[("model", model), ("reason", "size")], get(&status.ungraphed_size));
        page.sample(&[("model", model), ("reason", "attention")], get(&status.ungraphed_attention));
        page.sample(&[("model", model), ("reason", "scores")], get(&status.ungraphed_scores));
    }
}

/// Sizes and times of steps.
pub(super) fn steps(page: &mut Page, models: &Models<'_>) {
    page.histograms("tokenrouter:batch_size", "Rows of the steps launched, by phase.");
    for_each_phase(models, |model, phase, status| {
        let tally: &Tally<ROW_BUCKETS> = &status.rows_by[phase];
        let sizes = Histogram::with(ROWS, tally.counts(), tally.sum() as f64);
        page.one(&[("model", model), ("phase", PHASE_NAMES[phase])], &sizes);
    });
    page.histograms(
        "tokenrouter:step_seconds",
        "From launch to completion of the steps that came back, by phase.",
    );
    for_each_phase(models, |model, phase, status| {
        page.one(&[("model", model), ("phase", PHASE_NAMES[phase])], &seconds(&status.step_times[phase]));
    });
    page.histograms(
        "tokenrouter:admission_wait_seconds",
        "From the verdict that sent a request to a model to the launch of a batch that holds it.",
    );
    for (model, status) in models {
        page.one(&[("model", model)], &seconds(&status.delays));
    }
    let fed: u64 = models.iter().map(|(_, model)| get(&model.fed)).sum();
    let buckets =
        (0..=FED.len()).map(|bucket| models.iter().map(|(_, model)| get(&model.by_fed[bucket])).sum());
    let sizes = Histogram::with(FED, buckets, fed as f64);
    page.histogram("vllm:iteration_tokens_total", "Tokens fed by a step, over all models.", &sizes);
}

fn for_each_phase(models: &Models<'_>, mut work: impl FnMut(&str, usize, &ModelStatus)) {
    for (model, status) in models {
        (0..PHASE_NAMES.len()).for_each(|phase| work(model, phase, status));
    }
}

fn seconds(tally: &Tally<TIME_BUCKETS>) -> Histogram {
    Histogram::with(&SECONDS, tally.counts(), tally.sum() as f64 * 1e-9)
}

/// What goes from one model to another.
pub(super) fn edges(page: &mut Page, traffic: &Traffic, models: &Models<'_>) {
    let edges = || {
        let pairs =
            models.iter().enumerate().flat_map(|from| models.iter().enumerate().map(move |to| (from, to)));
        pairs.filter(|((from, _), (to, _))| from != to)
    };
    page.counter(
        "tokenrouter:handoffs_total",
        "Requests handed from one model to another, by what became of the candidate: keep or drop.",
    );
    for ((_, (from, status)), (to, (to_name, _))) in edges() {
        let dropped = get(&status.drops[to]);
        let kept = get(&status.handoffs[to]).saturating_sub(dropped);
        page.sample(&[("from", from), ("to", to_name), ("reason", "keep")], kept);
        page.sample(&[("from", from), ("to", to_name), ("reason", "drop")], dropped);
    }
    page.counter(
        "tokenrouter:peer_errors_total",
        "Requests that failed on their way from one model to another.",
    );
    for ((from, (from_name, _)), (to, (to_name, _))) in edges() {
        page.sample(&[("from", from_name), ("to", to_name)], traffic.peer_errors[from][to]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_engines() {
        assert_eq!((SECONDS[0], SECONDS[6], SECONDS[18]), (1e-5, 1e-3, 10.0));
        assert_eq!((ROWS.len(), ROWS[10]), (11, 1024.0));
    }
}
