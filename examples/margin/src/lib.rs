//! `margin`: the small model writes while its best token is clearly ahead of the second, with hysteresis.
//!
//! Where the margin (probability of the best token minus that of the second) is below the threshold, the small model's
//! candidate is dropped and the large model writes on. It stays for at least one token and until it is confident
//! itself, and hands back with its own token kept. A small model that leaves again before it wrote `patience` confident
//! tokens in a row has relapsed: the next stay is twice as long, up to `max_stay`. So a hard passage moves to the large
//! model as a whole instead of going back and forth at every token, and one hard token costs one token.
//!
//! The memory for this is one byte, the length of the last stay. It goes along with the request: in the payload of a
//! handoff and in the visit's scratch, never in the router, which is a constant. Zero means that there was no stay yet.

use tokenrouter_scheduler::router::{
    Direction, ParamReader, Payload, ReachRow, ReceiveRow, Registry, RouteRow, Router, RouterError,
    SignalSet, Source, StepView, Terms, Threshold, Verdict, Visit,
};
use tokenrouter_scheduler::{ModelId, ModelSet};

/// The name in configurations.
pub const NAME: &str = "margin";

/// Adds the router to those that configurations may name.
///
/// | parameter | meaning |
/// | --- | --- |
/// | `threshold` | margin below which the large model is asked: 0 to 1, `always` or `never` (default 0.5) |
/// | `patience` | confident tokens in a row after which the small model has not relapsed: 0 to 255 (default 4) |
/// | `max_stay` | longest stay that relapses lead to, in tokens: 1 to 255 (default 8) |
/// | `peer` | index of the large model; not needed when two models are configured |
///
/// # Errors
/// When the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), RouterError> {
    registry.register(NAME, |params| Ok(Box::new(Margin::from_params(params)?)))
}

/// The router; see the module. A plain value: what it knows of a request comes with the request.
#[derive(Clone, Copy, Debug)]
pub struct Margin {
    entry: ModelId,
    peer: ModelId,
    threshold: Threshold,
    source: Source,
    patience: u32,
    max_stay: u8,
}

impl Margin {
    /// The threshold when neither request nor configuration has one.
    pub const DEFAULT_THRESHOLD: f32 = 0.5;

    /// Where the length of the last stay lies, in the payload and in the scratch.
    const STAY: usize = 0;

    /// A router between `entry` and `peer` with the defaults of [`register`].
    pub fn new(entry: ModelId, peer: ModelId, threshold: Threshold) -> Self {
        Self { entry, peer, threshold, source: Source::Config, patience: 4, max_stay: 8 }
    }

    /// With stays that double up to `max_stay` tokens (at least one) when the small model leaves before `patience`
    /// confident tokens in a row.
    pub fn with_stays(self, patience: u8, max_stay: u8) -> Self {
        Self { patience: patience.into(), max_stay: max_stay.max(1), ..self }
    }

    fn from_params(params: &mut ParamReader<'_>) -> Result<Self, RouterError> {
        let default = (Threshold::Value(Self::DEFAULT_THRESHOLD), Source::Published);
        let (threshold, source) = params.threshold_or(Some(default))?;
        let router = Self::new(params.spec().entry, params.peer()?, threshold);
        let patience = whole(params, "patience", router.patience as u8, 0)?;
        let max_stay = whole(params, "max_stay", router.max_stay, 1)?;
        Ok(Self { source, ..router }.with_stays(patience, max_stay))
    }

    fn threshold(&self, own: Option<Threshold>) -> Threshold {
        own.unwrap_or(self.threshold)
    }

    /// Whether the model that ran the step is unsure of its candidate. A margin that is not a number is unsure.
    fn unsure(&self, row: &RouteRow) -> bool {
        Direction::Below.asks(row.signals.margin, self.threshold(row.threshold))
    }

    /// Tokens of the next stay at the peer, for a row that leaves the entry.
    fn next_stay(&self, visit: &Visit) -> u8 {
        // All tokens of a visit to the entry were confident, or it would have ended: their count is the row of them.
        match visit.scratch[Self::STAY] {
            0 => 1,
            last if visit.committed < self.patience => last.saturating_mul(2).min(self.max_stay),
            _ => 1,
        }
    }
}

/// A whole number from `low` to 255.
fn whole(params: &mut ParamReader<'_>, key: &'static str, default: u8, low: u8) -> Result<u8, RouterError> {
    let value = params.float(key, default.into(), low.into(), u8::MAX.into())?;
    match params.raw(key) {
        Some(raw) if value.fract() != 0.0 => Err(params.bad(key, raw, "a whole number")),
        _ => Ok(value as u8),
    }
}

impl Router for Margin {
    fn name(&self) -> &str {
        NAME
    }

    fn signals(&self) -> SignalSet {
        SignalSet::MARGIN
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        // A number rules nothing out. The words do, once the request is where they send it.
        match self.threshold(row.threshold) {
            Threshold::Never if row.model == self.entry => ModelSet::of(self.entry),
            Threshold::Always if row.model == self.peer => ModelSet::of(self.peer),
            _ => self.reach(),
        }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let unsure = self.unsure(row);
            let peer_writes_next =
                if step.model == self.entry { unsure } else { unsure || !row.visit.is_last() };
            *to = if peer_writes_next { self.peer } else { self.entry };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, payload: &mut Payload) -> Verdict {
        if row.model == self.entry {
            payload.0[Self::STAY] = self.next_stay(&row.visit);
            Verdict::Drop
        } else {
            // Dropped, the entry model would see the same prefix again, say the same and circle for ever.
            payload.0[Self::STAY] = row.visit.scratch[Self::STAY];
            Verdict::Keep
        }
    }

    fn receive(&self, row: &ReceiveRow, _from: ModelId, payload: &Payload, visit: &mut Visit) {
        let stay = payload.0[Self::STAY];
        visit.scratch[Self::STAY] = stay;
        if row.model == self.peer {
            visit.limit = stay.into();
        }
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn terms(&self) -> Terms {
        Terms { threshold: Some((self.threshold, self.source)), budget: None }
    }
}

#[cfg(test)]
mod tests;
