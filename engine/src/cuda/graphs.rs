//! Captured steps, one graph per token bucket. Decode is an extend of one token and rows are data, so the bucket is all
//! that a graph depends on.

use std::sync::Arc;

use tokenrouter_kernels::cuda::{Capture, CudaError, CudaStream, Graph, GraphExec};

use super::attention::{AttnLimits, Wave};
use super::block::{Front, Plan, ResultMap};
use super::shape::Shape;
use super::stage::spans;
use crate::executor::NoGraph;
use crate::ranks::GraphKey;
use crate::step::Step;

/// One bucket's graph on its way from capture to use.
struct Bucket {
    tokens: u32,
    graph: Option<Graph>,
    exec: Option<GraphExec>,
}

/// All buckets, ascending.
pub(super) struct Graphs {
    buckets: Vec<Bucket>,
}

impl Graphs {
    /// Buckets above the largest step are left out.
    pub(super) fn new(buckets: &[u32], max_tokens: usize) -> Self {
        let mut tokens: Vec<u32> =
            buckets.iter().copied().filter(|b| *b > 0 && *b as usize <= max_tokens).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let buckets = tokens.into_iter().map(|tokens| Bucket { tokens, graph: None, exec: None }).collect();
        Self { buckets }
    }

    /// Captures every bucket, the largest first. `run` queues the step of a bucket; nothing of it runs.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn capture(
        &mut self,
        stream: &Arc<CudaStream>,
        mut run: impl FnMut(u32) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        for bucket in self.buckets.iter_mut().rev() {
            let capture = Capture::begin(stream)?;
            run(bucket.tokens)?;
            bucket.graph = Some(capture.end()?);
        }
        Ok(())
    }

    /// Instantiates what was captured, the largest first, and sends it to the device.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn upload(&mut self, stream: &CudaStream) -> Result<(), CudaError> {
        for bucket in self.buckets.iter_mut().rev() {
            // What was instantiated has copies of its own.
            if let Some(graph) = bucket.graph.take() {
                let exec = graph.instantiate()?;
                exec.upload(stream)?;
                bucket.exec = Some(exec);
            }
        }
        Ok(())
    }

    /// Destroys everything.
    pub(super) fn clear(&mut self) {
        for bucket in &mut self.buckets {
            bucket.exec = None;
            bucket.graph = None;
        }
    }

    /// The graph of exactly this bucket.
    ///
    /// # Errors
    /// [`CudaError::Shape`] when there is none.
    pub(super) fn get(&self, tokens: u32) -> Result<&GraphExec, CudaError> {
        let bucket = self.buckets.iter().find(|b| b.tokens == tokens);
        bucket
            .and_then(|b| b.exec.as_ref())
            .ok_or_else(|| CudaError::Shape(format!("no graph of {tokens} tokens was captured")))
    }

    /// The bucket sizes, ascending.
    pub(super) fn tokens(&self) -> Vec<u32> {
        self.buckets.iter().map(|b| b.tokens).collect()
    }

    /// The most nodes of a captured graph that was not instantiated yet.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn nodes(&self) -> Result<usize, CudaError> {
        let counts = self.buckets.iter().filter_map(|b| b.graph.as_ref()).map(Graph::nodes);
        counts.collect::<Result<Vec<_>, _>>().map(|n| n.into_iter().max().unwrap_or(0))
    }
}

/// The rule that chooses a graph: the smallest bucket that holds the step's tokens and rows, if its attention is a single
/// wave and no prompt is scored.
pub(super) fn graph_key(buckets: Vec<u32>, attention: AttnLimits, max_rows: usize) -> GraphKey {
    Box::new(move |step: &Step| {
        let (tokens, rows) = (step.ids.len(), step.rows.len());
        let holds = |b: &&u32| tokens <= **b as usize && rows <= max_rows.min(**b as usize);
        let missing = if buckets.is_empty() { NoGraph::Off } else { NoGraph::Size };
        let bucket = buckets.iter().find(holds).copied().ok_or(missing)?;
        if !step.score_tokens.is_empty() {
            return Err(NoGraph::Scores);
        }
        let one_wave = attention.one_wave(spans(step).map(|(_, tokens, start)| (tokens, start)));
        if one_wave { Ok(bucket) } else { Err(NoGraph::Attention) }
    })
}

/// The one wave of every step of a bucket: its bounds.
pub(super) fn bucket_wave(tokens: u32, shape: &Shape, attention: &AttnLimits) -> Wave {
    let rows = tokens.min(shape.max_rows as u32);
    let items = attention.most_items(u64::from(tokens), u64::from(rows), shape.context as u64);
    Wave { tokens, rows, items, ..Wave::default() }
}

/// What the launches of a bucket are made for.
pub(super) fn bucket_plan<'a>(tokens: u32, shape: &Shape, top: usize, waves: &'a [Wave]) -> Plan<'a> {
    let front = Front::bucket(tokens as usize, shape.max_rows);
    let results = ResultMap::new(front.rows, top);
    Plan { tokens, rows: front.rows as u32, scores: 0, front, results, waves }
}
