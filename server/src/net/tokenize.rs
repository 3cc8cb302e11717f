//! Threads that parse and tokenize request bodies, so that a large one never holds up the network thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use super::frontend::{ApiCall, CallContext, Frontend, Prepared, Refusal};
use super::line;

/// One body to prepare.
pub(crate) struct Job {
    /// Comes back with the result.
    pub(crate) exchange: u64,
    /// Where it came from.
    pub(crate) call: ApiCall,
    /// The bytes.
    pub(crate) body: Vec<u8>,
    /// What is known beside it.
    pub(crate) context: CallContext,
    /// Set when the client left; the job is then skipped.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// A finished job.
pub(crate) struct Done {
    /// Whose job it was.
    pub(crate) exchange: u64,
    /// Length of the body, which is free again.
    pub(crate) body_len: usize,
    /// The id of a long line; those of short ones are known before.
    pub(crate) line_id: Option<Value>,
    /// What came out.
    pub(crate) result: Result<Output, Refusal>,
}

/// What a job made.
pub(crate) enum Output {
    /// Requests for the engine.
    Prepared(Prepared),
    /// The body of the answer.
    Body(Vec<u8>),
}

/// The worker threads. They end when this is dropped.
pub(crate) struct Workers {
    jobs: flume::Sender<Job>,
    done: flume::Receiver<Done>,
}

impl Workers {
    /// Starts `threads` workers behind a queue of `queue` jobs. `wake` is called after each result.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(
        threads: usize,
        queue: usize,
        frontend: &Arc<dyn Frontend>,
        wake: &Arc<dyn Fn() + Send + Sync>,
    ) -> io::Result<Self> {
        let (jobs, inbox) = flume::bounded::<Job>(queue.max(1));
        let (outbox, done) = flume::bounded(queue.max(1) + threads.max(1));
        for number in 0..threads.max(1) {
            let (inbox, outbox, frontend, wake) =
                (inbox.clone(), outbox.clone(), frontend.clone(), wake.clone());
            thread::Builder::new().name(format!("tokenizer-{number}")).spawn(move || {
                while let Ok(job) = inbox.recv() {
                    if job.cancelled.load(Ordering::Relaxed) {
                        let result = Err(Refusal::new(500, None, "cancelled"));
                        let (exchange, body_len) = (job.exchange, job.body.len());
                        if outbox.send(Done { exchange, body_len, line_id: None, result }).is_err() {
                            break;
                        }
                    } else if outbox.send(run(&*frontend, &job)).is_err() {
                        break;
                    }
                    // The body is large at times; free it before the next wait.
                    drop(job);
                    wake();
                }
            })?;
        }
        Ok(Self { jobs, done })
    }

    /// No threads: for a server that takes no requests.
    pub(crate) fn none() -> Self {
        Self { jobs: flume::bounded(0).0, done: flume::bounded(0).1 }
    }

    /// Queues a job. `false` when the queue is full.
    pub(crate) fn try_submit(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// The next finished job.
    pub(crate) fn try_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

fn run(frontend: &dyn Frontend, job: &Job) -> Done {
    let is_long_line = job.call == ApiCall::Line && job.body.len() > line::SHORT_LINE;
    let (line_id, result) = match is_long_line.then(|| line::probe(&job.body)) {
        None => (None, prepare(frontend, job)),
        Some(Ok(probe)) => (Some(probe.id), prepare(frontend, job)),
        Some(Err(problem)) => (None, Err(Refusal::new(400, None, problem))),
    };
    Done { exchange: job.exchange, body_len: job.body.len(), line_id, result }
}

/// A panic in a tokenizer or template hurts one request, not the thread that serves the next.
fn prepare(frontend: &dyn Frontend, job: &Job) -> Result<Output, Refusal> {
    let work = || match job.call.generates() {
        true => frontend.prepare(job.call, &job.body, &job.context).map(Output::Prepared),
        false => frontend.answer(job.call, &job.body).map(Output::Body),
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!(id = job.context.request_id, "preparing a request panicked");
        let text = "the request could not be prepared; this is a fault of the server";
        Err(Refusal::new(500, None, text).hopeless())
    })
}
