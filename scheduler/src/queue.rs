//! Queues of requests, threaded through one array of links.
//!
//! A request is in at most one queue (Waiting, or Ready at one model), so one pair of links per slot serves them
//! all: push, pop and removal from the middle are O(1), and a queue never allocates or overflows.

/// "No slot".
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// The links of all slots.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    pub(crate) fn with_capacity(slots: usize) -> Self {
        Self(Vec::with_capacity(slots))
    }

    /// The slot behind this one in its queue.
    pub(crate) fn after(&self, slot: usize) -> Option<usize> {
        let next = self.0[slot].next;
        (next != NONE).then_some(next as usize)
    }

    /// A link for one more slot.
    pub(crate) fn grow(&mut self) {
        self.0.push(Link { previous: NONE, next: NONE });
    }
}

/// A first-in, first-out list of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn front(&self) -> Option<usize> {
        (self.head != NONE).then_some(self.head as usize)
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, slot: usize) {
        links.0[slot] = Link { previous: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = slot as u32,
            tail => links.0[tail as usize].next = slot as u32,
        }
        self.tail = slot as u32;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, links: &mut Links, slot: usize) {
        links.0[slot] = Link { previous: NONE, next: self.head };
        match self.head {
            NONE => self.tail = slot as u32,
            head => links.0[head as usize].previous = slot as u32,
        }
        self.head = slot as u32;
        self.len += 1;
    }

    /// Puts a slot behind the last one that `stays_before` it. Constant time when that is the last of all.
    pub(crate) fn insert(&mut self, links: &mut Links, slot: usize, stays_before: impl Fn(usize) -> bool) {
        let mut before = self.tail;
        while before != NONE && !stays_before(before as usize) {
            before = links.0[before as usize].previous;
        }
        if before == NONE {
            return self.push_front(links, slot);
        }
        let next = std::mem::replace(&mut links.0[before as usize].next, slot as u32);
        links.0[slot] = Link { previous: before, next };
        match next {
            NONE => self.tail = slot as u32,
            n => links.0[n as usize].previous = slot as u32,
        }
        self.len += 1;
    }

    /// Takes a slot out; it must be in this queue.
    #[inline]
    pub(crate) fn remove(&mut self, links: &mut Links, slot: usize) {
        let Link { previous, next } = links.0[slot];
        match previous {
            NONE => {
                assert!(self.head == slot as u32, "slot {slot} is not in this queue");
                self.head = next;
            }
            p => links.0[p as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            n => links.0[n as usize].previous = previous,
        }
        links.0[slot] = Link { previous: NONE, next: NONE };
        self.len -= 1;
    }

    /// The slots in order, for checks. Stops after `len` steps, whatever the links say.
    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = usize> + 'a {
        let mut at = self.head;
        (0..self.len).map_while(move |_| {
            let slot = at;
            at = links.0.get(slot as usize)?.next;
            Some(slot as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn links(n: usize) -> Links {
        let mut links = Links::with_capacity(n);
        (0..n).for_each(|_| links.grow());
        links
    }

    /// Random operations on two queues over one array of links, against plain deques.
    #[test]
    fn queues_behave_like_deques() {
        let mut links = links(16);
        let mut queues = [Queue::default(), Queue::default()];
        let mut models = [VecDeque::new(), VecDeque::new()];
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..20_000 {
            let (slot, which) = (random(16), random(2));
            match models.iter().position(|m| m.contains(&slot)) {
                Some(q) if random(2) == 0 => {
                    queues[q].remove(&mut links, slot);
                    models[q].retain(|&s| s != slot);
                }
                Some(q) => {
                    let after = models[q].iter().skip_while(|&&s| s != slot).nth(1);
                    assert_eq!(links.after(slot), after.copied());
                }
                None if random(3) == 0 => {
                    queues[which].insert(&mut links, slot, |other| other % 4 <= slot % 4);
                    let at = models[which].iter().rposition(|other| other % 4 <= slot % 4);
                    models[which].insert(at.map_or(0, |i| i + 1), slot);
                }
                None if random(2) == 0 => {
                    queues[which].push_back(&mut links, slot);
                    models[which].push_back(slot);
                }
                None => {
                    queues[which].push_front(&mut links, slot);
                    models[which].push_front(slot);
                }
            }
            for (queue, model) in queues.iter().zip(&models) {
                assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                assert_eq!(queue.front(), model.front().copied());
                assert!(queue.iter(&links).eq(model.iter().copied()));
            }
        }
    }

    #[test]
    #[should_panic(expected = "not in this queue")]
    fn removing_a_stranger_panics() {
        let mut links = links(2);
        let mut queue = Queue::default();
        queue.push_back(&mut links, 0);
        queue.remove(&mut links, 1);
    }
}
