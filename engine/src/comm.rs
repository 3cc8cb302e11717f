//! The exchange among the parts of one model in one process: what NCCL is to GPUs (DESIGN rule 9).
//!
//! Every part deposits its values and waits; when all have, every part reads all of them, in the order of the parts, so
//! that all compute the same bits. Deposits alternate between two places: who has come to the next exchange has read the
//! last one, so one wait per exchange is enough. Nothing is allocated after the start.
//!
//! A part that fails never arrives. So a wait ends also when its step was stopped ([`Stop::step`]) or the model closed
//! ([`Stop::close`]). Arrivals are numbered by step: a new step starts clean whatever the last one has left behind.
//! A step may begin when all parts have ended the one before, which the rank loops see to.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use crate::shard::Shard;

/// How long to look for the others before sleeping. Parts run in step, so they are close.
const SPIN: Duration = Duration::from_micros(20);
/// Bits of a ticket that count the exchanges of a step; the others are the step's number.
const EXCHANGE_BITS: u32 = 16;
/// The most parts of one model on the CPU.
const MAX_SEATS: usize = 4;

/// The step was stopped: another part of it has failed, or the model is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped, because another part of the step has failed")
    }
}

impl std::error::Error for Stopped {}

/// The place of one part at its model's exchange.
pub struct Seat {
    exchange: Arc<Exchange>,
    index: usize,
    /// Number of the last exchange: the step's number, then a count.
    ticket: u64,
}

/// Ends waits from outside.
#[derive(Clone)]
pub(crate) struct Stop(Arc<Exchange>);

struct Exchange {
    /// Two deposits per part. A lock is never contended: it proves that nobody reads what another writes.
    deposits: [Vec<RwLock<Vec<f32>>>; 2],
    /// The last ticket with which each part has deposited.
    arrived: Vec<AtomicU64>,
    /// Steps up to this one are stopped.
    stopped: AtomicU64,
    /// Whether waiting parts look before they sleep: only with a core for each.
    spins: bool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Seat {
    /// The seats of a model of `parts` parts, each of which deposits at most `values` values.
    ///
    /// # Errors
    /// When the memory cannot be had.
    ///
    /// # Panics
    /// With more than four parts: no placement on the CPU has them.
    pub fn table(parts: usize, values: usize) -> Result<Vec<Self>, TryReserveError> {
        assert!((1..=MAX_SEATS).contains(&parts), "{parts} parts exchange on the CPU");
        let deposit = || {
            let mut deposit = Vec::new();
            deposit.try_reserve_exact(values)?;
            deposit.resize(values, 0.0);
            Ok(RwLock::new(deposit))
        };
        let deposits = || (0..parts).map(|_| deposit()).collect::<Result<Vec<_>, TryReserveError>>();
        let exchange = Arc::new(Exchange {
            deposits: [deposits()?, deposits()?],
            arrived: (0..parts).map(|_| AtomicU64::new(0)).collect(),
            stopped: AtomicU64::new(0),
            spins: std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= parts),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        });
        Ok((0..parts).map(|index| Self { exchange: exchange.clone(), index, ticket: 0 }).collect())
    }

    /// Which part sits here.
    pub fn shard(&self) -> Shard {
        Shard { index: self.index, count: self.exchange.arrived.len() }
    }

    /// f32 values of all deposits of a model.
    pub(crate) fn values(parts: usize, values: usize) -> u64 {
        2 * parts as u64 * values as u64
    }

    /// What ends the waits of this exchange.
    pub(crate) fn stop(&self) -> Stop {
        Stop(self.exchange.clone())
    }

    /// A step begins; numbers ascend from 1.
    pub(crate) fn begin(&mut self, step: u64) {
        self.ticket = step << EXCHANGE_BITS;
    }

    /// Deposits what `fill` writes to the front of the buffer, waits for all parts, and shows their buffers to `read`, in
    /// order. What lies behind a part's values is left over from earlier exchanges.
    ///
    /// # Errors
    /// [`Stopped`] when the step was.
    pub(crate) fn exchange(
        &mut self,
        fill: impl FnOnce(&mut [f32]),
        read: impl FnOnce(&[&[f32]]),
    ) -> Result<(), Stopped> {
        self.ticket += 1;
        let exchange = &*self.exchange;
        let deposits = &exchange.deposits[(self.ticket & 1) as usize];
        // A panic under the lock leaves numbers that nobody reads: its step is over.
        fill(&mut deposits[self.index].write().unwrap_or_else(PoisonError::into_inner));
        exchange.arrive(self.index, self.ticket);
        exchange.wait(self.ticket)?;
        let open = |part: usize| deposits.get(part).map(|d| d.read().unwrap_or_else(PoisonError::into_inner));
        let guards: [Option<RwLockReadGuard<'_, Vec<f32>>>; MAX_SEATS] = std::array::from_fn(open);
        let parts: [&[f32]; MAX_SEATS] =
            std::array::from_fn(|part| guards[part].as_deref().map_or(&[][..], Vec::as_slice));
        read(&parts[..deposits.len()]);
        Ok(())
    }
}

impl Stop {
    /// Ends `step` and all before it.
    pub(crate) fn step(&self, step: u64) {
        self.0.stopped.fetch_max(step, Ordering::SeqCst);
        self.0.wake();
    }

    /// Ends every step, now and later.
    pub(crate) fn close(&self) {
        self.step(u64::MAX);
    }
}

impl Exchange {
    fn arrive(&self, part: usize, ticket: u64) {
        // Sequentially consistent with `sleepers`: either we see the sleeper, or it sees the arrival.
        self.arrived[part].store(ticket, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        drop(self.locked());
        self.changed.notify_all();
    }

    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the exchange is over, and how.
    fn outcome(&self, ticket: u64) -> Option<Result<(), Stopped>> {
        let step = ticket >> EXCHANGE_BITS;
        if self.stopped.load(Ordering::SeqCst) >= step {
            return Some(Err(Stopped));
        }
        let mut all = true;
        for arrived in &self.arrived {
            let arrived = arrived.load(Ordering::SeqCst);
            // Somebody has gone on to another step: this one will never be complete.
            if arrived >> EXCHANGE_BITS > step {
                return Some(Err(Stopped));
            }
            all &= arrived >= ticket;
        }
        all.then_some(Ok(()))
    }

    fn wait(&self, ticket: u64) -> Result<(), Stopped> {
        let start = Instant::now();
        while self.spins && start.elapsed() < SPIN {
            for _ in 0..64 {
                if let Some(outcome) = self.outcome(ticket) {
                    return outcome;
                }
                std::hint::spin_loop();
            }
        }
        let mut guard = self.locked();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let outcome = loop {
            if let Some(outcome) = self.outcome(ticket) {
                break outcome;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part adds up what all have deposited, many times, over several steps.
    #[test]
    fn every_part_reads_all_in_order() {
        for parts in [1, 2, 4] {
            let mut seats = Seat::table(parts, 3).unwrap();
            for step in 1..4u64 {
                std::thread::scope(|scope| {
                    for seat in &mut seats {
                        scope.spawn(move || {
                            seat.begin(step);
                            let me = seat.shard().index as f32;
                            for round in 0..500 {
                                let values = [me, round as f32, step as f32];
                                let check = |all: &[&[f32]]| {
                                    assert_eq!(all.len(), parts);
                                    for (part, found) in all.iter().enumerate() {
                                        assert_eq!(*found, [part as f32, round as f32, step as f32]);
                                    }
                                };
                                seat.exchange(|to| to.copy_from_slice(&values), check).unwrap();
                            }
                        });
                    }
                });
            }
        }
    }

    #[test]
    fn a_stopped_step_ends_and_the_next_one_works() {
        let mut seats = Seat::table(2, 1).unwrap();
        let stop = seats[0].stop();
        for step in [1, 3] {
            std::thread::scope(|scope| {
                let [first, _] = &mut seats[..] else { panic!("two seats") };
                let waits = scope.spawn(move || {
                    first.begin(step);
                    first.exchange(|_| {}, |_| panic!("nobody else has come"))
                });
                // Long enough for it to sleep; a stop that comes before the wait is seen as well.
                std::thread::sleep(Duration::from_millis(5));
                stop.step(step);
                assert_eq!(waits.join().unwrap(), Err(Stopped));
            });
            std::thread::scope(|scope| {
                for seat in &mut seats {
                    scope.spawn(move || {
                        seat.begin(step + 1);
                        seat.exchange(|_| {}, |_| {}).unwrap();
                        seat.exchange(|_| {}, |_| {}).unwrap();
                    });
                }
            });
        }
        stop.close();
        seats[1].begin(9);
        assert_eq!(seats[1].exchange(|_| {}, |_| {}), Err(Stopped));
    }

    /// A part that was left behind in a step that the others have given up does not wait for ever.
    #[test]
    fn a_part_left_behind_is_stopped() {
        let mut seats = Seat::table(2, 1).unwrap();
        let [first, second] = &mut seats[..] else { panic!("two seats") };
        std::thread::scope(|scope| {
            let ahead = scope.spawn(|| {
                second.begin(2);
                second.exchange(|_| {}, |_| {})
            });
            first.begin(1);
            while first.exchange.arrived[1].load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(first.exchange(|_| {}, |_| {}), Err(Stopped));
            first.begin(2);
            first.exchange(|_| {}, |_| {}).unwrap();
            ahead.join().unwrap().unwrap();
        });
    }
}
