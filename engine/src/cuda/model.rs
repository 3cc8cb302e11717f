//! One shard of one model on one rank.

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::bf16;
use tokenrouter_kernels::cuda::{
    Buffer, Communicator, CudaError, CudaStream, Event, Pinned, Ptr, stream_wait,
};
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{RowFault, RowResult, TOP};

use super::arena::Arena;
use super::attention::AttnLimits;
use super::block::{Plan, ResultMap};
use super::context::RankContext;
use super::forward::{Cache, Forward};
use super::graphs::{Graphs, bucket_plan, bucket_wave, graph_key};
use super::results::Results;
use super::shape::Shape;
use super::stage::StepBlock;
use super::start::padding_step;
use super::weights::Weights;
use crate::heads::cuda::CudaHeads;
use crate::logprobs::MAX_LOGPROBS;
use crate::model::{ModelOptions, OpenModel};
use crate::ranks::{GraphKey, LaunchRecord, Room};
use crate::scores::Scores;
use crate::shard::Shard;
use crate::step::Step;

/// How long the ranks of a model wait for each other at the start.
const RANKS_DEADLINE: Duration = Duration::from_secs(120);

/// What [`CudaModel::load`] loads.
pub(crate) struct ModelSpec<'a> {
    /// The checked checkpoint.
    pub(crate) open: &'a OpenModel,
    /// Step limits; threads and the cache's type are of no interest here.
    pub(crate) options: &'a ModelOptions,
    /// Which part of it.
    pub(crate) shard: Shard,
    /// Token counts of the graphs; empty for none. Those above the largest step are left out.
    pub(crate) buckets: &'a [u32],
    /// Whether its kernels go before those of other models on the device.
    pub(crate) high_priority: bool,
}

/// Device memory of a loaded shard without its cache and graphs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelBytes {
    /// Packed weights and position tables.
    pub(crate) weights: u64,
    /// Router heads: weights and buffers.
    pub(crate) heads: u64,
    /// All buffers of a step.
    pub(crate) activations: u64,
}

/// A step that was launched and not read.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    results: ResultMap,
}

/// A loaded shard. Fields are dropped in the order in which they are declared: graphs, then the
/// communicator, then memory, then the context.
pub(crate) struct CudaModel {
    graphs: Graphs,
    comm: Option<Communicator>,
    heads: Option<CudaHeads>,
    heads_host: Pinned<f32>,
    event: Event,
    cache: Option<Buffer<bf16>>,
    pages: usize,
    block: StepBlock,
    results: Buffer<u32>,
    results_host: Pinned<u32>,
    /// Scores of prompts, a piece of the layout of `score_map` after the other.
    scores_host: Pinned<u32>,
    score_map: ResultMap,
    arena: Arena,
    weights: Weights,
    attention: AttnLimits,
    shape: Shape,
    bytes: ModelBytes,
    ln_vocab: f32,
    top: usize,
    in_flight: Option<InFlight>,
    /// The results of the last step that has finished.
    finished: ResultMap,
    /// A launch failed half-way: what it had queued must be over before the pinned block is written again.
    stale: bool,
    aborted: bool,
    stream: Arc<CudaStream>,
    context: Arc<RankContext>,
}

impl CudaModel {
    /// Uploads and packs the shard's weights (f32 and f16 converted to bf16), and allocates every buffer but the cache.
    ///
    /// # Errors
    /// [`CudaError::Shape`] for a model or a cut that the kernels do not run, or what the driver says.
    pub(crate) fn load(
        context: Arc<RankContext>,
        spec: &ModelSpec<'_>,
        comm: Option<Communicator>,
    ) -> Result<Self, CudaError> {
        Self::load_within(context, spec, comm, None)
    }

    /// The same with a bound for the partial results of attention, in bytes.
    pub(super) fn load_within(
        context: Arc<RankContext>,
        spec: &ModelSpec<'_>,
        comm: Option<Communicator>,
        partials: Option<u64>,
    ) -> Result<Self, CudaError> {
        let config = spec.open.config();
        let place = comm.as_ref().map_or((0, 1), |c| (c.rank(), c.ranks()));
        if place != (spec.shard.index, spec.shard.count) {
            let what = format!(
                "part {} of {} of a model with a communicator of rank {} of {}",
                spec.shard.index, spec.shard.count, place.0, place.1
            );
            return Err(CudaError::Shape(what));
        }
        let shape = Shape::new(config, spec.options, spec.shard)?;
        let stream = context.device.stream_with_priority(spec.high_priority)?;
        let weights = Weights::load(&context, &stream, config, spec.open.weights(), &shape)?;
        let attention = AttnLimits::new(&shape, partials);
        let (arena, arena_bytes) = Arena::new(&context, &stream, &shape, &attention)?;
        // Only the shard that samples has heads: they read candidates and whole rows of logits.
        let heads = match spec.shard.index {
            0 => CudaHeads::new(&context.device, &stream, spec.open, shape.max_rows)?,
            _ => None,
        };
        let least_top = TOP.max(heads.as_ref().map_or(0, |h| h.top() as usize));
        let block = StepBlock::new(&context, &stream, &shape, least_top as u32)?;
        let top = least_top.max(usize::from(MAX_LOGPROBS));
        let results = ResultMap::new(shape.max_rows, top);
        let pieces = if spec.shard.samples() { shape.max_tokens.div_ceil(shape.max_rows) } else { 0 };
        let bytes = ModelBytes {
            weights: weights.bytes,
            heads: heads.as_ref().map_or(0, CudaHeads::bytes),
            activations: arena_bytes + block.bytes() + 4 * results.len as u64,
        };
        Ok(Self {
            graphs: Graphs::new(spec.buckets, shape.max_tokens),
            comm,
            heads_host: Pinned::new(&context.device, heads.as_ref().map_or(0, CudaHeads::raw_len), false)?,
            heads,
            event: Event::new(&context.device)?,
            cache: None,
            pages: 0,
            block,
            results: Buffer::zeroed(&context.device, &stream, results.len)?,
            results_host: Pinned::new(&context.device, results.len, false)?,
            scores_host: Pinned::new(&context.device, pieces * results.len, false)?,
            score_map: results,
            arena,
            weights,
            attention,
            bytes,
            ln_vocab: (config.vocab_size as f32).ln(),
            top,
            in_flight: None,
            finished: ResultMap::default(),
            stale: false,
            aborted: false,
            shape,
            stream,
            context,
        })
    }

    /// Device memory taken so far, the cache and graphs aside.
    pub(crate) fn bytes(&self) -> ModelBytes {
        self.bytes
    }

    /// Bytes for one page of 16 tokens: the cache of all layers of this shard, and the states that heads read.
    pub(crate) fn page_bytes(&self) -> u64 {
        let cache = (self.shape.layers * self.shape.page_elements() * size_of::<bf16>()) as u64;
        cache + self.heads.as_ref().map_or(0, CudaHeads::kept_bytes_per_page)
    }

    /// Allocates the cache: `pages` pages and one that only padding steps use.
    ///
    /// # Errors
    /// What the driver says, with the bytes that were asked for.
    pub(crate) fn allocate_cache(&mut self, pages: usize) -> Result<(), CudaError> {
        let len = (pages + 1).saturating_mul(self.shape.layers * self.shape.page_elements());
        self.cache = Some(Buffer::zeroed(&self.context.device, &self.stream, len)?);
        if let Some(heads) = &mut self.heads {
            heads.allocate_kept(&self.context.device, &self.stream, pages + 1)?;
        }
        self.pages = pages;
        Ok(())
    }

    /// The device memory that the graphs take, and what the communicator takes with its first collective: captures all
    /// graphs with addresses of no cache, instantiates and uploads them, and destroys them again. To be called before
    /// [`Self::allocate_cache`], with nothing else allocating on the device, and on all ranks of the model at once.
    ///
    /// # Errors
    /// What the driver says, or that the other ranks did not come.
    pub(crate) fn measure_graphs(&mut self) -> Result<u64, CudaError> {
        self.wait()?;
        let (before, _) = self.context.device.memory()?;
        self.meet()?;
        self.capture()?;
        self.upload()?;
        let (after, _) = self.context.device.memory()?;
        self.graphs.clear();
        Ok(before.saturating_sub(after))
    }

    /// Phase 1 of the start: one uncaptured step of one token on the padding page, collectives included. Waits for it.
    ///
    /// # Errors
    /// What the driver says, naming the kernel.
    pub(crate) fn warm_up(&mut self) -> Result<(), CudaError> {
        self.run_padding(None)
    }

    /// Phase 2: captures every bucket, the largest first. Nothing runs.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn capture(&mut self) -> Result<(), CudaError> {
        let mut graphs = std::mem::replace(&mut self.graphs, Graphs::new(&[], 0));
        let captured = graphs.capture(&self.stream, |tokens| {
            let wave = [bucket_wave(tokens, &self.shape, &self.attention)];
            let plan = bucket_plan(tokens, &self.shape, self.top, &wave);
            // SAFETY: nothing runs now; every launch of the graph comes after a step of this bucket was filled in, and
            // the graph is dropped before the buffers.
            unsafe { self.forward().run(&plan) }
        });
        self.graphs = graphs;
        captured?;
        tracing::debug!(nodes = self.graphs.nodes()?, "graphs captured");
        Ok(())
    }

    /// Phase 3: instantiates the graphs and sends them to the device.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn upload(&mut self) -> Result<(), CudaError> {
        self.graphs.upload(&self.stream)?;
        self.wait()
    }

    /// Phase 4: every graph runs once, for one token on the padding page. Waits for them.
    ///
    /// # Errors
    /// What the driver says, naming the kernel.
    pub(crate) fn replay(&mut self) -> Result<(), CudaError> {
        for bucket in self.graphs.tokens() {
            self.run_padding(Some(bucket))?;
        }
        Ok(())
    }

    /// Starts a step: fills the step block, queues its copy, the launches and the event, and returns. With `after` the
    /// step's work waits for that event.
    ///
    /// # Errors
    /// A step beyond its limits, a graph that was not captured, a step still in flight, or what the driver says. The step
    /// has not run then, or not to its end.
    pub(crate) fn launch(&mut self, record: &LaunchRecord, after: Option<&Event>) -> Result<(), CudaError> {
        self.start(&record.step, record.graph, after, self.pages)
    }

    /// Which part of its model this is.
    pub(crate) fn shard(&self) -> Shard {
        self.shape.shard
    }

    /// Marks the end of the step in flight.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the step that was launched last is done. Never waits.
    ///
    /// # Errors
    /// What the driver says about the step: a kernel that failed is named.
    pub(crate) fn finished(&mut self) -> Result<bool, CudaError> {
        let done = self.event.query()?;
        // An aborted step is over when the device says so, and not before.
        if let (false, false, Some(comm)) = (done, self.aborted, &self.comm) {
            comm.async_error()?;
        }
        if let (true, Some(step)) = (done, self.in_flight) {
            self.finished = step.results;
            self.in_flight = None;
        }
        Ok(done)
    }

    /// Reads the results of the finished `step`: one for each row from the shard that samples, nothing from the others.
    pub(crate) fn results(&mut self, step: &Step, room: &mut Room) {
        if !self.shape.shard.samples() {
            return;
        }
        let Room { results: out, scores } = room;
        let words = self.results_host.as_slice();
        let broken = words[ResultMap::EMBED_FAULT] != 0;
        let results = Results { words, map: self.finished, flags: step.flags, ln_vocab: self.ln_vocab };
        self.prompt_scores(step, scores);
        let first = out.len();
        let mut sampled = 0;
        for row in &step.rows {
            let mut result = RowResult::default();
            if row.sample.is_some() {
                result = results.row(sampled);
                if let Some(top) = row.sample.as_ref().and_then(|spec| spec.logprobs) {
                    results.score(sampled, usize::from(top), scores);
                }
                sampled += 1;
            }
            if row.scored.clone().any(|place| scores.is_fault(place)) {
                result.fault = result.fault.or(Some(RowFault::NonFinite));
            }
            if broken {
                result.fault = Some(RowFault::Other("the device met a token id beyond the embedding"));
            }
            out.push(result);
        }
        if let Some(heads) = &self.heads {
            heads.finish(self.heads_host.as_slice(), step, &mut out[first..]);
        }
        for (row, fault) in self.block.faults() {
            out[first + row].fault = Some(*fault);
        }
    }

    /// Reads the scores of prompts of the finished `step`.
    fn prompt_scores(&self, step: &Step, scores: &mut Scores) {
        let pieces = step.score_tokens.chunks(self.shape.max_rows);
        let places = pieces.zip(self.scores_host.as_slice().chunks(self.score_map.len.max(1)));
        let mut scored = step.rows.iter().filter(|row| !row.scored.is_empty()).peekable();
        let mut place = 0;
        for (piece, words) in places {
            let results =
                Results { words, map: self.score_map, flags: SignalFlags::NONE, ln_vocab: self.ln_vocab };
            for row in 0..piece.len() {
                while scored.next_if(|row| row.scored.end <= place).is_some() {}
                let top = scored.peek().map_or(0, |row| row.score_top);
                results.score(row, usize::from(top), scores);
                place += 1;
            }
        }
    }

    /// Ends the communicator, so that a step which waits for another rank comes back. The model runs nothing from then on.
    pub(crate) fn abort(&mut self) {
        self.aborted = true;
        if let Some(comm) = &mut self.comm {
            comm.abort();
        }
    }

    /// The rule by which the lead chooses the graph of a step.
    pub(crate) fn graph_key(&self) -> GraphKey {
        graph_key(self.graphs.tokens(), self.attention, self.shape.max_rows)
    }

    /// The parts that tests look into and damage.
    #[cfg(test)]
    pub(super) fn parts(&mut self) -> Parts<'_> {
        Parts {
            block: &mut self.block,
            arena: &self.arena,
            cache: self.cache.as_ref(),
            shape: &self.shape,
            stream: &self.stream,
        }
    }

    fn start(
        &mut self,
        step: &Step,
        graph: Option<u32>,
        after: Option<&Event>,
        pages: usize,
    ) -> Result<(), CudaError> {
        if self.aborted {
            return Err(CudaError::Shape("the model's communicator was aborted".to_owned()));
        }
        if self.in_flight.is_some() {
            return Err(CudaError::Shape("the model's last step is still in flight".to_owned()));
        }
        if self.cache.is_none() {
            return Err(CudaError::Shape("a step before the cache was allocated".to_owned()));
        }
        if self.stale {
            self.wait()?;
            self.stale = false;
        }
        let front = self.block.fill(step, &self.shape, &self.attention, graph, pages)?;
        self.stale = true;
        if let Some(event) = after {
            stream_wait(&self.stream, event)?;
        }
        let rows = if graph.is_some() { front.rows } else { step.logit_tokens.len() };
        let results = ResultMap::new(rows, self.top);
        // SAFETY: the block lives as long as the model, and is filled again only when this step is over.
        unsafe { self.block.copy(&self.stream) }?;
        match graph {
            // SAFETY: a checked step of this bucket was filled in; nothing reads the results before the event.
            Some(tokens) => unsafe { self.graphs.get(tokens)?.launch(&self.stream) }?,
            None => {
                let (tokens, rows) = (step.ids.len() as u32, rows as u32);
                let scores = step.score_tokens.len() as u32;
                let plan = Plan { tokens, rows, scores, front, results, waves: self.block.waves() };
                // SAFETY: as above.
                unsafe { self.forward().run(&plan) }?;
            }
        }
        self.event.record(&self.stream)?;
        self.in_flight = Some(InFlight { results });
        self.stale = false;
        Ok(())
    }

    fn run_padding(&mut self, graph: Option<u32>) -> Result<(), CudaError> {
        let step = padding_step(self.pages);
        self.start(&step, graph, None, self.pages + 1)?;
        self.wait_for_ranks()
    }

    /// One uncaptured collective, before any is captured.
    fn meet(&mut self) -> Result<(), CudaError> {
        let (Some(comm), Some(exchange)) = (&self.comm, &self.arena.exchange) else { return Ok(()) };
        // SAFETY: the buffer holds more than one value and lives as long as the model; all ranks come here.
        unsafe { comm.all_reduce_sum_f32(&self.stream, exchange.partial.ptr(), 1) }?;
        self.event.record(&self.stream)?;
        self.in_flight = Some(InFlight { results: ResultMap::default() });
        self.wait_for_ranks()
    }

    /// Waits for the step in flight, and for the other ranks no longer than [`RANKS_DEADLINE`].
    fn wait_for_ranks(&mut self) -> Result<(), CudaError> {
        let start = Instant::now();
        while !self.finished()? {
            if start.elapsed() > RANKS_DEADLINE {
                self.abort();
                let seconds = RANKS_DEADLINE.as_secs();
                let what = format!("the other ranks of the model did not come within {seconds} seconds");
                return Err(CudaError::Shape(what));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), CudaError> {
        self.context.device.wait(&self.stream)
    }

    fn forward(&self) -> Forward<'_> {
        let base = self.cache.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let cache = Cache { base, layer: (self.pages + 1) * self.shape.page_elements() };
        Forward {
            context: &self.context,
            stream: &self.stream,
            shape: &self.shape,
            weights: &self.weights,
            arena: &self.arena,
            cache,
            block: self.block.device(),
            map: self.block.map(),
            results: self.results.ptr(),
            results_host: &self.results_host,
            scores_host: &self.scores_host,
            score_map: &self.score_map,
            heads: self.heads.as_ref(),
            heads_host: &self.heads_host,
            comm: self.comm.as_ref(),
        }
    }
}

/// See [`CudaModel::parts`].
#[cfg(test)]
pub(super) struct Parts<'a> {
    pub(super) block: &'a mut StepBlock,
    pub(super) arena: &'a Arena,
    pub(super) cache: Option<&'a Buffer<bf16>>,
    pub(super) shape: &'a Shape,
    pub(super) stream: &'a Arc<CudaStream>,
}

impl Drop for CudaModel {
    fn drop(&mut self) {
        // A step that waits for another rank would never end.
        if self.in_flight.is_some() {
            self.graphs.clear();
            self.abort();
        }
        // Pinned memory must outlive the copies that are under way. A device that has failed has none.
        let _ = self.wait();
    }
}
