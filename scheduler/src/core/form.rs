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
use crate::pages::{NO_ROW, Pages};
use crate::request::{Request, State};

/// Where a row starts, and the row of the same batch that writes what it reads (or [`NO_ROW`]).
struct Start {
    at: usize,
    reads: u32,
}

impl Core {
    /// Forms a batch from the front of the model's queue and puts it in flight; false when no row could run.
    ///
    /// Rows come in queue order, as many as the row limit and the token limit (one token each) allow. What is left
    /// of the token limit goes first to rows that *catch up* (they have seen their prompt, and feed what other models
    /// wrote since), then to prompts, each in queue order: a long prompt is cut into chunks, and those who wait for
    /// their next token do not wait for it as well. Every row advances by a token at least. Passed over, and first in line next time: a row whose shared page is being
    /// written by another row of this batch that was cut within it, and a row for which there is no page.
    pub(super) fn form(&mut self, model: ModelId, now: Nanos) -> bool {
        let sub = &mut self.subservers[model.index()];
        let limits = sub.limits;
        let most = sub.queue.len().min(sub.most_rows());
        let mut spare = limits.max_step_tokens - most;
        // What the rows behind will need to catch up; a prompt leaves it to them.
        let owed = |slot: usize| catch_up(self.table.at(slot), model);
        let mut kept: usize = sub.queue.iter(&self.table.links).take(most).map(owed).sum();
        let mut batch = sub.open();
        let mut cursor = sub.queue.front();
        while let Some(slot) = cursor.filter(|_| batch.rows.len() < most) {
            kept = kept.saturating_sub(catch_up(self.table.at(slot), model));
            let left =
                if has_seen_prompt(self.table.at(slot), model) { spare } else { spare.saturating_sub(kept) };
            let shaped = self.shape(slot, model, left, &batch.rows);
            let (request, links) = self.table.at_mut_linked(slot);
            // Only now: growing may have preempted the next in the queue.
            cursor = links.after(slot);
            let Some((row, reads)) = shaped else { continue };
            spare -= row.len as usize - 1;
            batch.fed_tokens += row.len as usize;
            batch.prompt_tokens += prompt_part(&row, request.prompt_len);
            let index = batch.rows.len() as u32;
            self.pages.launched(&request.pages, model, row.start, row.start + row.len, index);
            request.enter(now, State::Running(model));
            if let Some(handed) = request.handed_at.take() {
                batch.delays.push(now.saturating_sub(handed));
            }
            request.cut = false;
            let sub = &mut self.subservers[model.index()];
            sub.queue.remove(links, slot);
            sub.reads.push(reads);
            if row.samples {
                request.may_visit.iter().for_each(|model| sub.goes_to[model.index()] += 1);
            }
            batch.rows.push(row);
        }
        let sub = &mut self.subservers[model.index()];
        let runs = !batch.rows.is_empty();
        if runs {
            self.last_seq += 1;
            self.overlap.start(model, self.estimates.parts(model, batch.fed_tokens), now);
        }
        sub.close(batch, self.last_seq, now);
        runs
    }

    fn shape(&mut self, slot: usize, model: ModelId, spare: usize, rows: &[Row]) -> Option<(Row, u32)> {
        let request = self.table.at(slot);
        let Start { at, reads } = start(&self.pages, request, model, rows)?;
        let unseen = request.tokens.len() - at;
        let len = 1 + (unseen - 1).min(spare);
        let has_room = request.pages.len() * PAGE_TOKENS >= at + len;
        if !(has_room && self.hungry.is_none() || self.grow(slot, at + len)) {
            return None;
        }
        let request = self.table.id(slot);
        Some((Row { request, start: at as u32, len: len as u32, samples: len == unseen }, reads))
    }
}

/// Whether the model has the whole prompt of the request in its cache.
fn has_seen_prompt(request: &Request, model: ModelId) -> bool {
    request.watermarks[model.index()] >= request.prompt_len
}

/// The tokens beside the first that a row feeds which has seen its prompt; 0 for others.
fn catch_up(request: &Request, model: ModelId) -> usize {
    if !has_seen_prompt(request, model) {
        return 0;
    }
    (request.tokens.len() - 1).saturating_sub(request.watermarks[model.index()] as usize)
}

/// The tokens of the prompt that a row feeds.
fn prompt_part(row: &Row, prompt_len: u32) -> usize {
    ((row.start + row.len).min(prompt_len) - row.start.min(prompt_len)) as usize
}

/// The first position that the model has not computed, at most that of the last token; `None` when a row of the
/// batch is writing the page that this one would have to go on writing. `rows` are those formed so far.
#[inline]
fn start(pages: &Pages, request: &Request, model: ModelId, rows: &[Row]) -> Option<Start> {
    let last = request.tokens.len() - 1;
    let (mut at, mut reads) = (request.watermarks[model.index()] as usize, NO_ROW);
    while at < last {
        let begin = at / PAGE_TOKENS * PAGE_TOKENS;
        let Some(&page) = request.pages.get(at / PAGE_TOKENS) else { break };
        let mut seen = begin + pages.valid(page, model);
        let claim = pages.claim(page, model);
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
