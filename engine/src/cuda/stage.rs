//! Filling the step block. The pinned half may be write-combined memory: it is only written, front to back by parts.

use bytemuck::{Pod, cast_slice};
use tokenrouter_kernels::cuda::{
    AttnRow, Buffer, CudaError, CudaStream, Pinned, Ptr, RowSample, copy_to_device_async,
};
use tokenrouter_scheduler::RowFault;

use super::attention::{AttnLimits, Wave, most_entries, most_waves};
use super::block::{BlockMap, DRAW_WORDS, END_WORDS, ENTRY_WORDS, Front, WAVE_WORDS};
use super::context::RankContext;
use super::shape::Shape;
use crate::heads::cuda::ends_of;
use crate::step::{SampleSpec, Step};

/// A row that fails although the step runs, and why.
pub(super) type EarlyFault = (usize, RowFault);

const BIAS_FAULT: RowFault =
    RowFault::Other("the logit biases of this step exceed their buffer on the device");
const LIST_FAULT: RowFault =
    RowFault::Other("the tokens that the penalties of this step read exceed their buffer on the device");

/// Both halves of the block, and what filling them needs.
pub(super) struct StepBlock {
    map: BlockMap,
    host: Pinned<u32>,
    device: Buffer<u32>,
    waves: Vec<Wave>,
    entries: Vec<AttnRow>,
    faults: Vec<EarlyFault>,
    used: Used,
    /// Largest logits that every step wants.
    least_top: u32,
}

/// Words that travel.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    front: usize,
    tables: usize,
    biases: usize,
    lists: usize,
}

impl StepBlock {
    /// Allocates both halves. Every step wants at least the `least_top` largest logits of its rows.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        context: &RankContext,
        stream: &CudaStream,
        shape: &Shape,
        least_top: u32,
    ) -> Result<Self, CudaError> {
        let map = BlockMap::new(shape);
        let (tokens, rows) = (shape.max_tokens, shape.max_rows);
        Ok(Self {
            map,
            host: Pinned::new(&context.device, map.len, true)?,
            device: Buffer::zeroed(&context.device, stream, map.len)?,
            waves: Vec::with_capacity(most_waves(tokens)),
            entries: Vec::with_capacity(most_entries(tokens, rows)),
            faults: Vec::with_capacity(rows),
            used: Used::default(),
            least_top,
        })
    }

    /// Where its parts lie.
    pub(super) fn map(&self) -> &BlockMap {
        &self.map
    }

    /// The half on the device.
    pub(super) fn device(&self) -> Ptr<u32> {
        self.device.ptr()
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.map.len as u64
    }

    /// The waves of the step that was filled in last.
    pub(super) fn waves(&self) -> &[Wave] {
        &self.waves
    }

    /// Its rows that fail.
    pub(super) fn faults(&self) -> &[EarlyFault] {
        &self.faults
    }

    /// The pinned half, for tests that fill it with rubbish.
    #[cfg(test)]
    pub(super) fn host_mut(&mut self) -> &mut [u32] {
        self.host.as_mut_slice()
    }

    /// Fills in a step that runs uncaptured, or in the graph of `bucket` tokens; returns the layout of its front. No copy
    /// of the step before may be on its way any more.
    ///
    /// # Errors
    /// [`CudaError::Shape`] when the step breaks its limits: a fault of ours, but no reason to panic.
    pub(super) fn fill(
        &mut self,
        step: &Step,
        shape: &Shape,
        attention: &AttnLimits,
        bucket: Option<u32>,
        pages: usize,
    ) -> Result<Front, CudaError> {
        check(step, shape, pages)?;
        attention.plan(spans(step), &mut self.waves, &mut self.entries)?;
        let (tokens, rows) = (step.ids.len(), step.rows.len());
        let front = match bucket {
            None => Front::new(tokens, rows, self.waves.len(), self.entries.len())
                .with_scores(step.score_tokens.len(), shape.max_rows),
            Some(bucket) => {
                let front = Front::bucket(bucket as usize, shape.max_rows);
                if tokens > front.tokens
                    || rows > front.rows
                    || self.waves.len() != 1
                    || !step.score_tokens.is_empty()
                {
                    let what = format!(
                        "{tokens} tokens in {rows} rows, {} waves, in a graph of {bucket}",
                        self.waves.len()
                    );
                    return Err(CudaError::Shape(what));
                }
                front
            }
        };
        self.used = Used { front: front.len, ..Used::default() };
        self.fill_front(step, &front);
        self.fill_scores(step, &front, shape);
        self.fill_tables(step);
        self.fill_draws(step, &front);
        Ok(front)
    }

    fn fill_front(&mut self, step: &Step, front: &Front) {
        let tables = step.tokens();
        let host = self.host.as_mut_slice();
        host[Front::TOKENS] = step.ids.len() as u32;
        host[Front::ROWS] = step.logit_tokens.len() as u32;
        host[Front::HEADS] = u32::from(step.heads);
        let mut ends = 0;
        for end in ends_of(step) {
            put(host, front.ends + ends * END_WORDS, &[end]);
            ends += 1;
        }
        host[Front::ENDS] = ends as u32;
        for (i, wave) in self.waves.iter().enumerate() {
            let at = front.waves + i * WAVE_WORDS;
            host[at..at + WAVE_WORDS].copy_from_slice(&[wave.rows, wave.tokens]);
            let tokens = wave.first_token as usize..(wave.first_token + wave.tokens) as usize;
            let own = &mut host[front.wave_row + tokens.start..front.wave_row + tokens.end];
            for (to, row) in own.iter_mut().zip(&tables.token_row[tokens]) {
                *to = row - wave.first_row;
            }
        }
        put(host, front.ids, &step.ids);
        put(host, front.positions, tables.positions);
        put(host, front.token_row, tables.token_row);
        put(host, front.logit_tokens, &step.logit_tokens);
        debug_assert_eq!(size_of::<AttnRow>(), 4 * ENTRY_WORDS);
        put(host, front.entries, &self.entries);
    }

    fn fill_scores(&mut self, step: &Step, front: &Front, shape: &Shape) {
        let least = self.least_top;
        let host = self.host.as_mut_slice();
        host[Front::TOP] = step.most_top().map_or(0, u32::from).max(least);
        put(host, front.score_tokens, &step.score_tokens);
        put(host, front.score_ids, &step.score_ids);
        for (piece, tokens) in step.score_tokens.chunks(shape.max_rows).enumerate() {
            host[front.score_counts + piece] = tokens.len() as u32;
        }
    }

    fn fill_tables(&mut self, step: &Step) {
        let tables = step.tokens();
        let host = self.host.as_mut_slice();
        for (row, bounds) in tables.row_page_start.windows(2).enumerate() {
            let pages = &tables.row_pages[bounds[0] as usize..bounds[1] as usize];
            let at = row * self.map.table_stride;
            put(host, self.map.tables + at, pages);
            self.used.tables = at + pages.len();
        }
    }

    /// Biases first, so that their ids and values lie at the same places of the two regions.
    fn fill_draws(&mut self, step: &Step, front: &Front) {
        self.faults.clear();
        let sampled = || {
            let rows = step.rows.iter().enumerate();
            rows.filter_map(|(i, r)| r.sample.as_ref().map(|s| (i, r, s))).enumerate()
        };
        let (host, map) = (self.host.as_mut_slice(), &self.map);
        let mut biases = 0;
        for (_, (row, _, spec)) in sampled() {
            let list = &spec.sampling.params.logit_bias;
            if list.len() > map.bias_room - biases {
                self.faults.push((row, BIAS_FAULT));
                continue;
            }
            for (id, value) in list {
                host[map.lists + biases] = *id;
                host[map.biases + biases] = value.to_bits();
                biases += 1;
            }
        }
        let (mut bias, mut lists) = (0, biases);
        let early = self.faults.len();
        for (draw, (row, step_row, spec)) in sampled() {
            let mut out = RowSample::new(&spec.sampling.params, &spec.key);
            if !self.faults[..early].iter().any(|f| f.0 == row) {
                let len = spec.sampling.params.logit_bias.len();
                (out.bias, out.bias_len) = (bias as u32, len as u32);
                bias += len;
                let (forbidden, history) = (forbidden(spec), step.history(step_row));
                if forbidden.len() + history.len() > map.list_room - lists {
                    self.faults.push((row, LIST_FAULT));
                    out.bias_len = 0;
                } else {
                    put(host, map.lists + lists, forbidden);
                    (out.forbidden, out.forbidden_len) = (lists as u32, forbidden.len() as u32);
                    lists += forbidden.len();
                    put(host, map.lists + lists, history);
                    (out.history, out.history_len) = (lists as u32, history.len() as u32);
                    out.prompt_len = spec.prompt_len.min(history.len()) as u32;
                    lists += history.len();
                }
            }
            put(host, front.draws + draw * DRAW_WORDS, &[out]);
        }
        (self.used.biases, self.used.lists) = (biases, lists);
    }

    /// Queues the copies of what was filled in.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Until the stream has made them the block must live, and nobody may fill it.
    pub(super) unsafe fn copy(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let (map, used) = (&self.map, &self.used);
        let parts =
            [(0, used.front), (map.tables, used.tables), (map.biases, used.biases), (map.lists, used.lists)];
        for (from, len) in parts {
            if len > 0 {
                // SAFETY: both halves have the same shape; the caller answers for their lives.
                unsafe {
                    copy_to_device_async(stream, self.device.ptr().add(from), &self.host, from..from + len)
                }?;
            }
        }
        Ok(())
    }
}

/// Writes values from word `at` on.
fn put<T: Pod>(host: &mut [u32], at: usize, values: &[T]) {
    let words: &[u32] = cast_slice(values);
    host[at..at + words.len()].copy_from_slice(words);
}

fn forbidden(spec: &SampleSpec) -> &[u32] {
    if spec.mask_stops { &spec.sampling.stop_ids } else { &[] }
}

/// The rows of a step: first token, tokens, position of the first.
pub(super) fn spans(step: &Step) -> impl Iterator<Item = (u32, u32, u32)> {
    let tables = step.tokens();
    tables.token_row.chunk_by(|a, b| a == b).scan(0u32, move |first, row| {
        let at = *first;
        *first += row.len() as u32;
        Some((at, row.len() as u32, tables.positions[at as usize]))
    })
}

/// The scheduler and the rank loop see to all of this.
fn check(step: &Step, shape: &Shape, pages: usize) -> Result<(), CudaError> {
    let wrong = |what: String| Err(CudaError::Shape(what));
    let tables = step.tokens();
    let (tokens, rows) = (step.ids.len(), step.rows.len());
    if tokens > shape.max_tokens {
        return wrong(format!("{tokens} tokens in a step of at most {}", shape.max_tokens));
    }
    if rows > shape.max_rows {
        return wrong(format!("{rows} rows in a step of at most {}", shape.max_rows));
    }
    let sampled = step.rows.iter().filter(|r| r.sample.is_some()).count();
    if step.logit_tokens.len() != sampled {
        return wrong(format!("{sampled} rows that sample, {} logits", step.logit_tokens.len()));
    }
    let scores = step.score_tokens.len();
    if scores > tokens || step.score_ids.len() != scores {
        return wrong(format!(
            "{scores} scores of {} ids in a step of {tokens} tokens",
            step.score_ids.len()
        ));
    }
    if step.score_tokens.iter().any(|at| *at as usize >= tokens) {
        return wrong("a score outside the step".to_owned());
    }
    if tables.token_row.len() != tokens || tables.positions.len() != tokens {
        return wrong("unequal tables of a step".to_owned());
    }
    if tables.row_page_start.len() != rows + 1 {
        return wrong("unequal tables of a step's rows".to_owned());
    }
    if let Some(id) = step.ids.iter().find(|id| **id >= shape.vocab) {
        return wrong(format!("token {id} of a vocabulary of {}", shape.vocab));
    }
    if let Some(position) = tables.positions.iter().find(|p| **p as usize >= shape.context) {
        return wrong(format!("position {position} in a context of {}", shape.context));
    }
    if let Some(page) = tables.row_pages.iter().find(|p| **p as usize >= pages) {
        return wrong(format!("page {page} in a cache of {pages}"));
    }
    let covered = spans(step).zip(tables.row_page_start.windows(2)).all(|((_, tokens, start), pages)| {
        let used = (start + tokens).div_ceil(tokenrouter_kernels::cpu::PAGE_TOKENS as u32);
        pages[1] - pages[0] == used && used <= shape.table_stride
    });
    if !covered || spans(step).count() != rows {
        return wrong("a row whose pages do not cover its tokens".to_owned());
    }
    Ok(())
}
