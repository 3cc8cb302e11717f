//! Who gets pages: admission, growth, preemption, and what is published for others.
//!
//! *Order.* Requests have one total order ([`Request::is_before`]): higher priority first, then first come. It
//! decides who is admitted next and who is preempted first, and it is what rules out a deadlock: a request takes
//! pages only from those behind it, so the first of all always gets what it needs, and it ends.
//!
//! *Published pages.* Blocks of 16 tokens of which another request can hold the page. Prompts are published at
//! admission, before anything is computed, so that requests that arrive together share the work; a block of the
//! answer when some model has computed all of it in a completed step and a token stands behind it. That token is why
//! a request never rewrites a published position: what must be computed again to get logits is the last one. A block
//! with a token past a stop's `committed_len` is taken back, and after a fault nothing of the request stays published.
//!
//! [`Request::is_before`]: crate::request::Request::is_before

use super::Core;
use crate::event::FinishReason;
use crate::ids::{ModelId, ModelSet, PAGE_TOKENS, RequestId};
use crate::pages::pages_for;
use crate::request::State;

impl Core {
    /// Moves requests from the front of the waiting queue to the queue of their model while room lasts. Strictly in
    /// order: a large request at the front is not overtaken, so it cannot starve. Nobody is admitted while an
    /// admitted request lacks a page.
    pub(super) fn admit(&mut self) {
        while self.admitted < self.config.max_running && self.hungry.is_none() {
            let Some(slot) = self.waiting.front() else { break };
            if !self.lease(slot) {
                break;
            }
            let request = self.table.at_mut(slot);
            let owner = request.resume.take().unwrap_or(request.entry);
            request.visited.insert(owner);
            request.account.admitted(self.now);
            request.enter(self.now, State::Ready(owner));
            let elsewhere = request.visited.without(ModelSet::of(owner));
            elsewhere.iter().for_each(|model| self.subservers[model.index()].pending += 1);
            self.waiting.remove(&mut self.table.links, slot);
            self.subservers[owner.index()].queue.push_back(&mut self.table.links, slot);
            self.admitted += 1;
            self.count_visits(slot, owner);
            self.epoch = true;
        }
    }

    /// Gives a waiting request the pages of its tokens, shared ones first. False, and nothing has changed, when the
    /// reserve would not stay available beside them.
    fn lease(&mut self, slot: usize) -> bool {
        let id = self.table.id(slot);
        let available = self.pages.available();
        if self.refused.is_some_and(|(last, had)| last == id && available <= had) {
            return false;
        }
        let request = self.table.at_mut(slot);
        // While its prompt is scored a request shares no page, so that it computes every position itself and reads nothing
        // that another writes; what it has computed is published as it goes.
        let sharing = self.config.prefix_cache && !request.is_scoring();
        let whole = pages_for(request.lifetime());
        let lease = if request.is_preemptible() { pages_for(request.tokens.len()) } else { whole };
        // A lifetime fits the empty cache, and more than it is never asked for: whoever waits is admitted some day.
        let needed = whole.min(lease.saturating_add(self.config.reserve_pages));
        if sharing {
            self.pages.search(request.cache_salt, &request.tokens, &mut request.pages);
        }
        let found = request.pages.len();
        let cached = request.pages.iter().filter(|&&page| self.pages.is_cached(page)).count();
        if needed - found > available - cached {
            request.pages.clear();
            self.refused = Some((id, available));
            return false;
        }
        self.refused = None;
        request.pages.iter().for_each(|&page| self.pages.share(page));
        let fresh = std::iter::from_fn(|| self.pages.take()).take(lease - found);
        request.pages.extend(fresh);
        request.published = 0;
        if sharing {
            // The page of the last token stays its own.
            let blocks = (request.tokens.len() - 1) / PAGE_TOKENS;
            for (i, block) in request.tokens.chunks_exact(PAGE_TOKENS).enumerate().take(blocks).skip(found) {
                self.pages.publish(request.cache_salt, &request.pages, i, block);
            }
            request.published = blocks as u32;
        }
        true
    }

    /// Makes the request's block table cover its first `tokens` tokens. False when no page can be had now: then
    /// [`Core::feed_hungry`] tries before anything else is decided.
    pub(super) fn grow(&mut self, slot: usize, tokens: usize) -> bool {
        while self.table.at(slot).pages.len() * PAGE_TOKENS < tokens {
            match self.pages.take() {
                Some(page) => self.table.at_mut(slot).pages.push(page),
                None if self.preempt_behind(slot) => {}
                None => {
                    self.note_hungry(slot);
                    return false;
                }
            }
        }
        if self.hungry == Some(self.table.id(slot)) {
            self.hungry = None;
        }
        true
    }

    /// The first in order of those that lack a page.
    fn note_hungry(&mut self, slot: usize) {
        let other = self.hungry.filter(|&id| self.table.get(id).is_some());
        if other.is_none_or(|id| self.table.at(slot).is_before(self.table.at(id.slot()))) {
            self.hungry = Some(self.table.id(slot));
        }
    }

    /// Serves the request that lacks a page, before others are admitted or launched: between two launches of a model
    /// its requests are named by no launch and can be preempted, so no younger request keeps its pages for ever.
    pub(super) fn feed_hungry(&mut self) {
        let Some(id) = self.hungry else { return };
        match self.table.get(id).map(|r| (r.state(), r.tokens.len())) {
            Some((State::Ready(_), tokens)) => drop(self.grow(id.slot(), tokens)),
            _ => self.hungry = None,
        }
    }

    /// Preempts the last request in order, if it stands behind `slot`, no launch in flight names it, and it was not
    /// preempted too often already. A request that is named by no launch is Ready.
    fn preempt_behind(&mut self, slot: usize) -> bool {
        let this = self.table.at(slot);
        let candidates = self
            .table
            .iter()
            .filter(|(_, r)| matches!(r.state(), State::Ready(_)) && r.is_preemptible() && this.is_before(r));
        let last = candidates.reduce(|a, b| if a.1.is_before(b.1) { b } else { a });
        let Some(victim) = last.map(|(victim, _)| victim) else { return false };
        self.preempt(victim);
        true
    }

    /// Takes the pages of a ready request: it waits again, to go on at the model that owned it.
    fn preempt(&mut self, slot: usize) {
        let request = self.table.at_mut(slot);
        let State::Ready(owner) = request.state() else { return };
        request.preempted += 1;
        request.account.preempt();
        self.subservers[owner.index()].queue.remove(&mut self.table.links, slot);
        self.wait_again(slot, owner, owner);
        self.preemptions += 1;
        #[cfg(test)]
        self.plant_stale_watermark(slot, owner);
    }

    /// An admitted request, owned by `owner`, that stands in no queue and that no launch names, gives its pages up on
    /// all models and waits at the place of its arrival, to go on at `resume`. Its tokens, writers, visit, draws and
    /// account are kept. Admission leases the pages of all its tokens, so it runs a row before it needs another.
    pub(super) fn wait_again(&mut self, slot: usize, owner: ModelId, resume: ModelId) {
        self.publish(slot);
        let request = self.table.at_mut(slot);
        request.enter(self.now, State::Waiting);
        request.cut = false;
        request.resume = Some(resume);
        request.watermarks.fill(0);
        self.pages.release(&request.pages);
        request.pages.clear();
        let visited = request.visited;
        self.leave(owner, visited);
        self.forget_visits(slot);
        self.enqueue(slot);
        self.epoch = true;
    }

    /// An admitted request, owned by `owner`, is admitted no more.
    pub(super) fn leave(&mut self, owner: ModelId, visited: ModelSet) {
        self.admitted -= 1;
        for model in visited.without(ModelSet::of(owner)).iter() {
            self.subservers[model.index()].pending -= 1;
        }
    }

    /// Puts a request into the waiting queue where its priority and arrival say.
    pub(super) fn enqueue(&mut self, slot: usize) {
        let mut links = std::mem::take(&mut self.table.links);
        let request = self.table.at(slot);
        self.waiting.insert(&mut links, slot, |other| self.table.at(other).is_before(request));
        self.table.links = links;
    }

    /// Publishes the blocks of the answer that may be, see the head of this file.
    pub(super) fn publish(&mut self, slot: usize) {
        if !self.config.prefix_cache {
            return;
        }
        let request = self.table.at_mut(slot);
        if !request.may_publish() {
            return;
        }
        let computed = request.watermarks.iter().copied().max().unwrap_or(0) as usize;
        let blocks = computed.min(request.publishable()) / PAGE_TOKENS;
        for i in request.published as usize..blocks {
            let block = &request.tokens[i * PAGE_TOKENS..][..PAGE_TOKENS];
            self.pages.publish(request.cache_salt, &request.pages, i, block);
            request.published += 1;
        }
    }

    /// What stays published of a request that ends.
    pub(super) fn settle_published(&mut self, slot: usize, reason: &FinishReason) {
        if reason.is_fault() {
            return self.pages.distrust(&self.table.at(slot).pages);
        }
        self.publish(slot);
        let request = self.table.at(slot);
        let counted = (request.prompt_len + request.account.usage().completion_tokens) as usize;
        let from = (counted / PAGE_TOKENS).min(request.pages.len());
        self.pages.withdraw(&request.pages[from..]);
    }

    /// Whether a page holds nothing that anybody may read: tests overwrite such pages.
    pub fn is_free(&self, page: crate::ids::PageId) -> bool {
        (page.0 as usize) < self.pages.total() && self.pages.is_free(page)
    }

    /// How often a request was preempted; 0 for a stale id.
    pub fn preempted(&self, id: RequestId) -> u32 {
        self.table.get(id).map_or(0, |r| r.preempted)
    }
}
