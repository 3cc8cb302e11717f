//! Effects between two calls of [`crate::Core::drain_effects`]. A step commits a token per row while a request ends once,
//! with an account of half a kilobyte: so accounts lie apart, and tokens lie close together.

use crate::event::{Effect, FinishReason, Usage};
use crate::ids::{ModelId, RequestId};

#[derive(Clone, Copy, Debug)]
enum Item {
    Token {
        request: RequestId,
        client: u64,
        token: u32,
        model: ModelId,
    },
    /// Its reason and account are the next of the ends.
    Terminal {
        request: RequestId,
        client: u64,
    },
}

/// Effects in order.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    items: Vec<Item>,
    ends: Vec<(FinishReason, Usage)>,
}

impl Effects {
    pub(crate) fn with_capacity(effects: usize) -> Self {
        Self { items: Vec::with_capacity(effects), ends: Vec::with_capacity(effects) }
    }

    #[inline]
    pub(crate) fn token(&mut self, request: RequestId, client: u64, token: u32, model: ModelId) {
        self.items.push(Item::Token { request, client, token, model });
    }

    pub(crate) fn terminal(&mut self, request: RequestId, client: u64, reason: FinishReason, usage: Usage) {
        self.items.push(Item::Terminal { request, client });
        self.ends.push((reason, usage));
    }

    /// Takes all; the room is kept.
    pub(crate) fn drain(&mut self) -> DrainEffects<'_> {
        DrainEffects { items: self.items.drain(..), ends: self.ends.drain(..) }
    }

    /// Says the last one again.
    #[cfg(test)]
    pub(crate) fn repeat_last(&mut self) {
        self.items.extend(self.items.last().copied());
        self.ends.extend(self.ends.last().cloned());
    }
}

/// Effects on their way out, see [`crate::Core::drain_effects`].
#[derive(Debug)]
pub struct DrainEffects<'a> {
    items: std::vec::Drain<'a, Item>,
    ends: std::vec::Drain<'a, (FinishReason, Usage)>,
}

impl Iterator for DrainEffects<'_> {
    type Item = Effect;

    #[inline]
    fn next(&mut self) -> Option<Effect> {
        Some(match self.items.next()? {
            Item::Token { request, client, token, model } => Effect::Token { request, client, token, model },
            Item::Terminal { request, client } => {
                let (reason, usage) = self.ends.next()?;
                Effect::Terminal { request, client, reason, usage }
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_come_out_as_they_went_in() {
        let (a, b) = (RequestId::new(0, 1), RequestId::new(1, 0));
        let usage = Usage { prompt_tokens: 9, ..Usage::default() };
        let mut effects = Effects::with_capacity(1);
        for _ in 0..2 {
            effects.token(a, 7, 5, ModelId(1));
            effects.terminal(b, 8, FinishReason::Length, usage);
            effects.token(a, 7, 6, ModelId(0));
            effects.terminal(a, 7, FinishReason::Stop, Usage::default());
            let expected = [
                Effect::Token { request: a, client: 7, token: 5, model: ModelId(1) },
                Effect::Terminal { request: b, client: 8, reason: FinishReason::Length, usage },
                Effect::Token { request: a, client: 7, token: 6, model: ModelId(0) },
                Effect::Terminal {
                    request: a,
                    client: 7,
                    reason: FinishReason::Stop,
                    usage: Usage::default(),
                },
            ];
            assert_eq!(effects.drain().collect::<Vec<_>>(), expected);
            effects.terminal(a, 7, FinishReason::Stop, usage);
            assert_eq!(effects.drain().size_hint(), (1, Some(1)));
            assert_eq!(effects.drain().count(), 0, "a drain that is dropped takes all");
        }
    }
}
