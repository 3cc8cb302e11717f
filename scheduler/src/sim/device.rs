//! A virtual device: one model, one step at a time, a cache addressed through page tables.

use super::model::fake_result;
use super::random::Random;
use crate::core::Core;
use crate::event::{Batch, RowFault, RowResult};
use crate::ids::{ModelId, Nanos, PAGE_TOKENS, PageId};

/// How long steps take and how often they break.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceSpec {
    /// Of every step.
    pub base: Nanos,
    /// Per row.
    pub per_row: Nanos,
    /// Per token fed.
    pub per_token: Nanos,
    /// A step takes up to three times this longer, in whole multiples, so that steps often end together.
    pub jitter: Nanos,
    /// Chance that a step fails as a whole.
    pub step_failure: f64,
    /// Chance that a row of a step fails.
    pub row_fault: f64,
}

/// What a step in flight will do, copied at launch as an executor does.
struct Flight {
    ends: Nanos,
    rows: Vec<FlightRow>,
    fails: bool,
}

struct FlightRow {
    start: usize,
    fed: Vec<u32>,
    pages: Vec<PageId>,
    fault: Option<RowFault>,
}

pub(super) struct Device {
    model: ModelId,
    spec: DeviceSpec,
    random: Random,
    /// The token whose key and value each cache position holds.
    cache: Vec<u32>,
    flight: Option<Flight>,
}

impl Device {
    pub(super) fn new(model: ModelId, spec: DeviceSpec, pages: usize, seed: u64) -> Self {
        let cache = vec![u32::MAX; pages * PAGE_TOKENS];
        Self { model, spec, random: Random::new(seed ^ u64::from(model.0)), cache, flight: None }
    }

    pub(super) fn ends(&self) -> Option<Nanos> {
        self.flight.as_ref().map(|f| f.ends)
    }

    /// Starts a batch. Tokens and page tables are read now: the requests may be over when it ends.
    pub(super) fn start(&mut self, core: &Core, batch: &Batch, now: Nanos) {
        let spec = self.spec;
        let work = spec.per_row * batch.rows.len() as Nanos + spec.per_token * batch.fed_tokens as Nanos;
        let ends = now + spec.base + work + spec.jitter * self.random.range(0, 3);
        let fails = self.random.chance(spec.step_failure);
        let mut rows = Vec::with_capacity(batch.rows.len());
        for row in &batch.rows {
            let (start, end) = (row.start as usize, (row.start + row.len) as usize);
            let fault = self.random.chance(spec.row_fault).then_some(RowFault::NonFinite);
            rows.push(FlightRow {
                start,
                fed: core.tokens(row.request)[start..end].to_vec(),
                pages: core.pages(row.request).to_vec(),
                fault,
            });
        }
        self.flight = Some(Flight { ends, rows, fails });
    }

    /// Ends the step: writes the cache, then reads every row back from it. `None` when the step fails, which
    /// leaves the cache half written.
    pub(super) fn land(&mut self) -> Option<Vec<RowResult>> {
        let flight = self.flight.take()?;
        let mut results = Vec::with_capacity(flight.rows.len());
        for row in &flight.rows {
            for (offset, &token) in row.fed.iter().enumerate() {
                let at = cache_index(&row.pages, row.start + offset);
                self.cache[at] = token;
            }
            let end = row.start + row.fed.len();
            let prefix = (0..end).map(|position| self.cache[cache_index(&row.pages, position)]);
            results.push(RowResult { fault: row.fault, ..fake_result(prefix, self.model) });
        }
        (!flight.fails).then_some(results)
    }
}

fn cache_index(pages: &[PageId], position: usize) -> usize {
    pages[position / PAGE_TOKENS].0 as usize * PAGE_TOKENS + position % PAGE_TOKENS
}
