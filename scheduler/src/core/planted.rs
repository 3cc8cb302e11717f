//! Bugs planted for a test: it shows that the invariants catch them. Nothing of this is in a build that serves.

use super::Core;
use crate::event::Row;
use crate::ids::{ModelId, PAGE_TOKENS};

/// A bug. It strikes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A page of a request that ends is not released.
    SkipRelease,
    /// A completion does not lead to a decision.
    LoseWakeUp,
    /// An idle model with ready requests has no guard time.
    LoseTimer,
    /// A request gets its terminal twice.
    FinishTwice,
    /// A preempted request keeps its watermark.
    StaleWatermark,
    /// A position that was not written counts as computed: only the device can tell.
    PublishAhead,
}

impl Bug {
    pub(crate) const ALL: [Self; 6] = [
        Self::SkipRelease,
        Self::LoseWakeUp,
        Self::LoseTimer,
        Self::FinishTwice,
        Self::StaleWatermark,
        Self::PublishAhead,
    ];
}

/// An armed bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted {
    pub(crate) bug: Bug,
    /// Occasions that it lets pass before it strikes.
    pub(crate) passes: u64,
}

impl Core {
    /// Whether `bug` strikes at this occasion.
    fn strikes(&mut self, bug: Bug) -> bool {
        let Some(planted) = self.planted.as_mut().filter(|p| p.bug == bug) else { return false };
        match planted.passes.checked_sub(1) {
            Some(left) => planted.passes = left,
            None => self.planted = None,
        }
        self.planted.is_none()
    }

    pub(super) fn plant_lost_page(&mut self, slot: usize) {
        if !self.table.at(slot).pages.is_empty() && self.strikes(Bug::SkipRelease) {
            self.table.at_mut(slot).pages.pop();
        }
    }

    pub(super) fn plant_lost_wake_up(&mut self) {
        if self.strikes(Bug::LoseWakeUp) {
            self.epoch = false;
        }
        if self.subservers.iter().any(|sub| sub.stalled_since.is_some()) && self.strikes(Bug::LoseTimer) {
            self.subservers.iter_mut().for_each(|sub| sub.stalled_since = None);
        }
    }

    pub(super) fn plant_second_terminal(&mut self) {
        if self.strikes(Bug::FinishTwice) {
            self.effects.repeat_last();
        }
    }

    pub(super) fn plant_stale_watermark(&mut self, slot: usize, owner: ModelId) {
        if self.strikes(Bug::StaleWatermark) {
            self.table.at_mut(slot).watermarks[owner.index()] = 1;
        }
    }

    pub(super) fn plant_published_ahead(&mut self, model: ModelId, row: &Row) {
        let end = (row.start + row.len) as usize;
        let page = self.table.at(row.request.slot()).pages.get(end / PAGE_TOKENS).copied();
        let Some(page) = page.filter(|_| self.strikes(Bug::PublishAhead)) else { return };
        self.pages.pretend_computed(page, model, (end % PAGE_TOKENS + 1) as u8);
    }
}
