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
//! The result is `O[d] * (1 / L)`. Every segment has a state of its own, so segments may later be
//! computed by different threads without a change of bits.

use super::dot::dot_tile;
use super::kv::Half;
use super::math::{exp, exp_lanes};
use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, KvArena, Lanes, PAGE_TOKENS, StepTokens, dispatch, part_count, part_range};

/// Cache positions in a segment.
pub const SEGMENT_TOKENS: usize = 256;
const SEGMENT_PAGES: usize = SEGMENT_TOKENS / PAGE_TOKENS;
/// Query heads computed together against the same keys and values.
const HEADS: usize = 3;
/// Key vectors in a score tile.
const KEYS: usize = 4;
/// Query heads of one kv head whose state is kept at a time; more go in several passes.
const GROUP: usize = 32;
/// Registers of one head's output in the value pass.
const WIDTH: usize = 4;

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
    let units = t * kv_heads;
    let parts = part_count(&ctx, units, cached.saturating_mul(args.q_heads * d * 2));
    let group = args.q_heads / kv_heads * d;
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        let mut scores = [[0.0; SEGMENT_TOKENS]; HEADS];
        for unit in part_range(units, parts, part) {
            // Units of one token follow each other: unit = token * kv_heads + head.
            let (token, head) = (unit / kv_heads, unit % kv_heads);
            // SAFETY: the query heads of this unit belong to this part alone.
            let out = unsafe { out.part(unit * group, group) };
            let q = &args.q[unit * group..(unit + 1) * group];
            let pages = args.tokens.pages_of(token);
            let length = args.tokens.positions[token] as usize + 1;
            for (q, out) in q.chunks(GROUP * d).zip(out.chunks_mut(GROUP * d)) {
                let unit = Unit { args: &args, pages, length, head, d, q, out, scores: &mut scores };
                dispatch(ctx.isa, unit);
            }
        }
    });
}

/// One token and up to [`GROUP`] query heads of one kv head.
struct Unit<'a> {
    args: &'a AttnArgs<'a>,
    pages: &'a [u32],
    length: usize,
    head: usize,
    d: usize,
    q: &'a [f32],
    out: &'a mut [f32],
    scores: &'a mut [[f32; SEGMENT_TOKENS]; HEADS],
}

/// Running state of one query head.
#[derive(Clone, Copy, Default)]
struct State {
    max: f32,
    sum: f32,
}

impl Kernel for Unit<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.args.kv.layout().dtype, V, self.segments())
    }
}

impl Unit<'_> {
    #[inline(always)]
    fn segments<V: Lanes, E: Elem>(mut self) {
        let heads = self.q.len() / self.d;
        let mut states = [State::default(); GROUP];
        for (index, pages) in
            self.pages[..self.length.div_ceil(PAGE_TOKENS)].chunks(SEGMENT_PAGES).enumerate()
        {
            let count = (self.length - index * SEGMENT_TOKENS).min(SEGMENT_TOKENS);
            let mut at = 0;
            while at < heads {
                let states = &mut states[at..];
                let left = heads - at;
                // 4 heads go as 2 + 2, not 3 + 1.
                at += if V::WIDE_TILES && left >= HEADS && left != 4 {
                    self.heads::<V, E, HEADS>(states, at, pages, count, index == 0)
                } else if V::WIDE_TILES && left >= 2 {
                    self.heads::<V, E, 2>(states, at, pages, count, index == 0)
                } else {
                    self.heads::<V, E, 1>(states, at, pages, count, index == 0)
                };
            }
        }
        for (state, out) in states.iter().zip(self.out.chunks_exact_mut(self.d)) {
            let inverse = 1.0 / state.sum;
            out.iter_mut().for_each(|x| *x *= inverse);
        }
    }

    /// One segment of `count` positions for query heads `at .. at + C`; returns `C`.
    #[inline(always)]
    fn heads<V: Lanes, E: Elem, const C: usize>(
        &mut self,
        states: &mut [State],
        at: usize,
        pages: &[u32],
        count: usize,
        first: bool,
    ) -> usize {
        self.score::<V, E, C>(at, pages, count);
        let mut fold = [(0.0, 0.0); C];
        for c in 0..C {
            let segment = softmax::<V>(&mut self.scores[c], count);
            fold[c] = if first { (0.0, 1.0) } else { states[c].fold(&segment) };
            if first {
                states[c] = segment;
            }
        }
        let mut d = 0;
        while V::WIDE_TILES && d + 8 * WIDTH <= self.d {
            self.value::<V, E, C, WIDTH>(at, d, pages, count, first, &fold);
            d += 8 * WIDTH;
        }
        while d + 8 <= self.d {
            self.value::<V, E, C, 1>(at, d, pages, count, first, &fold);
            d += 8;
        }
        while d < self.d {
            self.value_one::<E, C>(at, d, pages, count, first, &fold);
            d += 1;
        }
        C
    }

    /// Fills `scores[c][..count]`.
    #[inline(always)]
    fn score<V: Lanes, E: Elem, const C: usize>(&mut self, at: usize, pages: &[u32], count: usize) {
        let d = self.d;
        let q = self.q[at * d..(at + C) * d].as_ptr();
        for (i, page) in pages.iter().enumerate() {
            let keys = self.args.kv.head_rows(*page, self.args.layer, Half::Key, self.head);
            let slots = (count - i * PAGE_TOKENS).min(PAGE_TOKENS);
            let mut slot = 0;
            while slot < slots {
                let j = i * PAGE_TOKENS + slot;
                let key = keys.wrapping_add(slot * d * E::SIZE);
                if slot + KEYS <= slots {
                    // SAFETY: KEYS more slots of this head lie in the page; q holds C heads from `at`.
                    let dots = unsafe { dot_tile::<V, E, KEYS, C>(key, d * E::SIZE, q, d, d, 0) };
                    for c in 0..C {
                        for r in 0..KEYS {
                            self.scores[c][j + r] = dots[r][c] * self.args.scale;
                        }
                    }
                    slot += KEYS;
                } else {
                    // SAFETY: as above, for one slot.
                    let [dots] = unsafe { dot_tile::<V, E, 1, C>(key, d * E::SIZE, q, d, d, 0) };
                    for c in 0..C {
                        self.scores[c][j] = dots[c] * self.args.scale;
                    }
                    slot += 1;
                }
            }
        }
    }

    /// Output elements `d .. d + 8 W` of query heads `at .. at + C`, folded into `out`.
    #[inline(always)]
    fn value<V: Lanes, E: Elem, const C: usize, const W: usize>(
        &mut self,
        at: usize,
        d: usize,
        pages: &[u32],
        count: usize,
        first: bool,
        fold: &[(f32, f32); C],
    ) {
        let mut acc = [[V::splat(0.0); W]; C];
        for (i, page) in pages.iter().enumerate() {
            let values = self.args.kv.head_rows(*page, self.args.layer, Half::Value, self.head);
            for slot in 0..(count - i * PAGE_TOKENS).min(PAGE_TOKENS) {
                let mut vs = [V::splat(0.0); W];
                for w in 0..W {
                    // SAFETY: eight elements from d + 8 w on lie in the slot's vector.
                    vs[w] = unsafe { E::load(values.add((slot * self.d + d + 8 * w) * E::SIZE)) };
                }
                for c in 0..C {
                    let weight = V::splat(self.scores[c][i * PAGE_TOKENS + slot]);
                    for w in 0..W {
                        acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                    }
                }
            }
        }
        for c in 0..C {
            let out = &mut self.out[(at + c) * self.d + d..][..8 * W];
            let (a, b) = (V::splat(fold[c].0), V::splat(fold[c].1));
            for w in 0..W {
                let p = out[8 * w..8 * w + 8].as_mut_ptr();
                // SAFETY: the slice at `p` holds eight elements.
                unsafe {
                    if first {
                        acc[c][w].store(p);
                    } else {
                        V::load(p).mul_add(a, acc[c][w].mul(b)).store(p);
                    }
                }
            }
        }
    }

    /// [`Unit::value`] for one element `d`: head dimensions that are no multiple of 8.
    #[inline(always)]
    fn value_one<E: Elem, const C: usize>(
        &mut self,
        at: usize,
        d: usize,
        pages: &[u32],
        count: usize,
        first: bool,
        fold: &[(f32, f32); C],
    ) {
        for c in 0..C {
            let mut acc = 0.0f32;
            for (i, page) in pages.iter().enumerate() {
                let values = self.args.kv.head_rows(*page, self.args.layer, Half::Value, self.head);
                for slot in 0..(count - i * PAGE_TOKENS).min(PAGE_TOKENS) {
                    // SAFETY: element d lies in the slot's vector.
                    let v = unsafe { E::load_one(values.add((slot * self.d + d) * E::SIZE)) };
                    acc = self.scores[c][i * PAGE_TOKENS + slot].mul_add(v, acc);
                }
            }
            let out = &mut self.out[(at + c) * self.d + d];
            *out = if first { acc } else { out.mul_add(fold[c].0, acc * fold[c].1) };
        }
    }
}

impl State {
    /// Takes a segment in; returns the factors of the old and of the new output.
    #[inline(always)]
    fn fold(&mut self, segment: &State) -> (f32, f32) {
        let max = if self.max > segment.max { self.max } else { segment.max };
        let (a, b) = (exp(self.max - max), exp(segment.max - max));
        self.sum = self.sum.mul_add(a, segment.sum * b);
        self.max = max;
        (a, b)
    }
}

/// Turns `count` scores into weights; returns their maximum and the sum of the weights.
#[inline(always)]
fn softmax<V: Lanes>(scores: &mut [f32; SEGMENT_TOKENS], count: usize) -> State {
    let padded = count.next_multiple_of(8);
    scores[count..padded].fill(f32::NEG_INFINITY);
    let mut max = V::splat(f32::NEG_INFINITY);
    for chunk in scores[..padded].chunks_exact(8) {
        // SAFETY: the chunk holds eight scores.
        max = unsafe { V::load(chunk.as_ptr()) }.max(max);
    }
    let max = max.largest();
    let mut sum = V::splat(0.0);
    for chunk in scores[..padded].chunks_exact_mut(8) {
        // SAFETY: the chunk holds eight scores.
        unsafe {
            let weights = exp_lanes(V::load(chunk.as_ptr()).sub(V::splat(max)));
            weights.store(chunk.as_mut_ptr());
            sum = sum.add(weights);
        }
    }
    State { max, sum: sum.sum() }
}
