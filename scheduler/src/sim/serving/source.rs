//! Where requests come from: conversations, each a chain of requests whose prompts grow.
//!
//! Everything is drawn from (seed, conversation, turn), so that two runs under different policies see the same
//! requests (common random numbers), whatever their order.

use super::spec::{Arrivals, ClientFaults, Workload, keyed};
use crate::config::NewRequest;
use crate::ids::{Nanos, RouteId};
use crate::router::mix;
use crate::sim::random::Random;

/// Ends an answer; no other token has this id.
pub(super) const EOS: u32 = 0;
/// Token ids are below this.
const VOCAB: u64 = 50_000;

/// Purposes of draws.
const CONVERSATION: u64 = 1;
const TURN: u64 = 2;
const SHARED: u64 = 3;

/// What the client will do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// Nothing.
    Stay,
    /// Go away after so many tokens.
    Vanish(u32),
    /// Stop after so many tokens, and take some back.
    Stop(u32, u32),
}

/// The next request of a client.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) request: NewRequest,
    /// Tokens of the answer.
    pub(super) answer: u32,
    pub(super) fate: Fate,
}

/// One conversation after another.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    index: u64,
    /// Conversations so far.
    count: u64,
    turn: u32,
    turns: u32,
    /// What was said so far.
    text: Vec<u32>,
}

/// Draws the requests of all clients.
#[derive(Debug)]
pub(super) struct Source<'a> {
    workload: &'a Workload,
    faults: ClientFaults,
    seed: u64,
    /// The longest request.
    room: usize,
    shared: Vec<u32>,
}

impl<'a> Source<'a> {
    pub(super) fn new(workload: &'a Workload, faults: ClientFaults, seed: u64, room: usize) -> Self {
        let traced = match &workload.arrivals {
            Arrivals::Trace(trace) => trace.iter().map(|t| t.shared).max(),
            _ => None,
        };
        let mut random = keyed(seed, SHARED, 0);
        let shared = traced.unwrap_or(workload.shared_prefix.min(room as u32));
        let shared = (0..shared).map(|_| token(&mut random)).collect();
        Self { workload, faults, seed, room, shared }
    }

    /// A client at the start of its first conversation.
    pub(super) fn client(&self, index: usize) -> Client {
        let mut client = Client { index: index as u64, ..Client::default() };
        self.start(&mut client);
        client
    }

    fn start(&self, client: &mut Client) {
        client.count += 1;
        client.turn = 0;
        client.turns = self.workload.turns.draw(&mut keyed(self.seed, CONVERSATION, client.key())).max(1);
        client.text.clear();
    }

    /// Whether what is said must be kept for later prompts.
    pub(super) fn remembers(&self, client: &Client) -> bool {
        client.turn + 1 < client.turns
    }

    /// The request of the client's current turn.
    pub(super) fn order(&self, client: &Client) -> Order {
        if let Arrivals::Trace(trace) = &self.workload.arrivals {
            return self.traced(client, trace, client.turn as usize);
        }
        let mut random = self.turn(client);
        let mut answer = self.workload.answer.draw(&mut random).max(1);
        if let (Arrivals::Closed(clients), true) = (&self.workload.arrivals, self.workload.staggered)
            && (client.count, client.turn) == (1, 0)
        {
            answer = (u64::from(answer) * (client.index + 1) / (*clients).max(1) as u64).max(1) as u32;
        }
        let mut prompt = client.text.clone();
        let new = if client.turn == 0 {
            prompt.extend(&self.shared);
            self.workload.prompt.draw(&mut random)
        } else {
            self.workload.follow_up.draw(&mut random)
        };
        let most = self.room.saturating_sub(1);
        let new = (new as usize).max(1).min(most.saturating_sub(prompt.len()).max(1));
        let len = prompt.len() + new;
        prompt.resize_with(len, || token(&mut random));
        prompt.truncate(most.max(1));
        self.finish(random, prompt, answer, 0)
    }

    /// Request `index` of a trace, which goes on with what the client's session has said.
    fn traced(&self, client: &Client, trace: &[super::spec::TraceRequest], index: usize) -> Order {
        let recorded = &trace[index];
        let mut random = keyed(self.seed, TURN, index as u64);
        let mut prompt = client.text.clone();
        if prompt.is_empty() {
            prompt.extend(&self.shared[..recorded.shared as usize]);
        }
        prompt.truncate(recorded.prompt.max(1) as usize);
        prompt.resize_with(recorded.prompt.max(1) as usize, || token(&mut random));
        let mut order = self.finish(random, prompt, recorded.answer.max(1), index as u32);
        // As recorded, even where it cannot fit: then it is refused.
        order.answer = recorded.answer.max(1);
        order.request.max_new_tokens = order.request.max_new_tokens.max(order.answer);
        order
    }

    fn finish(&self, mut random: Random, prompt: Vec<u32>, answer: u32, choice: u32) -> Order {
        let left = (self.room.saturating_sub(prompt.len())).max(1) as u32;
        let answer = answer.min(left);
        let seed = random.bits();
        let (who, when) = (random.unit(), random.range(1, u64::from(answer)) as u32);
        let back = random.range(0, 3) as u32;
        let fate = if who <= self.faults.vanish {
            Fate::Vanish(when)
        } else if who <= self.faults.vanish + self.faults.stop {
            Fate::Stop(when, back)
        } else {
            Fate::Stay
        };
        let limit = self.workload.max_new_tokens.unwrap_or(0).max(answer).min(left);
        let request = NewRequest {
            prompt,
            max_new_tokens: limit,
            route: RouteId(self.route(random.unit())),
            seed,
            choice,
            ..NewRequest::default()
        };
        Order { request, answer, fate }
    }

    fn route(&self, at: f64) -> u16 {
        let mut left = at * self.workload.shares.iter().sum::<f64>();
        for (i, share) in self.workload.shares.iter().enumerate() {
            left -= share;
            if left <= 0.0 {
                return i as u16;
            }
        }
        0
    }

    fn turn(&self, client: &Client) -> Random {
        keyed(self.seed, TURN, mix(client.key()) ^ u64::from(client.turn))
    }

    /// The request of the client's turn is over, with `said` (prompt and answer) if it ended well. True when the
    /// client's conversation goes on; otherwise it stands at the start of its next one.
    pub(super) fn advance(&self, client: &mut Client, said: Option<Vec<u32>>) -> bool {
        client.turn += 1;
        match said.filter(|said| client.turn < client.turns && said.len() + 1 < self.room) {
            Some(said) => {
                client.text = said;
                true
            }
            None => {
                self.start(client);
                false
            }
        }
    }
}

impl Client {
    /// A client that asks request `index` of a trace after what its session has said.
    pub(super) fn traced(index: usize, text: Vec<u32>) -> Self {
        Self { turn: index as u32, text, ..Self::default() }
    }

    /// The request of a trace that it asks.
    pub(super) fn traced_index(&self) -> usize {
        self.turn as usize
    }

    /// Of the conversation.
    fn key(&self) -> u64 {
        mix(self.index) ^ self.count
    }
}

/// When the `n`-th conversation of an open workload starts after the one before.
pub(super) fn gap(arrivals: &Arrivals, random: &mut Random, n: u64) -> Option<Nanos> {
    match *arrivals {
        Arrivals::Poisson(rate) => Some((-random.unit().ln() / rate * 1e9) as Nanos),
        Arrivals::Bursts(size, every) => Some(if n.is_multiple_of(size.max(1) as u64) { every } else { 0 }),
        Arrivals::Closed(_) | Arrivals::Trace(_) => None,
    }
}

fn token(random: &mut Random) -> u32 {
    random.range(1, VOCAB - 1) as u32
}

/// What any model says at a position: a token that depends on nothing but the request, and the end where it is due.
pub(super) fn answer_token(hash: u64, position: usize, end: usize) -> u32 {
    if position + 1 >= end { EOS } else { 1 + (hash % (VOCAB - 1)) as u32 }
}
