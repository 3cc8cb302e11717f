//! Bytes on their way to one client, with a limit and a memory of when the client last took some.

use std::time::{Duration, Instant};

/// A bounded output buffer.
///
/// The limit is soft: one piece may pass it, but a full outbox is offered no further stream events. They wait
/// as token ids, at most `max_tokens` per choice, and the client is cancelled when the outbox stays full for the
/// write timeout, or when it takes no byte for that long.
#[derive(Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    limit: usize,
    /// Since when bytes wait without any progress.
    stalled_since: Option<Instant>,
    full_since: Option<Instant>,
}

/// Capacity kept when the outbox runs empty.
const KEEP: usize = 64 << 10;

impl Outbox {
    /// An empty outbox that counts as full from `limit` bytes on.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), sent: 0, limit, stalled_since: None, full_since: None }
    }

    /// Lets `write` append bytes.
    pub fn append(&mut self, now: Instant, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        if !self.is_empty() && self.stalled_since.is_none() {
            self.stalled_since = Some(now);
        }
        if self.len() >= self.limit && self.full_since.is_none() {
            self.full_since = Some(now);
        }
    }

    /// What is to be written to the socket.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Bytes not yet taken.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// True when everything was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True from the limit on until it has drained to half of it.
    pub fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// The socket took `count` bytes.
    pub fn advance(&mut self, now: Instant, count: usize) {
        self.sent += count;
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
            self.bytes.shrink_to(KEEP);
            self.stalled_since = None;
        } else {
            self.stalled_since = Some(now);
            if self.sent >= self.bytes.len() / 2 {
                self.bytes.drain(..self.sent);
                self.sent = 0;
            }
        }
        if self.len() <= self.limit / 2 {
            self.full_since = None;
        }
    }

    /// When the client counts as stuck; `streaming`: more is to come, so a full outbox counts too.
    pub fn deadline(&self, timeout: Duration, streaming: bool) -> Option<Instant> {
        let full = if streaming { self.full_since } else { None };
        [self.stalled_since, full].into_iter().flatten().min().map(|since| since + timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_moves_the_deadline_but_not_fullness() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut out = Outbox::new(10);
        assert_eq!(out.deadline(second, true), None);
        out.append(start, |bytes| bytes.extend_from_slice(&[7; 12]));
        assert!(out.is_full());
        out.advance(start + second, 1);
        assert_eq!(out.deadline(second, false), Some(start + 2 * second));
        assert_eq!(out.deadline(second, true), Some(start + second));
        out.advance(start + second, 5);
        assert!(out.is_full());
        out.advance(start + second, 1);
        assert!(!out.is_full());
        assert_eq!(out.pending(), [7; 5]);
        out.advance(start + second, 5);
        assert_eq!((out.len(), out.deadline(second, true)), (0, None));
    }
}
