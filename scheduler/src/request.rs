//! Requests and the table that holds them.

use crate::config::NewRequest;
use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos, PAGE_TOKENS, PageId, RequestId, RouteId};
use crate::ledger::Account;
use crate::pages::pages_for;
use crate::queue::Links;
use crate::router::{Budget, Threshold, Visit};

/// A request is preempted at most this often.
pub(crate) const MAX_PREEMPTIONS: u32 = 2;

/// A request goes on elsewhere at most this often when its model is lost. Models that are lost and come back in turn would
/// hand it back and forth for ever.
pub(crate) const MAX_DISPLACED: u32 = 4;

/// Where a request is. "Pending at m" is not a state of its own: an admitted request is pending at every model it
/// has visited except its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not admitted, preempted, or handed off as a new request: no pages, no owner.
    Waiting,
    /// In this model's queue.
    Ready(ModelId),
    /// In this model's batch in flight.
    Running(ModelId),
    /// Has its terminal; kept only while a batch in flight names it.
    Finished,
}

impl State {
    /// The model that owns the request.
    pub(crate) fn owner(self) -> Option<ModelId> {
        match self {
            Self::Ready(model) | Self::Running(model) => Some(model),
            Self::Waiting | Self::Finished => None,
        }
    }

    #[inline]
    fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Waiting, Self::Ready(_)) | (Self::Running(_), Self::Ready(_)) => true,
            (Self::Ready(_) | Self::Running(_), Self::Waiting) => true,
            (Self::Ready(from), Self::Running(to)) => from == to,
            // Its model is lost, and it goes on at another.
            (Self::Ready(from), Self::Ready(to)) => from != to,
            (Self::Finished, _) => false,
            (_, Self::Finished) => true,
            _ => false,
        }
    }
}

/// Everything known about one request. Its tokens live once, here, in an array that never grows past the capacity
/// reserved at submit; a model's share of them is a watermark.
#[derive(Debug)]
pub(crate) struct Request {
    state: State,
    /// Prompt, then committed tokens. Only committed tokens are ever in it.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: u32,
    /// Per model: how many leading tokens are in its cache.
    pub(crate) watermarks: [u32; MAX_MODELS],
    /// Models that have owned it.
    pub(crate) visited: ModelSet,
    /// Models that may still own it, the owner included; empty while it is not admitted.
    pub(crate) may_visit: ModelSet,
    /// Its last row was cut by the token limit: it waits for no threshold.
    pub(crate) cut: bool,
    pub(crate) visit: Visit,
    /// When it was handed over, until it is in a batch of the model that it went to.
    pub(crate) handed_at: Option<Nanos>,
    /// Candidates dropped since the last commit.
    pub(crate) drops: u32,
    pub(crate) route: RouteId,
    pub(crate) account: Account,
    /// Who wrote each generated token.
    pub(crate) writers: Vec<u8>,
    /// The block table. Its capacity is that of the whole lifetime from the start, so that growing allocates nothing.
    pub(crate) pages: Vec<PageId>,
    /// Leading pages that were published, or tried.
    pub(crate) published: u32,
    /// Per model: the most leading tokens that were ever in its cache, so that recomputing counts nothing twice.
    pub(crate) high_water: [u32; MAX_MODELS],
    /// How often it was preempted.
    pub(crate) preempted: u32,
    /// How often its model was lost under it.
    pub(crate) displaced: u32,
    /// The model that owned it when it was preempted, or to which it was handed off as a new request: there it goes on.
    pub(crate) resume: Option<ModelId>,
    /// Its number in the order of arrival.
    pub(crate) arrival: u64,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<u64>,
    pub(crate) client: u64,
    /// Where it starts.
    pub(crate) entry: ModelId,
    pub(crate) threshold: Option<Threshold>,
    pub(crate) budget: Option<Budget>,
    pub(crate) seed: u64,
    pub(crate) choice: u32,
    pub(crate) max_new_tokens: u32,
    pub(crate) min_tokens: u32,
    pub(crate) ignore_eos: bool,
    pub(crate) stop_ids: Vec<u32>,
    /// The model it starts at feeds every token of the prompt.
    pub(crate) score_prompt: bool,
}

impl Request {
    /// A waiting request that will start at `entry`, on the terms of its account; reserves its arrays for its whole
    /// lifetime.
    pub(crate) fn new(new: NewRequest, entry: ModelId, account: Account, arrival: u64) -> Self {
        let terms = account.usage().terms;
        let mut tokens = new.prompt;
        let prompt_len = tokens.len() as u32;
        tokens.reserve_exact(new.max_new_tokens as usize);
        let lifetime = tokens.len() + new.max_new_tokens as usize;
        Self {
            state: State::Waiting,
            tokens,
            prompt_len,
            watermarks: [0; MAX_MODELS],
            visited: ModelSet::EMPTY,
            may_visit: ModelSet::EMPTY,
            cut: false,
            visit: Visit::default(),
            handed_at: None,
            drops: 0,
            route: new.route,
            account,
            writers: Vec::with_capacity(new.max_new_tokens as usize),
            pages: Vec::with_capacity(pages_for(lifetime)),
            published: 0,
            high_water: [0; MAX_MODELS],
            preempted: 0,
            displaced: 0,
            resume: None,
            arrival,
            priority: new.priority,
            cache_salt: new.cache_salt,
            client: new.client,
            entry,
            threshold: terms.threshold.map(|(threshold, _)| threshold),
            budget: terms.budget,
            seed: new.seed,
            choice: new.choice,
            max_new_tokens: new.max_new_tokens,
            min_tokens: new.min_tokens,
            ignore_eos: new.ignore_eos,
            stop_ids: new.stop_ids,
            score_prompt: new.score_prompt,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Moves to another state; only the moves of the design are possible.
    #[inline]
    pub(crate) fn enter(&mut self, now: Nanos, next: State) {
        if !self.state.may_become(next) {
            illegal_move(self.state, next);
        }
        self.account.moved(now, self.state, next);
        self.state = next;
    }

    /// Committed tokens of the answer.
    pub(crate) fn generated(&self) -> u32 {
        self.writers.len() as u32
    }

    /// Tokens of prompt and answer at most.
    pub(crate) fn lifetime(&self) -> usize {
        self.prompt_len as usize + self.max_new_tokens as usize
    }

    /// Whether it is admitted before `other` and preempted after it. An order without ties.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        (other.priority, self.arrival) < (self.priority, other.arrival)
    }

    /// Whether it may lose its pages (again): after the second time it is admitted with its whole lifetime leased,
    /// never grows, and is never preempted, so that it surely ends.
    pub(crate) fn is_preemptible(&self) -> bool {
        self.preempted < MAX_PREEMPTIONS
    }

    /// Tokens below this may be published: all that count but the last.
    pub(crate) fn publishable(&self) -> usize {
        (self.prompt_len + self.account.usage().completion_tokens - 1) as usize
    }

    /// Whether there is a whole block to publish, if a model has computed it.
    pub(crate) fn may_publish(&self) -> bool {
        self.publishable() >= (self.published as usize + 1) * PAGE_TOKENS
    }

    /// Whether tokens of its prompt are still to be scored, by the model it starts at: then none of them may be found in
    /// a cache. Nothing is asked about what comes behind the last one.
    pub(crate) fn is_scoring(&self) -> bool {
        self.score_prompt && self.high_water[self.entry.index()] + 1 < self.prompt_len
    }

    /// Appends a token of the answer.
    #[inline]
    pub(crate) fn commit(&mut self, token: u32, writer: ModelId) {
        assert!(self.generated() < self.max_new_tokens, "a token past the request's limit");
        self.tokens.push(token);
        self.writers.push(writer.0);
        self.account.commit(writer);
        self.visit.committed += 1;
        self.drops = 0;
    }

    /// Only the first `generated` tokens of the answer count. The tokens themselves stay: a row in flight may still
    /// be reading them.
    pub(crate) fn count_only(&mut self, generated: usize) {
        if let Some(counted) = self.writers.get(..generated) {
            self.account.recount(counted);
        }
    }

    /// Makes sure the model has at least one token to feed.
    ///
    /// A model's watermark equals the length only when its own last candidate was dropped and so was every
    /// candidate after it: the request comes back with nothing new. It then feeds its last token again, which
    /// writes the same cache entries and gives the same logits (batch invariance).
    pub(crate) fn ensure_suffix(&mut self, model: ModelId) {
        let last = self.tokens.len() as u32 - 1;
        let watermark = &mut self.watermarks[model.index()];
        *watermark = (*watermark).min(last);
    }
}

#[cold]
fn illegal_move(from: State, to: State) -> ! {
    panic!("a request cannot go from {from:?} to {to:?}")
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    tenant: Option<Request>,
}

/// Slots with generations. Grows on submit only, up to a fixed bound.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    pub(crate) links: Links,
    capacity: usize,
}

impl Table {
    pub(crate) fn new(capacity: usize) -> Self {
        let links = Links::with_capacity(capacity.min(4096));
        Self { slots: Vec::new(), vacant: Vec::new(), links, capacity }
    }

    /// No slot index reaches this.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn insert(&mut self, request: Request) -> RequestId {
        let slot = match self.vacant.pop() {
            Some(slot) => slot as usize,
            None => {
                assert!(
                    self.slots.len() < self.capacity,
                    "more requests than waiting, running and in flight"
                );
                self.slots.push(Slot::default());
                self.links.grow();
                // Releasing a slot must never allocate: room for every slot to be vacant.
                self.vacant.reserve(self.slots.len());
                self.slots.len() - 1
            }
        };
        self.slots[slot].tenant = Some(request);
        RequestId::new(slot as u32, self.slots[slot].generation)
    }

    /// Frees the slot and makes its id stale.
    pub(crate) fn remove(&mut self, slot: usize) {
        let entry = &mut self.slots[slot];
        let tenant = entry.tenant.take();
        assert!(tenant.is_some_and(|r| !r.account.is_open()), "slot {slot} leaves without its terminal");
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(slot as u32);
    }

    pub(crate) fn id(&self, slot: usize) -> RequestId {
        RequestId::new(slot as u32, self.slots[slot].generation)
    }

    /// The request of an id that is not stale.
    pub(crate) fn get(&self, id: RequestId) -> Option<&Request> {
        let slot = self.slots.get(id.slot())?;
        if slot.generation == id.generation() { slot.tenant.as_ref() } else { None }
    }

    /// The tenant of a slot the core itself refers to.
    pub(crate) fn at(&self, slot: usize) -> &Request {
        // Queues and batches name only occupied slots: `remove` is called after the last of them let go, and
        // `Core::audit` checks it. A violation is a bug of the core, not an input.
        self.slots[slot].tenant.as_ref().expect("a queue or batch names a vacant slot")
    }

    /// As [`Table::at`], to write.
    pub(crate) fn at_mut(&mut self, slot: usize) -> &mut Request {
        // As in `at`.
        self.slots[slot].tenant.as_mut().expect("a queue or batch names a vacant slot")
    }

    /// As [`Table::at_mut`], with the links of all slots, to move the request from one queue to another.
    pub(crate) fn at_mut_linked(&mut self, slot: usize) -> (&mut Request, &mut Links) {
        // As in `at`.
        let tenant = self.slots[slot].tenant.as_mut().expect("a queue or batch names a vacant slot");
        (tenant, &mut self.links)
    }

    /// Every occupied slot, for checks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| s.tenant.as_ref().map(|r| (i, r)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::FinishReason;
    use crate::ledger::Ledger;
    use crate::router::Terms;

    fn request(ledger: &mut Ledger) -> Request {
        let new = NewRequest { prompt: vec![1, 2, 3], max_new_tokens: 4, ..NewRequest::default() };
        let account = ledger.open(0, 3, Terms::default());
        Request::new(new, ModelId(0), account, ledger.opened)
    }

    #[test]
    fn only_the_legal_moves_are_possible() {
        let (a, b) = (ModelId(0), ModelId(1));
        let states = [
            State::Waiting,
            State::Ready(a),
            State::Ready(b),
            State::Running(a),
            State::Running(b),
            State::Finished,
        ];
        let legal = [
            (State::Waiting, State::Ready(a)),
            (State::Waiting, State::Ready(b)),
            (State::Ready(a), State::Running(a)),
            (State::Ready(b), State::Running(b)),
            (State::Ready(a), State::Ready(b)),
            (State::Ready(b), State::Ready(a)),
            (State::Running(a), State::Ready(a)),
            (State::Running(a), State::Ready(b)),
            (State::Running(b), State::Ready(a)),
            (State::Running(b), State::Ready(b)),
            (State::Ready(a), State::Waiting),
            (State::Ready(b), State::Waiting),
            (State::Running(a), State::Waiting),
            (State::Running(b), State::Waiting),
        ];
        for from in states {
            for to in states {
                let expected =
                    legal.contains(&(from, to)) || (to == State::Finished && from != State::Finished);
                assert_eq!(from.may_become(to), expected, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "cannot go from Waiting to Running")]
    fn an_illegal_move_panics() {
        request(&mut Ledger::default()).enter(0, State::Running(ModelId(0)));
    }

    #[test]
    fn slots_are_reused_under_a_new_generation() {
        let mut ledger = Ledger::default();
        let mut table = Table::new(2);
        let first = table.insert(request(&mut ledger));
        let second = table.insert(request(&mut ledger));
        assert_eq!((first.slot(), second.slot()), (0, 1));
        ledger.close(0, &mut table.at_mut(0).account, &FinishReason::Cancelled);
        table.remove(0);
        assert!(table.get(first).is_none());
        let third = table.insert(request(&mut ledger));
        assert_eq!(third.slot(), 0);
        assert!(third != first && table.get(first).is_none() && table.get(third).is_some());
        assert_eq!(table.iter().count(), 2);
        assert_eq!(table.id(0), third);
    }

    #[test]
    #[should_panic(expected = "without its terminal")]
    fn a_slot_with_an_open_account_cannot_be_freed() {
        let mut table = Table::new(1);
        table.insert(request(&mut Ledger::default()));
        table.remove(0);
    }

    #[test]
    fn committing_never_reallocates_and_a_cut_recounts() {
        let mut request = request(&mut Ledger::default());
        let (tokens, writers) = (request.tokens.as_ptr(), request.writers.as_ptr());
        request.drops = 3;
        for writer in [0, 1, 1, 0] {
            request.commit(7, ModelId(writer));
        }
        assert_eq!((request.tokens.as_ptr(), request.writers.as_ptr()), (tokens, writers));
        assert_eq!((request.generated(), request.drops, request.visit.committed), (4, 0, 4));
        request.count_only(9);
        assert_eq!(request.account.usage().completion_tokens, 4);
        request.count_only(2);
        assert_eq!(request.tokens, [1, 2, 3, 7, 7, 7, 7]);
        let usage = request.account.usage();
        assert_eq!((usage.completion_tokens, usage.committed[0], usage.committed[1]), (2, 1, 1));
    }

    #[test]
    fn there_is_always_a_token_to_feed() {
        let mut request = request(&mut Ledger::default());
        request.watermarks[0] = 3;
        request.ensure_suffix(ModelId(0));
        request.ensure_suffix(ModelId(1));
        assert_eq!(request.watermarks[..2], [2, 0]);
    }
}
