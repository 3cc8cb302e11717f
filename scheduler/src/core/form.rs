//! Forming a batch: who is in it, where each row starts, who writes which page.
//!
//! A row starts behind what its model has in the cache already: its own watermark, or further, where another request
//! has computed a shared page. The row that writes a page *claims* it for the step. A row behind it in the same batch
//! may read what the claimant writes, since in every layer keys and values are written before they are read; but no
//! two rows write one page. A claim lasts from here to the landing of the step, whatever happens to the request in
//! between: a model has one step in flight, so a claim can only be met while the claimant's own batch is formed.

use super::Core;
use crate::event::Row;
use crate::ids::{ModelId, Nanos, PAGE_TOKENS};
use crate::pages::NO_ROW;
use crate::request::State;

/// Where a row starts, and the row of the same batch that writes what it reads (or [`NO_ROW`]).
struct Start {
    at: usize,
    reads: u32,
}

impl Core {
    /// Forms a batch from the front of the model's queue and puts it in flight; false when no row could run.
    ///
    /// Rows come in queue order, as many as the row limit and the token limit (one token each) allow. What is left
    /// of the token limit goes to the rows in the same order, so a long prompt is cut into chunks while the rows
    /// behind it still advance by a token. Passed over, and first in line next time: a row whose shared page is being
    /// written by another row of this batch that was cut within it, and a row for which there is no page.
    pub(super) fn form(&mut self, model: ModelId, now: Nanos) -> bool {
        let sub = &mut self.subservers[model.index()];
        let limits = sub.limits;
        let most = sub.queue.len().min(sub.most_rows());
        let mut spare = limits.max_step_tokens - most;
        let mut batch = sub.open();
        let mut cursor = sub.queue.front();
        while let Some(slot) = cursor.filter(|_| batch.rows.len() < most) {
            let shaped = self.shape(slot, model, spare, &batch.rows);
            // Only now: growing may have preempted the next in the queue.
            cursor = self.table.links.after(slot);
            let Some((row, reads)) = shaped else { continue };
            spare -= row.len as usize - 1;
            batch.fed_tokens += row.len as usize;
            let request = self.table.at_mut(slot);
            for &page in &request.pages[touched(&row)] {
                self.pages.set_claim(page, model, batch.rows.len() as u32);
            }
            request.enter(State::Running(model));
            request.cut = false;
            let sub = &mut self.subservers[model.index()];
            sub.queue.remove(&mut self.table.links, slot);
            sub.reads.push(reads);
            batch.rows.push(row);
        }
        let sub = &mut self.subservers[model.index()];
        let runs = !batch.rows.is_empty();
        if runs {
            self.last_seq += 1;
        }
        sub.close(batch, self.last_seq, now);
        runs
    }

    fn shape(&mut self, slot: usize, model: ModelId, spare: usize, rows: &[Row]) -> Option<(Row, u32)> {
        let Start { at, reads } = self.start(slot, model, rows)?;
        let all = self.table.at(slot).tokens.len();
        let unseen = all - at;
        let len = 1 + (unseen - 1).min(spare);
        if !self.grow(slot, at + len) {
            return None;
        }
        let request = self.table.id(slot);
        Some((Row { request, start: at as u32, len: len as u32, samples: len == unseen }, reads))
    }

    /// The first position that the model has not computed, at most that of the last token; `None` when a row of the
    /// batch is writing the page that this one would have to go on writing. `rows` are those formed so far.
    fn start(&self, slot: usize, model: ModelId, rows: &[Row]) -> Option<Start> {
        let request = self.table.at(slot);
        let last = request.tokens.len() - 1;
        let (mut at, mut reads) = (request.watermarks[model.index()] as usize, NO_ROW);
        while at < last {
            let begin = at / PAGE_TOKENS * PAGE_TOKENS;
            let Some(&page) = request.pages.get(at / PAGE_TOKENS) else { break };
            let mut seen = begin + self.pages.valid(page, model);
            let claim = self.pages.claim(page, model);
            if let Some(row) = rows.get(claim as usize) {
                // A shared page stands at one place in every table.
                seen = seen.max((row.start + row.len) as usize).min(begin + PAGE_TOKENS);
                reads = claim;
            }
            let full = seen == begin + PAGE_TOKENS;
            if claim != NO_ROW && !full {
                return None;
            }
            at = at.max(seen);
            if !full {
                break;
            }
        }
        Some(Start { at: at.min(last), reads })
    }

    /// A batch has landed: its row writes no page any more.
    pub(super) fn unclaim(&mut self, model: ModelId, row: &Row) {
        let request = self.table.at(row.request.slot());
        for &page in &request.pages[touched(row)] {
            self.pages.set_claim(page, model, NO_ROW);
        }
    }

    /// A row has run well: what it wrote may be read.
    pub(super) fn computed(&mut self, model: ModelId, row: &Row) {
        let request = self.table.at(row.request.slot());
        let (span, end) = (touched(row), (row.start + row.len) as usize);
        for (i, &page) in request.pages[span.clone()].iter().enumerate() {
            self.pages.computed(page, model, end - (span.start + i) * PAGE_TOKENS);
        }
        #[cfg(test)]
        self.plant_published_ahead(model, row);
    }
}

/// The entries of the block table that a row writes.
fn touched(row: &Row) -> std::ops::Range<usize> {
    let (start, end) = (row.start as usize, (row.start + row.len) as usize);
    start / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS)
}
