//! Causal attention over the paged cache, grouped heads, decode and extend rows alike.
//!
//! Order for one (token at position p, query head), depending on positions only. The cache
//! positions `0..=p` are cut into segments of [`SEGMENT_TOKENS`]. In each segment:
//! 1. scores `s_j = dot(k_j, q) * scale` (dot product of the [module text](super));
//! 2. `m = max s_j`; weights `w_j = exp(s_j - m)`;
//! 3. `l` = the weights added in 8 lanes (lane `j % 8`, zeros at the end), joined in the usual tree;
//! 4. `o[d]` = fused multiply-adds of `w_j * v_j[d]` from +0, in order of `j`.
//!
//! Segments are folded left to right: the first one is taken over; then, with `M' = max(M, m)`,
//! `a = exp(M - M')`, `b = exp(m - M')`: `L = fma(L, a, l * b)`, `O[d] = fma(O[d], a, o[d] * b)`.
//! The result is `O[d] * (1 / L)`. Nothing depends on which queries are computed together.

mod block;
mod packed;
mod softmax;
mod tiles;

use std::ops::Range;

use self::block::Block;
use super::shared::SharedMut;
use super::{Ctx, KvArena, PAGE_TOKENS, StepTokens, dispatch, part_count, part_range};

/// Cache positions in a segment.
pub const SEGMENT_TOKENS: usize = 256;
const SEGMENT_PAGES: usize = SEGMENT_TOKENS / PAGE_TOKENS;
/// The order in which the eight lanes of a dot product are joined: neighbours here, then pairs of neighbours, then fours.
const LANES: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];
/// Query heads of a token that go together, and queries (a token's query heads) if keys and values are not [`packed`].
const GROUP: usize = 32;
/// Tokens of a row that go together whatever the number of threads: they share what they read.
const TOKENS: usize = 8;

/// Arguments of [`attention`]; `Hq` query heads of `D` elements.
#[derive(Clone, Copy)]
pub struct AttnArgs<'a> {
    /// Queries `[T, Hq, D]`, normed and rotated.
    pub q: &'a [f32],
    /// Whose the tokens are.
    pub tokens: &'a StepTokens<'a>,
    /// Layer of the cache.
    pub layer: usize,
    /// Query heads, a multiple of the kv heads.
    pub q_heads: usize,
    /// Multiplies the scores, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// The cache, in which the keys and values of all fed tokens are stored already.
    pub kv: &'a KvArena,
}

/// `out[T, Hq, D]`: the token at position `p` attends to positions `0..=p` of its row. Query heads
/// `h * G .. (h + 1) * G` read kv head `h`, with `G = Hq / Hkv`.
///
/// # Panics
/// When lengths contradict each other or a page does not exist.
pub fn attention(ctx: Ctx<'_>, args: AttnArgs<'_>, out: &mut [f32]) {
    let layout = args.kv.layout();
    let (t, d, kv_heads) = (args.tokens.len(), layout.head_dim, layout.kv_heads);
    assert!(
        kv_heads > 0 && args.q_heads.is_multiple_of(kv_heads),
        "{} query heads, {kv_heads} kv heads",
        args.q_heads
    );
    assert_eq!(args.q.len(), t * args.q_heads * d, "queries");
    assert_eq!(out.len(), args.q.len(), "out of attention");
    assert_eq!(args.tokens.positions.len(), t, "positions");
    let cached: usize = args.tokens.positions.iter().map(|p| *p as usize + 1).sum();
    let heads = args.q_heads / kv_heads;
    let blocks = t.div_ceil(together(&ctx, &args, heads));
    let units = blocks * kv_heads;
    let parts = part_count(&ctx, units, cached.saturating_mul(args.q_heads * d * 2));
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        for unit in part_range(units, parts, part) {
            // The blocks of a head follow each other: what one has read may still be in a cache.
            let (head, tokens) = (unit / blocks, part_range(t, blocks, unit % blocks));
            for run in runs(args.tokens, tokens) {
                for first in (0..heads).step_by(GROUP) {
                    let count = (heads - first).min(GROUP);
                    let (tokens, queries) = (run.clone(), run.len() * count);
                    let block = Block { args: &args, tokens, head, first, count, out: &out };
                    if packed::pays(ctx.isa, queries, d) {
                        block.packed(ctx.isa);
                    } else {
                        dispatch(ctx.isa, block);
                    }
                }
            }
        }
    });
}

/// Most tokens that go together, so many that no thread is left without work.
fn together(ctx: &Ctx<'_>, args: &AttnArgs<'_>, heads: usize) -> usize {
    let (t, layout) = (args.tokens.len(), args.kv.layout());
    // Tokens of one row share what they read; where every token has a row of its own there is nothing to share.
    if args.tokens.row_page_start.len() > t {
        return 1;
    }
    let queries = if layout.head_dim <= packed::LONGEST { packed::QUERIES } else { GROUP };
    let most = (queries / heads.min(GROUP)).max(1);
    let threads = ctx.workers.threads();
    if threads == 1 {
        return most;
    }
    let fair = (t * layout.kv_heads).div_ceil(4 * threads);
    fair.clamp((GROUP / heads).clamp(1, TOKENS), most)
}

/// Cuts a range of tokens where the row changes or positions do not ascend.
fn runs<'a>(tokens: &'a StepTokens<'_>, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
    let mut start = range.start;
    std::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let joins = |t: &usize| {
            tokens.token_row[*t] == tokens.token_row[t - 1] && tokens.positions[*t] > tokens.positions[t - 1]
        };
        let end = (start + 1..range.end).take_while(joins).last().map_or(start + 1, |last| last + 1);
        let run = start..end;
        start = end;
        Some(run)
    })
}
