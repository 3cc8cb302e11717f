//! One function per kernel: picks the instance, the grid and the shared memory, and queues it.
//!
//! The functions take upper bounds of the row counts that the kernels read from the device; a grid may be larger
//! or smaller than the work, since blocks stride.

use cudarc::driver::CudaStream;

use super::args::{
    AttnArgs, AttnRow, EmbedArgs, FoldArgs, LinearArgs, NamedArgs, NormArgs, PackArgs, QkvArgs, SampleArgs,
    SignalArgs, SiluArgs, StatsArgs, UnshardArgs,
};
use super::error::CudaError;
use super::load::Kernels;
use super::table::{KernelId, TILED_RING};

/// Logits that one tile of statistics covers.
pub const STAT_TILE: u32 = 128;
/// Positions in one unit of attention.
pub const UNIT_TOKENS: u32 = 64;
/// Most entries of a list of largest logits.
pub const MAX_TOP: u32 = 128;
/// Most ranks of a tensor-parallel model.
pub const MAX_RANKS: u32 = 8;
/// From so many queries on (tokens times query heads of a kv head) a row needs no partial results: `attention_many.cu`.
pub const MANY_QUERIES: u32 = 128;
/// Head dimensions that have kernels.
pub const HEAD_DIMS: [u32; 4] = [16, 32, 64, 128];

/// Elements of a packed weight of `n` features and `k` columns: both padded, to 16 and 32.
pub const fn packed_len(n: usize, k: usize) -> usize {
    n.next_multiple_of(16) * k.next_multiple_of(32)
}

/// The work of one attention step: rows for the device, and sizes.
#[derive(Clone, Debug, Default)]
pub struct AttnPlan {
    /// `rows + 1` entries.
    pub rows: Vec<AttnRow>,
    /// Rows of partial results.
    part_rows: usize,
}

impl AttnPlan {
    /// Plans rows given as (first token, tokens, position of the first), each with at least one token. A row of
    /// [`MANY_QUERIES`] has no items, which is how the kernels know it.
    ///
    /// # Errors
    /// When the step is too large to number.
    pub fn new(rows: &[(u32, u32, u32)], q_heads: u32, kv_heads: u32) -> Result<Self, CudaError> {
        let too_large = || CudaError::Shape("the attention step is too large".into());
        let group = u64::from(q_heads / kv_heads.max(1));
        let (mut item, mut part) = (0u64, 0u64);
        let mut plan = Vec::with_capacity(rows.len() + 1);
        for &(first, tokens, start) in rows {
            let place = |n: u64| u32::try_from(n).map_err(|_| too_large());
            plan.push(AttnRow { first, tokens, start, item: place(item)?, part: place(part)? });
            let queries = u64::from(tokens) * group;
            let units = u64::from(start + tokens).div_ceil(u64::from(UNIT_TOKENS));
            if queries >= u64::from(MANY_QUERIES) {
                continue;
            }
            let items = units * u64::from(kv_heads) * queries.div_ceil(16);
            item += items;
            part += items * queries.min(16);
        }
        let (item, part_rows) =
            (u32::try_from(item).map_err(|_| too_large())?, u32::try_from(part).map_err(|_| too_large())?);
        plan.push(AttnRow { item, part: part_rows, ..AttnRow::default() });
        Ok(Self { rows: plan, part_rows: part_rows as usize })
    }

    /// Work items.
    pub fn items(&self) -> u32 {
        self.rows.last().map_or(0, |r| r.item)
    }

    /// f32 values of the partial results.
    pub fn partials(&self, head_dim: u32) -> usize {
        self.part_rows * (head_dim as usize + 4)
    }
}

fn head_kernel(head_dim: u32, kernels: [KernelId; 4]) -> Result<KernelId, CudaError> {
    let place = HEAD_DIMS.iter().position(|d| *d == head_dim);
    place.map(|i| kernels[i]).ok_or_else(|| {
        CudaError::Shape(format!("no kernel for a head of {head_dim} elements: 16, 32, 64 or 128"))
    })
}

pub(super) fn multiple(what: &str, value: u32, of: u32) -> Result<(), CudaError> {
    if value.is_multiple_of(of) && value != 0 {
        return Ok(());
    }
    Err(CudaError::Shape(format!("{what} of {value} elements is no multiple of {of}")))
}

/// Each function is unsafe for one reason: the memory that `args` names must fit the kernel's contract (its file under
/// `kernels/cuda`) and stay until the stream has run the kernel.
#[allow(clippy::missing_safety_doc, reason = "the text above holds for all of them")]
impl Kernels {
    /// Blocks of 256 threads that stride over `pieces` of work.
    pub(super) fn strided(&self, pieces: u64) -> u32 {
        pieces.div_ceil(256).min(8 * u64::from(self.processors())) as u32
    }

    /// `pack.cu`.
    pub unsafe fn pack_weight(&self, stream: &CudaStream, args: &PackArgs) -> Result<(), CudaError> {
        if args.kind > 2 || args.tile_step == 0 {
            return Err(CudaError::Shape(format!("packing rows of type {}", args.kind)));
        }
        let pieces = packed_len(args.n as usize, args.k as usize) / 8;
        let grid = pieces.div_ceil(256).min(8 * self.processors() as usize) as u32;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::PackWeight, (grid, 1), 0, args) }
    }

    /// `embed.cu`, for at most `tokens` tokens.
    pub unsafe fn embed(&self, stream: &CudaStream, tokens: u32, args: &EmbedArgs) -> Result<(), CudaError> {
        multiple("a row of hidden states", args.stride, 32)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::Embed, (tokens.min(4 * self.processors()), 1), 0, args) }
    }

    /// `norm.cu`, for at most `tokens` rows.
    pub unsafe fn rms_norm(
        &self,
        stream: &CudaStream,
        tokens: u32,
        args: &NormArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of hidden states", args.stride, 32)?;
        if args.store != 0 && !args.index.is_null() {
            return Err(CudaError::Shape("a norm of chosen rows stores no sums".into()));
        }
        let shared = (args.stride / 16 + 1) * 4;
        // SAFETY: the caller's promise.
        unsafe {
            self.launch(stream, KernelId::RmsNorm, (tokens.min(4 * self.processors()), 1), shared, args)
        }
    }

    /// `linear.cu`, for at most `tokens` rows of X; the instance follows from that bound and changes no bit.
    pub unsafe fn linear(
        &self,
        stream: &CudaStream,
        tokens: u32,
        args: &LinearArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of activations", args.x_stride, 32)?;
        if args.slices != 4 && args.slices != 8 {
            return Err(CudaError::Shape(format!("a linear layer of {} slices", args.slices)));
        }
        // From one tile for every second processor on, tiles use W and X more often; below, the tall kernel fills more of
        // the device.
        let tiles = args.n.div_ceil(128) * tokens.div_ceil(128);
        if tokens > 64 && tiles >= self.processors() / 2 {
            let rounds = tiles.div_ceil(self.processors()).max(1);
            let kernel = KernelId::LinearTiled;
            // Only the two halves of eight slices need the part where the first one waits.
            let shared = if args.slices == 8 { kernel.info().shared } else { TILED_RING };
            // SAFETY: the caller's promise.
            return unsafe { self.launch(stream, kernel, (tiles.div_ceil(rounds), 1), shared, args) };
        }
        let (kernel, columns, row_tiles) = match tokens {
            0..=8 => (KernelId::LinearNt1, 8, 1),
            9..=16 => (KernelId::LinearNt2, 16, 1),
            17..=32 => (KernelId::LinearNt4, 32, 2),
            _ => (KernelId::LinearNt8, 64, 2),
        };
        let groups = args.n.div_ceil(16 * row_tiles * (8 / args.slices));
        // Equal rounds: with every block in the same number of groups none runs alone at the end.
        let rounds = groups.div_ceil(2 * self.processors()).max(1);
        let grid = (groups.div_ceil(rounds), tokens.div_ceil(columns));
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, kernel, grid, kernel.info().shared, args) }
    }

    /// `fold.cu`: the partial sums of `args.ranks` ranks (1 to 8), for at most `tokens` tokens.
    pub unsafe fn fold_ranks(
        &self,
        stream: &CudaStream,
        tokens: u32,
        args: &FoldArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of partial sums", args.stride, 32)?;
        multiple("a rank's partial sums", args.rank_step, 4)?;
        if !(1..=MAX_RANKS).contains(&args.ranks) || args.n > args.stride {
            let what = format!("{} columns of {} ranks in rows of {}", args.n, args.ranks, args.stride);
            return Err(CudaError::Shape(what));
        }
        let grid = self.strided(u64::from(tokens) * u64::from(args.stride / 4));
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::FoldRanks, (grid, 1), 0, args) }
    }

    /// `fold.cu`: logits of all ranks, for at most `rows` rows.
    pub unsafe fn unshard_logits(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &UnshardArgs,
    ) -> Result<(), CudaError> {
        multiple("a rank's part of the vocabulary", args.width, 4)?;
        multiple("a rank's logits", args.rank_step, 4)?;
        multiple("a row of logits", args.stride, 4)?;
        if args.n > args.stride {
            return Err(CudaError::Shape(format!("{} logits in rows of {}", args.n, args.stride)));
        }
        let grid = self.strided(u64::from(rows) * u64::from(args.n.div_ceil(4)));
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::UnshardLogits, (grid, 1), 0, args) }
    }

    /// `qkv.cu`, for at most `tokens` tokens.
    pub unsafe fn qkv(
        &self,
        stream: &CudaStream,
        tokens: u32,
        head_dim: u32,
        args: &QkvArgs,
    ) -> Result<(), CudaError> {
        use KernelId::{QkvHd16, QkvHd32, QkvHd64, QkvHd128};
        let kernel = head_kernel(head_dim, [QkvHd16, QkvHd32, QkvHd64, QkvHd128])?;
        multiple("a row of queries, keys and values", args.stride, 8)?;
        let grid = (tokens * (args.q_heads + 2 * args.kv_heads)).div_ceil(64);
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, kernel, (grid.min(8 * self.processors()), 1), 0, args) }
    }

    /// `attention.cu` and `attention_merge.cu`, and `attention_many.cu` for rows of many queries, for at most `tokens` tokens
    /// and `items` work items.
    pub unsafe fn attention(
        &self,
        stream: &CudaStream,
        tokens: u32,
        items: u32,
        head_dim: u32,
        args: &AttnArgs,
    ) -> Result<(), CudaError> {
        use KernelId::{AttentionHd16, AttentionHd32, AttentionHd64, AttentionHd128};
        use KernelId::{ManyHd16, ManyHd32, ManyHd64, ManyHd128};
        use KernelId::{MergeHd16, MergeHd32, MergeHd64, MergeHd128};
        let units = head_kernel(head_dim, [AttentionHd16, AttentionHd32, AttentionHd64, AttentionHd128])?;
        let merge = head_kernel(head_dim, [MergeHd16, MergeHd32, MergeHd64, MergeHd128])?;
        let many = head_kernel(head_dim, [ManyHd16, ManyHd32, ManyHd64, ManyHd128])?;
        if args.kv_heads == 0 || !args.q_heads.is_multiple_of(args.kv_heads) {
            let what = format!("{} query heads for {} kv heads", args.q_heads, args.kv_heads);
            return Err(CudaError::Shape(what));
        }
        multiple("a row of queries", args.q_stride, 8)?;
        let grid = items.min(8 * self.processors());
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, units, (grid, 1), 0, args) }?;
        let queries = tokens * (args.q_heads / args.kv_heads);
        if queries >= MANY_QUERIES {
            // At most one tile in two is filled in part, the last one of a row.
            let tiles = queries / MANY_QUERIES * 2;
            let grid = (tiles * args.kv_heads).min(self.processors());
            // SAFETY: the caller's promise.
            unsafe { self.launch(stream, many, (grid, 1), many.info().shared, args) }?;
        }
        let grid = (tokens * args.q_heads).div_ceil(8).min(8 * self.processors());
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, merge, (grid, 1), 0, args) }
    }

    /// `silu.cu`, for at most `tokens` rows.
    pub unsafe fn silu_mul(
        &self,
        stream: &CudaStream,
        tokens: u32,
        args: &SiluArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of gates", args.x_stride, 32)?;
        multiple("a row of activations", args.y_stride, 32)?;
        let grid = (tokens * args.width.div_ceil(16) * 2).div_ceil(256).min(8 * self.processors());
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::SiluMul, (grid, 1), 0, args) }
    }

    /// `stats.cu`, for at most `rows` rows.
    pub unsafe fn logit_stats(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &StatsArgs,
    ) -> Result<(), CudaError> {
        let grid = (rows * args.vocab.div_ceil(STAT_TILE)).div_ceil(8).min(8 * self.processors());
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::LogitStats, (grid, 1), 0, args) }
    }

    /// `signals.cu`, for at most `rows` rows.
    pub unsafe fn row_signals(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &SignalArgs,
    ) -> Result<(), CudaError> {
        if args.top < 2 || args.top > MAX_TOP {
            return Err(CudaError::Shape(format!("the {} largest logits: 2 to {MAX_TOP}", args.top)));
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::RowSignals, (rows.min(2 * self.processors()), 1), 0, args) }
    }

    /// `named.cu`, for at most `rows` rows.
    pub unsafe fn named_logits(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &NamedArgs,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::NamedLogits, (rows.div_ceil(256), 1), 0, args) }
    }

    /// `sample.cu`, for at most `rows` rows.
    pub unsafe fn sample_tokens(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &SampleArgs,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::SampleTokens, (rows.min(2 * self.processors()), 1), 0, args) }
    }
}
