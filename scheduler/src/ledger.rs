//! The account book: one account per request, exactly one terminal.
//!
//! Token counts come from here, never from arithmetic of a model or a batch. Writing to a closed account or
//! dropping an open one is a bug of the core and panics at the call site.

use crate::event::{FinishReason, Usage};
use crate::ids::{ModelId, Nanos};
use crate::request::State;
use crate::router::Terms;
use crate::times::Stopwatch;

/// How many requests ended, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminals {
    /// End-of-sequence.
    pub eos: u64,
    /// Stop id.
    pub stop_id: u64,
    /// Length limit.
    pub length: u64,
    /// Stopped by the caller.
    pub stop: u64,
    /// Cancelled by the caller.
    pub cancelled: u64,
    /// Failed.
    pub failed: u64,
}

impl Terminals {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.eos + self.stop_id + self.length + self.stop + self.cancelled + self.failed
    }
}

/// The book: how many accounts were opened and closed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) opened: u64,
    pub(crate) closed: Terminals,
}

impl Ledger {
    pub(crate) fn open(&mut self, now: Nanos, prompt_tokens: u32, terms: Terms) -> Account {
        self.opened += 1;
        let usage = Usage { prompt_tokens, terms, ..Usage::default() };
        Account { open: true, usage, watch: Stopwatch::new(now) }
    }

    /// Closes an account and returns what the terminal reports.
    pub(crate) fn close(&mut self, now: Nanos, account: &mut Account, reason: &FinishReason) -> Usage {
        let age = account.watch.age(now);
        let usage = account.writable();
        usage.times.finished = Some(age);
        let usage = Usage { spent: account.watch.spent(), ..account.usage };
        account.open = false;
        let count = match reason {
            FinishReason::Eos(_) => &mut self.closed.eos,
            FinishReason::StopId(_) => &mut self.closed.stop_id,
            FinishReason::Length => &mut self.closed.length,
            FinishReason::Stop => &mut self.closed.stop,
            FinishReason::Cancelled => &mut self.closed.cancelled,
            FinishReason::Failed(_) => &mut self.closed.failed,
        };
        *count += 1;
        usage
    }

    pub(crate) fn live(&self) -> u64 {
        self.opened - self.closed.total()
    }
}

/// What one request has used so far.
#[derive(Debug)]
pub(crate) struct Account {
    open: bool,
    usage: Usage,
    watch: Stopwatch,
}

impl Account {
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    fn writable(&mut self) -> &mut Usage {
        assert!(self.open, "the account is closed: a request has exactly one terminal");
        &mut self.usage
    }

    /// The request goes from one state to another.
    #[inline]
    pub(crate) fn moved(&mut self, now: Nanos, from: State, to: State) {
        self.watch.moved(now, from, to);
    }

    /// The request has its pages.
    pub(crate) fn admitted(&mut self, now: Nanos) {
        let age = self.watch.age(now);
        self.writable().times.admitted.get_or_insert(age);
    }

    /// The first token of the answer was committed.
    pub(crate) fn began(&mut self, now: Nanos) {
        let age = self.watch.age(now);
        self.writable().times.first_token.get_or_insert(age);
    }

    /// A row of `fed` tokens ran; `found` tokens of the prompt before it were in the model's cache.
    pub(crate) fn step(&mut self, model: ModelId, fed: u32, samples: bool, found: u32) {
        let usage = self.writable();
        usage.steps[model.index()] += 1;
        usage.fed[model.index()] += fed;
        usage.prefill[model.index()] += fed - u32::from(samples);
        usage.cached[model.index()] += found;
    }

    /// A candidate became a token of the answer.
    pub(crate) fn commit(&mut self, model: ModelId) {
        let usage = self.writable();
        usage.completion_tokens += 1;
        usage.committed[model.index()] += 1;
    }

    /// The router dropped a candidate.
    pub(crate) fn discard(&mut self, model: ModelId) {
        self.writable().discarded[model.index()] += 1;
    }

    /// The request moved to another model.
    pub(crate) fn handoff(&mut self) {
        self.writable().handoffs += 1;
    }

    /// The request lost its pages.
    pub(crate) fn preempt(&mut self) {
        self.writable().preemptions += 1;
    }

    /// Others write in the place of a lost model.
    pub(crate) fn degrade(&mut self) {
        self.writable().degraded = true;
    }

    /// Only the tokens by these writers count.
    pub(crate) fn recount(&mut self, writers: &[u8]) {
        let usage = self.writable();
        usage.completion_tokens = writers.len() as u32;
        usage.committed = Default::default();
        for &writer in writers {
            usage.committed[usize::from(writer)] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::Times;

    #[test]
    fn an_account_counts_per_model_and_recounts() {
        let mut ledger = Ledger::default();
        let mut account = ledger.open(3, 5, Terms::default());
        account.step(ModelId(0), 4, false, 0);
        account.step(ModelId(0), 1, true, 2);
        account.discard(ModelId(0));
        account.handoff();
        account.step(ModelId(1), 5, true, 0);
        for model in [1, 0, 1] {
            account.commit(ModelId(model));
        }
        let usage = account.usage();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.handoffs), (5, 3, 1));
        assert_eq!((usage.steps[0], usage.steps[1], usage.prefill[0], usage.prefill[1]), (2, 1, 4, 4));
        assert_eq!((usage.committed[0], usage.committed[1], usage.discarded[0]), (1, 2, 1));
        assert_eq!((&usage.cached[..2], &usage.fed[..2]), (&[2, 0][..], &[5, 5][..]));
        account.recount(&[1, 0]);
        assert_eq!((account.usage().completion_tokens, account.usage().committed[1]), (2, 1));
        assert_eq!(ledger.live(), 1);
        account.admitted(4);
        account.admitted(5);
        account.began(7);
        let usage = ledger.close(13, &mut account, &FinishReason::Length);
        assert_eq!(usage.discarded[0], 1);
        let times = Times { admitted: Some(1), first_token: Some(4), finished: Some(10) };
        assert_eq!(usage.times, times);
        assert_eq!((ledger.live(), ledger.closed.length, ledger.closed.total()), (0, 1, 1));
    }

    #[test]
    #[should_panic(expected = "exactly one terminal")]
    fn a_second_terminal_panics() {
        let mut ledger = Ledger::default();
        let mut account = ledger.open(0, 1, Terms::default());
        ledger.close(0, &mut account, &FinishReason::Stop);
        ledger.close(0, &mut account, &FinishReason::Length);
    }

    #[test]
    #[should_panic(expected = "closed")]
    fn a_commit_after_the_terminal_panics() {
        let mut ledger = Ledger::default();
        let mut account = ledger.open(0, 1, Terms::default());
        ledger.close(0, &mut account, &FinishReason::Cancelled);
        account.commit(ModelId(0));
    }
}
