//! The full invariant check.

use super::Core;
use crate::ids::{ModelSet, PAGE_TOKENS};
use crate::pages::pages_for;
use crate::request::{Request, State};

impl Core {
    /// Recomputes everything the counters claim from the requests themselves and panics on the first difference.
    /// For tests and simulation: its cost grows with the number of requests and pages.
    pub fn audit(&self) {
        self.pages.audit();
        self.audit_requests();
        self.audit_queues();
        self.audit_counts();
        self.audit_batches();
    }

    fn audit_requests(&self) {
        let mut owners = vec![None; self.pages.total()];
        for (slot, request) in self.table.iter() {
            audit_request(slot, request);
            let over = request.state() == State::Finished;
            for &page in &request.pages {
                let right = if over { self.pages.is_deferred(page) } else { self.pages.is_leased(page) };
                assert!(right, "page {} of slot {slot} ({:?}) is not held", page.0, request.state());
                let other = owners[page.0 as usize].replace(slot);
                assert!(other.is_none(), "page {} belongs to slots {slot} and {other:?}", page.0);
            }
            let admitted = request.state().owner();
            assert_eq!(request.may_visit.is_empty(), admitted.is_none(), "slot {slot}: visits");
            assert!(admitted.is_none_or(|owner| request.may_visit.contains(owner)), "slot {slot}: owner");
            let is_cut = request.cut && matches!(request.state(), State::Running(_) | State::Waiting);
            assert!(!is_cut, "slot {slot}: a cut row is ready again at once");
            if let State::Waiting = request.state() {
                assert!(
                    request.pages.is_empty() && request.visited.is_empty(),
                    "slot {slot} waits with pages"
                );
            } else {
                assert_eq!(request.pages.len(), pages_for(request.lifetime()), "slot {slot}: pages");
                assert!(request.tokens.len() <= request.pages.len() * PAGE_TOKENS);
            }
        }
        let counts = self.pages.counts();
        let held = owners.iter().flatten().count();
        assert_eq!(held, counts.leased + counts.deferred, "pages are held by nobody");
    }

    fn audit_queues(&self) {
        let in_waiting = |slot| self.table.at(slot).state() == State::Waiting;
        assert!(self.waiting.iter(&self.table.links).all(in_waiting), "the waiting queue holds others");
        assert_eq!(self.waiting.iter(&self.table.links).count(), self.waiting.len());
        for sub in &self.subservers {
            let ready = |slot| self.table.at(slot).state() == State::Ready(sub.model);
            assert!(sub.queue.iter(&self.table.links).all(ready), "the queue of {} holds others", sub.model);
            assert_eq!(sub.queue.iter(&self.table.links).count(), sub.queue.len());
            let stalled = !sub.is_busy() && !sub.queue.is_empty();
            assert_eq!(sub.stalled_since.is_some(), stalled, "{}: a wake-up is lost", sub.model);
        }
    }

    fn audit_counts(&self) {
        let count = |wanted: &dyn Fn(&Request) -> bool| self.table.iter().filter(|(_, r)| wanted(r)).count();
        assert_eq!(self.waiting.len(), count(&|r| r.state() == State::Waiting), "waiting");
        assert_eq!(self.admitted, count(&|r| r.state().owner().is_some()), "admitted");
        assert!(self.admitted <= self.config.max_running && self.waiting.len() <= self.config.max_waiting);
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
        let live = count(&|r| r.state() != State::Finished) as u64;
        assert_eq!(self.ledger.live(), live, "every accepted request has one terminal or is live");
    }

    fn audit_batches(&self) {
        let mut named = 0;
        for sub in &self.subservers {
            let Some(batch) = sub.batch() else { continue };
            assert!(!batch.rows.is_empty() && batch.rows.len() <= sub.limits.max_batch_rows);
            assert!(batch.fed_tokens <= sub.limits.max_step_tokens);
            let fed: usize = batch.rows.iter().map(|r| r.len as usize).sum();
            assert_eq!(fed, batch.fed_tokens);
            for row in &batch.rows {
                let Some(request) = self.table.get(row.request) else {
                    panic!("a batch of {} names {}, which is gone", sub.model, row.request)
                };
                let state = request.state();
                assert!(
                    state == State::Running(sub.model) || state == State::Finished,
                    "{state:?} in flight"
                );
                assert!(row.len > 0, "a row feeds nothing");
            }
            named += batch.rows.len();
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
