//! The routers that need no training: one model, a fixed share, and entropy in both directions.

use super::{
    Direction, Gauge, Measure, PURPOSE_ROUTE, Payload, ReachRow, ReceiveRow, RouteRow, Router, SignalSet,
    Source, StepView, Terms, Threshold, Verdict, Visit, draw,
};
use crate::ids::{ModelId, ModelSet};

/// `single`: one model writes everything.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    model: ModelId,
}

impl Single {
    /// A router that stays at `model`.
    pub fn new(model: ModelId) -> Self {
        Self { model }
    }
}

impl Router for Single {
    fn name(&self) -> &str {
        "single"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.model
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.model)
    }

    fn route(&self, _step: &StepView<'_>, to: &mut [ModelId]) {
        to.fill(self.model);
    }
}

/// `fixed`: at a seeded share of the positions the entry model's candidate is dropped and the peer writes that
/// one token; then control returns. The draw at a position depends on (seed, choice, position) alone, so the
/// share does not depend on what the models say. A request's own threshold replaces the share.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    entry: ModelId,
    peer: ModelId,
    fraction: f64,
}

impl Fixed {
    /// A router that lets `peer` write `fraction` (0 to 1) of the positions.
    pub fn new(entry: ModelId, peer: ModelId, fraction: f64) -> Self {
        // As a request would say it, so that the reported share replays the same draws.
        Self { entry, peer, fraction: f64::from(fraction as f32) }
    }

    fn asks_peer(&self, row: &RouteRow) -> bool {
        let fraction = match row.threshold {
            None => self.fraction,
            Some(Threshold::Always) => return true,
            Some(Threshold::Never) => return false,
            Some(Threshold::Value(v)) => f64::from(v),
        };
        draw(row.seed, row.choice, row.position, PURPOSE_ROUTE, self.entry) < fraction
    }
}

impl Router for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn terms(&self) -> Terms {
        let share = Threshold::Value(self.fraction as f32);
        Terms { threshold: Some((share, Source::Config)), budget: None }
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let never = row.threshold == Some(Threshold::Never);
        if never && row.model == self.entry { ModelSet::of(self.entry) } else { self.reach() }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let peer_writes_next =
                if step.model == self.entry { self.asks_peer(row) } else { !row.visit.is_last() };
            *to = if peer_writes_next { self.peer } else { self.entry };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == self.entry { Verdict::Drop } else { Verdict::Keep }
    }

    fn receive(&self, row: &ReceiveRow, _from: ModelId, _payload: &Payload, visit: &mut Visit) {
        if row.model == self.peer {
            visit.limit = 1;
        }
    }
}

/// `r-stitch`: the request is where the entropy says, in both directions.
///
/// At the entry model a normalised entropy above the threshold drops the candidate and hands over; at the peer an
/// entropy at or below it keeps the candidate and returns. Dropping on the way back too would show the entry model
/// the same prefix again and livelock under greedy decoding. An entropy that is not a number counts as uncertain.
#[derive(Clone, Copy, Debug)]
pub struct RStitch {
    entry: ModelId,
    peer: ModelId,
    threshold: Threshold,
    source: Source,
}

impl RStitch {
    /// The threshold used when none is configured: the one TokenRouter's paper serves with (algorithms 4.1).
    pub const DEFAULT_THRESHOLD: f32 = 0.03;

    const GAUGE: Gauge =
        Gauge { measure: Measure::EntropyNorm, direction: Direction::Above, peer_stays: true, once: false };

    /// A router between `entry` and `peer`; `Always` lets the peer write everything, `Never` the entry.
    pub fn new(entry: ModelId, peer: ModelId, threshold: Threshold) -> Self {
        Self { entry, peer, threshold, source: Source::Config }
    }

    /// The same with a threshold that came from elsewhere than the configuration.
    pub fn from_source(self, source: Source) -> Self {
        Self { source, ..self }
    }

    fn asks_peer(&self, row: &RouteRow) -> bool {
        Self::GAUGE.direction.asks(row.signals.entropy_norm, row.threshold.unwrap_or(self.threshold))
    }
}

impl Router for RStitch {
    fn name(&self) -> &str {
        "r-stitch"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::ENTROPY
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn gauge(&self) -> Option<Gauge> {
        Some(Self::GAUGE)
    }

    fn terms(&self) -> Terms {
        Terms { threshold: Some((self.threshold, self.source)), budget: None }
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        // The words leave no way back: `Never` away from the peer, `Always` away from the entry.
        match row.threshold.unwrap_or(self.threshold) {
            Threshold::Never if row.model == self.entry => ModelSet::of(self.entry),
            Threshold::Always if row.model == self.peer => ModelSet::of(self.peer),
            _ => self.reach(),
        }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            *to = if self.asks_peer(row) { self.peer } else { self.entry };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == self.entry { Verdict::Drop } else { Verdict::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NewRequest;
    use crate::event::Signals;
    use crate::ids::RequestId;
    use crate::sim::reference;

    const A: ModelId = ModelId(0);
    const B: ModelId = ModelId(1);

    fn row(model: ModelId, position: u32, entropy_norm: f32) -> RouteRow {
        RouteRow {
            request: RequestId::new(0, 0),
            model,
            position,
            generated: 0,
            candidate: 5,
            signals: Signals { entropy_norm, ..Signals::default() },
            threshold: None,
            visit: Visit::default(),
            seed: 3,
            choice: 0,
            budget: None,
        }
    }

    /// Destination, and whether a candidate that leaves is dropped.
    fn verdict(router: &dyn Router, row: RouteRow) -> (ModelId, bool) {
        let mut to = [row.model];
        router.route(&StepView { model: row.model, rows: &[row] }, &mut to);
        let dropped =
            to[0] != row.model && router.send(&row, to[0], &mut Payload::default()) == Verdict::Drop;
        (to[0], dropped)
    }

    #[test]
    fn r_stitch_drops_on_the_way_out_and_keeps_on_the_way_back() {
        let router = RStitch::new(A, B, Threshold::Value(0.25));
        let cases = [
            (A, 0.0, (A, false)),
            (A, 0.25, (A, false)),
            (A, 0.26, (B, true)),
            (A, f32::NAN, (B, true)),
            (B, 0.26, (B, false)),
            (B, f32::NAN, (B, false)),
            (B, 0.25, (A, false)),
            (B, 0.0, (A, false)),
        ];
        for (model, entropy, expected) in cases {
            assert_eq!(verdict(&router, row(model, 9, entropy)), expected, "{model} {entropy}");
        }
    }

    #[test]
    fn words_take_models_away_from_a_request() {
        let usage = crate::event::Usage::default();
        let asked = |router: &dyn Router, model, threshold| {
            router.may_visit(&ReachRow {
                model,
                generated: 0,
                threshold,
                visit: Visit::default(),
                usage: &usage,
                budget: None,
                max_new_tokens: 100,
            })
        };
        let (always, never) = (Some(Threshold::Always), Some(Threshold::Never));
        let both = ModelSet::first(2);
        let fixed = Fixed::new(A, B, 0.3);
        assert_eq!([None, always, never].map(|t| asked(&fixed, A, t)), [both, both, ModelSet::of(A)]);
        assert_eq!([None, always, never].map(|t| asked(&fixed, B, t)), [both, both, both]);
        let stitch = RStitch::new(A, B, Threshold::Value(0.1));
        assert_eq!([None, always, never].map(|t| asked(&stitch, A, t)), [both, both, ModelSet::of(A)]);
        assert_eq!([None, always, never].map(|t| asked(&stitch, B, t)), [both, ModelSet::of(B), both]);
        assert_eq!(asked(&RStitch::new(A, B, Threshold::Never), A, None), ModelSet::of(A));
    }

    #[test]
    fn r_stitch_obeys_words_and_the_request() {
        let (always, never) = (Some(Threshold::Always), Some(Threshold::Never));
        for own in [Threshold::Always, Threshold::Never, Threshold::Value(0.25)] {
            let router = RStitch::new(A, B, own);
            for entropy in [0.0, 0.5, 1.0] {
                for model in [A, B] {
                    let asked =
                        |threshold| verdict(&router, RouteRow { threshold, ..row(model, 9, entropy) }).0;
                    assert_eq!((asked(always), asked(never)), (B, A), "{own} {entropy} {model}");
                    assert_eq!(asked(Some(Threshold::Value(0.75))), if entropy <= 0.75 { A } else { B });
                }
            }
        }
        let signals = RStitch::new(A, B, Threshold::Always).signals();
        assert!(signals.contains(SignalSet::ENTROPY));
    }

    #[test]
    fn fixed_lets_the_peer_write_its_share_one_token_at_a_time() {
        for fraction in [0.0, 0.25, 1.0] {
            let router = Fixed::new(A, B, fraction);
            let request =
                NewRequest { prompt: vec![1], max_new_tokens: 4_000, seed: 9, ..NewRequest::default() };
            let stream = reference(&request, &router, &[]);
            let by_peer = stream.writers.iter().filter(|&&w| w == B).count() as f64;
            // Draws are fixed; 0.03 is over four standard deviations of the share.
            assert!((by_peer / 4_000.0 - fraction).abs() < 0.03, "{by_peer} of 4000 for {fraction}");
            for (i, &writer) in stream.writers.iter().enumerate() {
                let asked = router.asks_peer(&row_of(&request, i as u32 + 1));
                assert_eq!(writer, if asked { B } else { A }, "position {}", i + 1);
            }
        }
    }

    fn row_of(request: &NewRequest, position: u32) -> RouteRow {
        RouteRow { seed: request.seed, choice: request.choice, ..row(A, position, 0.0) }
    }

    #[test]
    fn fixed_draws_differ_by_seed_and_choice_and_the_request_sets_its_share() {
        let router = Fixed::new(A, B, 0.5);
        let pattern = |seed, choice| -> Vec<bool> {
            (0..64).map(|p| router.asks_peer(&RouteRow { seed, choice, ..row(A, p, 0.0) })).collect()
        };
        assert_ne!(pattern(1, 0), pattern(2, 0));
        assert_ne!(pattern(1, 0), pattern(1, 1));
        let share = |threshold| {
            let asked = (0..64).filter(|&p| router.asks_peer(&RouteRow { threshold, ..row(A, p, 0.0) }));
            asked.count()
        };
        assert_eq!((share(Some(Threshold::Always)), share(Some(Threshold::Never))), (64, 0));
        assert!(share(Some(Threshold::Value(0.1))) < 20);
    }
}
