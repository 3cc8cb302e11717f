//! A virtual device: one model, one step at a time, a cache addressed through page tables.
//!
//! As in a real model, what a cache position holds depends on all tokens before it, not on its own token alone. A row
//! therefore only gets the right answer when every position it reads was computed for its very prefix; a wrong
//! watermark, a page of another prefix, one that was reused or poisoned is found at once.

use super::model::{SEED, fake_result, fold};
use super::random::Random;
use crate::core::Core;
use crate::event::{Batch, RowFault, RowResult};
use crate::ids::{ModelId, Nanos, PAGE_TOKENS, PageId};

/// How many times longer a step takes on a device that stalls.
const STALL: (u64, u64) = (100, 400);

/// What no position may hold when it is read.
const POISON: u64 = u64::MAX;

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
    /// Chance that a step takes hundreds of times longer.
    pub stall: f64,
    /// Every step that ends at this time or later fails.
    pub dies_at: Option<Nanos>,
}

/// What a step in flight will do, copied at launch as an executor does.
struct Flight {
    ends: Nanos,
    rows: Vec<FlightRow>,
    fails: bool,
}

struct FlightRow {
    start: usize,
    /// All tokens up to the last one fed.
    tokens: Vec<u32>,
    pages: Vec<PageId>,
    fault: Option<RowFault>,
}

pub(super) struct Device {
    model: ModelId,
    spec: DeviceSpec,
    random: Random,
    /// What each cache position holds: a hash of the tokens up to it.
    cache: Vec<u64>,
    flight: Option<Flight>,
}

impl Device {
    pub(super) fn new(model: ModelId, spec: DeviceSpec, pages: usize, seed: u64) -> Self {
        let cache = vec![POISON; pages * PAGE_TOKENS];
        Self { model, spec, random: Random::new(seed ^ u64::from(model.0)), cache, flight: None }
    }

    pub(super) fn ends(&self) -> Option<Nanos> {
        self.flight.as_ref().map(|f| f.ends)
    }

    /// Whether every step fails by now.
    pub(super) fn is_dead(&self, now: Nanos) -> bool {
        self.spec.dies_at.is_some_and(|at| at <= now)
    }

    /// Starts a batch, and says whether it stalls. Tokens and page tables are read now: the requests may be over when
    /// it ends.
    pub(super) fn start(&mut self, core: &Core, batch: &Batch, now: Nanos) -> bool {
        let spec = self.spec;
        let work = spec.per_row * batch.rows.len() as Nanos + spec.per_token * batch.fed_tokens as Nanos;
        let stalls = self.random.chance(spec.stall);
        let factor = if stalls { self.random.range(STALL.0, STALL.1) } else { 1 };
        let ends = now + (spec.base + work + spec.jitter * self.random.range(0, 3)) * factor;
        let fails = self.random.chance(spec.step_failure) || self.is_dead(ends);
        let mut rows = Vec::with_capacity(batch.rows.len());
        for row in &batch.rows {
            let (start, end) = (row.start as usize, (row.start + row.len) as usize);
            let fault = self.random.chance(spec.row_fault).then_some(RowFault::NonFinite);
            rows.push(FlightRow {
                start,
                tokens: core.tokens(row.request)[..end].to_vec(),
                pages: core.pages(row.request).to_vec(),
                fault,
            });
        }
        self.flight = Some(Flight { ends, rows, fails });
        stalls
    }

    /// Ends the step: writes the cache, then reads every row back from it. `None` when the step fails; what a failed
    /// step or row has written is poison.
    ///
    /// # Errors
    /// When a row reads a position that does not hold its prefix.
    pub(super) fn land(&mut self) -> Result<Option<Vec<RowResult>>, String> {
        let Some(flight) = self.flight.take() else { return Ok(None) };
        for row in &flight.rows {
            let broken = flight.fails || row.fault.is_some();
            for (position, &token) in row.tokens.iter().enumerate().skip(row.start) {
                let before = match position.checked_sub(1) {
                    None => self.seed(),
                    Some(before) => self.cache[cache_index(&row.pages, before)],
                };
                let value = if broken || before == POISON { POISON } else { fold(before, token) };
                self.cache[cache_index(&row.pages, position)] = value;
            }
        }
        if flight.fails {
            return Ok(None);
        }
        flight.rows.iter().map(|row| self.read(row, &flight)).collect::<Result<_, _>>().map(Some)
    }

    /// Ends a step that was given up: it writes the cache, and nobody wants to know.
    pub(super) fn land_late(&mut self) {
        let Some(flight) = self.flight.as_mut() else { return };
        // As a failed step, which reads nothing back: its pages may hold something else by now.
        flight.fails = true;
        drop(self.land());
    }

    fn read(&self, row: &FlightRow, flight: &Flight) -> Result<RowResult, String> {
        let mut expected = self.seed();
        let mut poisoned = false;
        for (position, &token) in row.tokens.iter().enumerate() {
            expected = fold(expected, token);
            let held = self.cache[cache_index(&row.pages, position)];
            poisoned |= held != expected;
            // A row may read what another row of its step writes, and that one may be faulty.
            let explained = held == POISON && flight.rows.iter().any(|r| r.fault.is_some());
            if held != expected && !explained {
                let page = row.pages[position / PAGE_TOKENS].0;
                return Err(format!(
                    "{}: position {position} in page {page} holds another prefix",
                    self.model
                ));
            }
        }
        let result =
            if poisoned { RowResult::default() } else { fake_result(row.tokens.iter().copied(), self.model) };
        Ok(RowResult { fault: row.fault, ..result })
    }

    fn seed(&self) -> u64 {
        SEED + u64::from(self.model.0)
    }

    /// Nobody may read the page any more.
    pub(super) fn poison(&mut self, page: PageId) {
        self.cache[page.0 as usize * PAGE_TOKENS..][..PAGE_TOKENS].fill(POISON);
    }
}

fn cache_index(pages: &[PageId], position: usize) -> usize {
    pages[position / PAGE_TOKENS].0 as usize * PAGE_TOKENS + position % PAGE_TOKENS
}
