//! The full invariant check.

use super::Core;
use crate::ids::{MAX_MODELS, ModelSet, PAGE_TOKENS, PageId};
use crate::pages::{NO_ROW, pages_for};
use crate::request::{MAX_PREEMPTIONS, Request, State};

impl Core {
    /// Recomputes everything the counters claim from the requests themselves and panics on the first difference.
    /// For tests and simulation: its cost grows with the number of requests and pages.
    pub fn audit(&self) {
        self.audit_requests();
        self.audit_pages();
        self.audit_queues();
        self.audit_counts();
        self.audit_batches();
        self.audit_lost();
    }

    /// Nobody is at a lost model or waits for it, and nothing there is trusted.
    fn audit_lost(&self) {
        for sub in &self.subservers {
            let (model, lost) = (sub.model, self.lost.contains(sub.model));
            assert!(lost || !sub.abandoned, "{model} is back before its step has ended");
            if !lost {
                continue;
            }
            assert!(!sub.is_busy() && sub.queue.is_empty(), "{model} is lost and has work");
            for (slot, request) in self.table.iter() {
                assert_eq!(request.watermarks[model.index()], 0, "slot {slot} trusts {model}, which is lost");
                assert!(!request.may_visit.contains(model), "slot {slot} may visit {model}, which is lost");
                let next = request.resume.unwrap_or(request.entry);
                assert!(request.state() != State::Waiting || next != model, "slot {slot} waits for {model}");
            }
            let trusted =
                (0..self.pages.total() as u32).any(|page| self.pages.valid(PageId(page), model) > 0);
            assert!(!trusted, "a page of {model}, which is lost, counts as computed");
        }
    }

    fn audit_requests(&self) {
        for (slot, request) in self.table.iter() {
            audit_request(slot, request);
            let admitted = request.state().owner();
            assert_eq!(request.may_visit.is_empty(), admitted.is_none(), "slot {slot}: visits");
            assert!(admitted.is_none_or(|owner| request.may_visit.contains(owner)), "slot {slot}: owner");
            let is_cut = request.cut && matches!(request.state(), State::Running(_) | State::Waiting);
            assert!(!is_cut, "slot {slot}: a cut row is ready again at once");
            let (len, held) = (request.tokens.len(), request.pages.len());
            if request.state() == State::Waiting {
                assert!(
                    request.pages.is_empty() && request.watermarks == [0; MAX_MODELS],
                    "slot {slot} waits"
                );
                assert_eq!(
                    request.visited.is_empty(),
                    request.resume.is_none(),
                    "slot {slot}: where to go on"
                );
            } else if request.state().owner().is_some() {
                let least = if request.is_preemptible() { len - 1 } else { request.lifetime() };
                assert!(held >= pages_for(least), "slot {slot}: {held} pages for {least} tokens");
            }
            assert!(held <= pages_for(request.lifetime()), "slot {slot}: too many pages");
            assert!(request.preempted <= MAX_PREEMPTIONS, "slot {slot}: preempted too often");
        }
    }

    /// Every page is held by exactly those whose tables name it, those tables agree about its contents, and no
    /// watermark is ahead of what was computed.
    fn audit_pages(&self) {
        let mut holders = vec![(0, 0); self.pages.total()];
        let mut places: Vec<Option<(usize, &[u32])>> = vec![None; self.pages.total()];
        for (slot, request) in self.table.iter() {
            let over = request.state() == State::Finished;
            for (i, &page) in request.pages.iter().enumerate() {
                let count = &mut holders[page.0 as usize];
                *(if over { &mut count.1 } else { &mut count.0 }) += 1;
                let end = request.tokens.len().min((i + 1) * PAGE_TOKENS);
                let prefix = &request.tokens[..end];
                match places[page.0 as usize].replace((i, prefix)) {
                    None => {}
                    Some((_, other)) => {
                        assert_eq!(other, prefix, "page {} is shared by different prefixes", page.0);
                        assert_eq!(end, (i + 1) * PAGE_TOKENS, "page {} is shared and not full", page.0);
                    }
                }
                if let Some(contents) = self.pages.contents(page) {
                    assert_eq!(
                        Some(contents),
                        prefix.get(i * PAGE_TOKENS..),
                        "page {} of slot {slot}",
                        page.0
                    );
                    let last = request.tokens.len() > (i + 1) * PAGE_TOKENS;
                    assert!(last || over, "the page of the last token of slot {slot} is published");
                }
            }
            for sub in &self.subservers {
                let mut watermark = request.watermarks[sub.model.index()] as usize;
                for &page in &request.pages {
                    let valid = self.pages.valid(page, sub.model);
                    assert!(
                        valid >= watermark.min(PAGE_TOKENS) || over,
                        "slot {slot} is ahead of {}",
                        sub.model
                    );
                    watermark = watermark.saturating_sub(PAGE_TOKENS);
                }
                assert_eq!(watermark, 0, "slot {slot}: computed without a page");
            }
        }
        self.pages.audit(&holders);
        assert!(self.config.prefix_cache || self.pages.counts().cached == 0);
    }

    fn audit_queues(&self) {
        let in_waiting = |slot| self.table.at(slot).state() == State::Waiting;
        assert!(self.waiting.iter(&self.table.links).all(in_waiting), "the waiting queue holds others");
        assert_eq!(self.waiting.iter(&self.table.links).count(), self.waiting.len());
        let order: Vec<&Request> = self.waiting.iter(&self.table.links).map(|s| self.table.at(s)).collect();
        assert!(order.windows(2).all(|w| w[0].is_before(w[1])), "the waiting queue is out of order");
        let busy = self.busy();
        for sub in &self.subservers {
            let blocked = self.is_blocked(sub.model, busy);
            assert!(!(blocked && sub.is_busy()), "{} runs beside a model that it excludes", sub.model);
            let ready = |slot| self.table.at(slot).state() == State::Ready(sub.model);
            assert!(sub.queue.iter(&self.table.links).all(ready), "the queue of {} holds others", sub.model);
            assert_eq!(sub.queue.iter(&self.table.links).count(), sub.queue.len());
            let stalled = !sub.is_busy() && !sub.queue.is_empty() && !blocked;
            assert_eq!(sub.stalled_since.is_some(), stalled, "{}: a wake-up is lost", sub.model);
        }
    }

    fn audit_counts(&self) {
        let count = |wanted: &dyn Fn(&Request) -> bool| self.table.iter().filter(|(_, r)| wanted(r)).count();
        assert_eq!(self.waiting.len(), count(&|r| r.state() == State::Waiting), "waiting");
        assert_eq!(self.admitted, count(&|r| r.state().owner().is_some()), "admitted");
        assert!(self.admitted <= self.config.max_running);
        let live = self.admitted + self.waiting.len();
        assert!(
            live <= self.config.max_running.saturating_add(self.config.max_waiting),
            "too many live requests"
        );
        for sub in &self.subservers {
            let model = sub.model;
            assert_eq!(sub.queue.len(), count(&|r| r.state() == State::Ready(model)), "ready at {model}");
            assert_eq!(sub.running, count(&|r| r.state() == State::Running(model)), "running at {model}");
            let pending = count(&|r| {
                r.state().owner().is_some_and(|owner| owner != model) && r.visited.contains(model)
            });
            assert_eq!(sub.pending, pending, "pending at {model}");
            let visitors = count(&|r| r.may_visit.contains(model));
            assert_eq!(self.visitors[model.index()], visitors, "visitors of {model}");
        }
        assert_eq!(self.routed, count(&|r| r.may_visit.len() > 1), "requests with a choice");
        let live = count(&|r| r.state() != State::Finished) as u64;
        assert_eq!(self.ledger.live(), live, "every accepted request has one terminal or is live");
    }

    fn audit_batches(&self) {
        let mut named = 0;
        let mut claims = vec![[NO_ROW; MAX_MODELS]; self.pages.total()];
        for sub in &self.subservers {
            let Some(batch) = sub.batch() else { continue };
            assert!(!batch.rows.is_empty() && batch.rows.len() <= sub.limits.max_batch_rows);
            assert!(batch.fed_tokens <= sub.limits.max_step_tokens);
            assert_eq!(
                sub.goes_to,
                self.count_destinations(sub.model),
                "where the batch of {} goes",
                sub.model
            );
            let fed: usize = batch.rows.iter().map(|r| r.len as usize).sum();
            assert_eq!(fed, batch.fed_tokens);
            for (index, row) in batch.rows.iter().enumerate() {
                let Some(request) = self.table.get(row.request) else {
                    panic!("a batch of {} names {}, which is gone", sub.model, row.request)
                };
                let state = request.state();
                assert!(
                    state == State::Running(sub.model) || state == State::Finished,
                    "{state:?} in flight"
                );
                assert!(row.len > 0, "a row feeds nothing");
                let (first, end) = (row.start as usize / PAGE_TOKENS, (row.start + row.len) as usize);
                for &page in &request.pages[first..end.div_ceil(PAGE_TOKENS)] {
                    let claim =
                        std::mem::replace(&mut claims[page.0 as usize][sub.model.index()], index as u32);
                    assert_eq!(claim, NO_ROW, "two rows of {} write page {}", sub.model, page.0);
                }
            }
            named += batch.rows.len();
        }
        for (page, claims) in claims.iter().enumerate() {
            for sub in &self.subservers {
                let claim = self.pages.claim(PageId(page as u32), sub.model);
                assert_eq!(claim, claims[sub.model.index()], "the claim of {} on page {page}", sub.model);
            }
        }
        let in_flight = self.table.iter().filter(|(_, r)| matches!(r.state(), State::Running(_))).count();
        let over = self.table.iter().filter(|(_, r)| r.state() == State::Finished).count();
        assert_eq!(named, in_flight + over, "requests are in flight in no batch, or over and not let go");
    }
}

fn audit_request(slot: usize, request: &Request) {
    let usage = request.account.usage();
    let len = request.tokens.len() as u32;
    assert_eq!(len, request.prompt_len + request.generated(), "slot {slot}: tokens and writers");
    let counted = usage.completion_tokens;
    let stopped = request.state() == State::Finished && counted < request.generated();
    assert!(counted == request.generated() || stopped, "slot {slot}: completion tokens");
    assert_eq!(usage.committed.iter().sum::<u32>(), usage.completion_tokens, "slot {slot}: tokens by writer");
    assert!(request.generated() <= request.max_new_tokens, "slot {slot}: too many tokens");
    assert_eq!(request.account.is_open(), request.state() != State::Finished, "slot {slot}: account");
    if let Some(owner) = request.state().owner() {
        assert!(request.visited.contains(owner), "slot {slot}: owned by a model it has not visited");
        assert!(request.watermarks[owner.index()] < len, "slot {slot}: nothing to feed");
        for (model, &watermark) in request.watermarks.iter().enumerate() {
            assert!(watermark <= len, "slot {slot}: model {model} has seen tokens that are not there");
            let visited = request.visited.0 & ModelSet(1 << model).0 != 0;
            assert!(watermark == 0 || visited, "slot {slot}: model {model} was fed without a visit");
        }
    }
}
