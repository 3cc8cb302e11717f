//! How fast memory streams: plain loads and additions over a buffer far beyond the caches.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::clock::thread_time;

/// Bytes that every core reads.
pub struct ReadBuffer {
    words: Vec<u64>,
}

impl ReadBuffer {
    /// A buffer of `bytes`, written once so that it is really there.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(bytes: usize) -> Result<Self, String> {
        let count = (bytes / 8).max(1);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|e| format!("{bytes} bytes to read cannot be had: {e}"))?;
        words.extend((0..count as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Ok(Self { words })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        8 * self.words.len()
    }

    /// Reads it once with so many threads, a part each, and returns the time of the slowest: processor time, in which waiting
    /// for memory counts and waiting for a core does not, or the wall's where threads have no clock. None when a thread
    /// cannot be had.
    pub fn read(&self, threads: usize) -> Option<Duration> {
        let part = self.words.len().div_ceil(threads.max(1));
        let parts: Vec<&[u64]> = self.words.chunks(part).collect();
        let start = Barrier::new(parts.len());
        let read = |part: &[u64]| {
            start.wait();
            let (from, used) = (Instant::now(), thread_time());
            std::hint::black_box(sum(part));
            let used = used.zip(thread_time()).map(|(from, to)| to.saturating_sub(from));
            used.unwrap_or_else(|| from.elapsed())
        };
        let times = std::thread::scope(|scope| {
            let started = |part| {
                let read = &read;
                scope.spawn(move || read(part))
            };
            let threads: Vec<_> = parts.iter().copied().map(started).collect();
            threads.into_iter().map(|thread| thread.join().ok()).collect::<Option<Vec<_>>>()
        })?;
        times.into_iter().max()
    }
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions.
        return unsafe { sum_avx2(words) };
    }
    sum_lanes(words)
}

/// The same loop with wider loads.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum_lanes(words)
}

#[inline(always)]
fn sum_lanes(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 16];
    let chunks = words.chunks_exact(16);
    let rest: u64 = chunks.remainder().iter().fold(0, |a, b| a.wrapping_add(*b));
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(rest, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_by_any_number_of_threads() {
        let buffer = ReadBuffer::new(1_003 * 8).expect("memory");
        let plain = buffer.words.iter().fold(0u64, |a, b| a.wrapping_add(*b));
        assert_eq!((sum(&buffer.words), sum_lanes(&buffer.words), buffer.bytes()), (plain, plain, 8_024));
        for threads in [0, 1, 2] {
            assert!(buffer.read(threads).is_some(), "{threads}");
        }
    }
}
