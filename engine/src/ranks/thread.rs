//! A rank beside the lead: its thread executes launch records in order and reports parts that have ended.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokenrouter_scheduler::ModelId;

use super::device::RankDevice;
use super::record::{LaunchRecord, RankDone};
use crate::executor::{Notify, POLL_WAIT, wake_on_time};

/// What the lead asks of a rank.
enum Order {
    Launch(Arc<LaunchRecord>),
    Abort(ModelId, Arc<str>),
}

/// What a rank tells the lead; `.0` is the rank's place among all ranks.
pub(super) enum RankEvent {
    /// A part has ended.
    Done(usize, RankDone),
    /// The thread has ended, by a panic unless the lead wanted it.
    Dead(usize),
}

/// The lead's end of a rank's thread.
pub(super) struct RankThread {
    /// Taken only by [`Self::close`].
    orders: Option<flume::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl RankThread {
    /// Starts the thread of rank `place` on device `id`. At most `models` parts are in flight.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(super) fn start(
        (place, id): (usize, usize),
        device: Box<dyn RankDevice>,
        models: usize,
        events: flume::Sender<RankEvent>,
        wake_lead: Notify,
    ) -> std::io::Result<Self> {
        // For every model a launch and an abort, and an abort that its last step did not wait for.
        let (orders, inbox) = flume::bounded(4 * models.max(1));
        let thread = std::thread::Builder::new().name(format!("rank-{id}")).spawn(move || {
            let report = Report { place, events, wake_lead };
            RankLoop { device, inbox, report: &report, in_flight: 0 }.run();
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Hands a record over; false when nobody is there to take it.
    pub(super) fn launch(&self, record: Arc<LaunchRecord>) -> bool {
        self.send(Order::Launch(record))
    }

    /// Another rank of the model has failed.
    pub(super) fn abort(&self, model: ModelId, why: &Arc<str>) {
        // A thread that is gone has nothing to abort.
        self.send(Order::Abort(model, why.clone()));
    }

    fn send(&self, order: Order) -> bool {
        // The queue holds all that can be outstanding, so a full one belongs to a thread that does not turn any more.
        let sent = self.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        self.wake();
        sent
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Asks the thread to end.
    pub(super) fn close(&mut self) {
        self.orders = None;
        self.wake();
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The way back to the lead. Says that the rank is dead when it is dropped.
struct Report {
    place: usize,
    events: flume::Sender<RankEvent>,
    wake_lead: Notify,
}

impl Report {
    fn done(&self, done: RankDone) {
        // The queue has room for all parts in flight; without a lead nobody misses this one.
        let _ = self.events.send(RankEvent::Done(self.place, done));
        (self.wake_lead)();
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.events.send(RankEvent::Dead(self.place));
        (self.wake_lead)();
    }
}

struct RankLoop<'a> {
    device: Box<dyn RankDevice>,
    inbox: flume::Receiver<Order>,
    report: &'a Report,
    in_flight: usize,
}

impl RankLoop<'_> {
    /// Until the lead closes the queue of orders.
    fn run(&mut self) {
        wake_on_time();
        let me = std::thread::current();
        self.device.wake_by(Arc::new(move || me.unpark()));
        loop {
            let Some(worked) = self.take_orders() else { return };
            if !(self.take_ends() || worked) {
                self.park();
            }
        }
    }

    /// Executes what was ordered; `None` when no more orders will come.
    fn take_orders(&mut self) -> Option<bool> {
        let mut worked = false;
        loop {
            match self.inbox.try_recv() {
                Ok(Order::Launch(record)) if record.is_intact() => {
                    self.in_flight += 1;
                    self.device.launch(record);
                }
                Ok(Order::Launch(record)) => {
                    let why = format!("launch record {} does not match its checksum", record.seq);
                    self.report.done(RankDone::failed(record, why));
                }
                Ok(Order::Abort(model, why)) => self.device.abort(model, &why),
                Err(flume::TryRecvError::Empty) => return Some(worked),
                Err(flume::TryRecvError::Disconnected) => return None,
            }
            worked = true;
        }
    }

    fn take_ends(&mut self) -> bool {
        let mut worked = false;
        while let Some(done) = self.device.poll() {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.report.done(done);
            worked = true;
        }
        worked
    }

    fn park(&self) {
        if self.in_flight > 0 && self.device.polled() {
            std::thread::park_timeout(POLL_WAIT);
        } else {
            std::thread::park();
        }
    }
}
