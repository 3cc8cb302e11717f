//! Scores and weighted sums of values: some queries against one segment of the cache in registers.

use super::block::QUERIES;
use super::{AttnArgs, SEGMENT_TOKENS};
use crate::cpu::kv::Half;
use crate::cpu::pair::{Pair, tile_sums, twice_part};
use crate::cpu::weight::Elem;
use crate::cpu::{Lanes, PAGE_TOKENS, Registers};

/// How far prefetches run ahead: the memory takes longer to answer than a page of one head to be computed.
const PAGES_AHEAD: usize = 3;

type Scores = [[f32; SEGMENT_TOKENS]; QUERIES];

/// Whether a tile prefetches: the first one that passes a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    On,
    Off,
}

/// `C` queries over a segment.
pub(super) struct Tile<'a, const C: usize> {
    pub(super) args: &'a AttnArgs<'a>,
    pub(super) head: usize,
    pub(super) pages: &'a [u32],
    /// The pages behind the segment.
    pub(super) next: &'a [u32],
    /// Positions that are seen.
    pub(super) count: usize,
    /// Elements of a vector.
    pub(super) d: usize,
    /// `d` readable values each.
    pub(super) q: [*const f32; C],
    /// `d` writable values each.
    pub(super) out: [*mut f32; C],
    pub(super) ahead: Ahead,
}

impl<const C: usize> Tile<'_, C> {
    fn rows(&self, page: u32, half: Half) -> *const u8 {
        self.args.kv.head_rows(page, self.args.layer, half, self.head)
    }

    /// What is read [`PAGES_AHEAD`] pages after page `index` of this half, if it is to be prefetched: all keys come before
    /// all values.
    #[inline(always)]
    fn ahead(&self, index: usize, half: Half) -> Option<*const u8> {
        if self.ahead == Ahead::Off {
            return None;
        }
        let at = index + PAGES_AHEAD;
        let (pages, half) = match (at.checked_sub(self.pages.len()), half) {
            (None, half) => return Some(self.rows(self.pages[at], half)),
            (Some(at), Half::Key) => (self.pages.get(at), Half::Value),
            (Some(at), Half::Value) => (self.next.get(at), Half::Key),
        };
        pages.map(|page| self.rows(*page, half))
    }

    /// Fills `scores[c][..count]`; what lies behind, up to the end of a page, is meaningless.
    #[inline(always)]
    pub(super) fn score<V: Lanes, E: Elem>(&self, scores: &mut Scores) {
        match V::REGISTERS {
            Registers::Unknown => self.score_by::<V, E, 1>(scores),
            Registers::Sixteen => self.score_by::<V, E, 2>(scores),
            Registers::ThirtyTwo => self.score_by::<V, E, 4>(scores),
        }
    }

    /// In tiles of `R` pairs of keys.
    #[inline(always)]
    fn score_by<V: Lanes, E: Elem, const R: usize>(&self, scores: &mut Scores) {
        let row = self.d * E::SIZE;
        for (i, page) in self.pages.iter().enumerate() {
            let keys = self.rows(*page, Half::Key);
            let next = self.ahead(i, Half::Key);
            let slots = (self.count - i * PAGE_TOKENS).min(PAGE_TOKENS);
            for slot in (0..slots).step_by(2 * R) {
                if let Some(rows) = next {
                    ask::<V>(rows.wrapping_add(slot * row), 2 * R * row);
                }
                // SAFETY: 2 R slots of this head from `slot` on lie in the page; q holds `d` values each.
                let acc: [[V::Pair; C]; R] =
                    unsafe { dots::<V, E, R, C>(keys.add(slot * row), &self.q, self.d) };
                let all = tile_sums(&acc);
                for c in 0..C {
                    let sums = all[c];
                    let out = &mut scores[c][i * PAGE_TOKENS + slot..][..2 * R];
                    for r in 0..R {
                        out[2 * r] = sums[r][0] * self.args.scale;
                        out[2 * r + 1] = sums[r][1] * self.args.scale;
                    }
                }
            }
        }
    }

    /// The values weighted by `scores`, folded into `out`; without factors `out` is new.
    #[inline(always)]
    pub(super) fn values<V: Lanes, E: Elem>(&self, scores: &Scores, fold: Option<&[(f32, f32); C]>) {
        let mut d = 0;
        if V::REGISTERS == Registers::ThirtyTwo {
            while d + 64 <= self.d {
                self.value::<V, E, 4>(d, scores, fold);
                d += 64;
            }
        }
        if V::WIDE_TILES {
            while d + 32 <= self.d {
                self.value::<V, E, 2>(d, scores, fold);
                d += 32;
            }
        }
        while d + 16 <= self.d {
            self.value::<V, E, 1>(d, scores, fold);
            d += 16;
        }
        while d < self.d {
            self.value_one::<E>(d, scores, fold);
            d += 1;
        }
    }

    /// Output elements `d .. d + 16 W`.
    #[inline(always)]
    fn value<V: Lanes, E: Elem, const W: usize>(
        &self,
        d: usize,
        scores: &Scores,
        fold: Option<&[(f32, f32); C]>,
    ) {
        let mut acc = [[V::Pair::zero(); W]; C];
        let row = self.d * E::SIZE;
        for (i, page) in self.pages.iter().enumerate() {
            let values = self.rows(*page, Half::Value);
            let next = self.ahead(i, Half::Value);
            for slot in 0..(self.count - i * PAGE_TOKENS).min(PAGE_TOKENS) {
                if let Some(next) = next {
                    ask::<V>(next.wrapping_add(slot * row + d * E::SIZE), 16 * W * E::SIZE);
                }
                let mut vs = [V::Pair::zero(); W];
                for w in 0..W {
                    // SAFETY: sixteen elements from d + 16 w on lie in the slot's vector.
                    vs[w] = unsafe {
                        let p = values.add(slot * row + (d + 16 * w) * E::SIZE);
                        E::load_pair(p, p.add(8 * E::SIZE))
                    };
                }
                for c in 0..C {
                    let weight = V::Pair::splat(scores[c][i * PAGE_TOKENS + slot]);
                    for w in 0..W {
                        acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                    }
                }
            }
        }
        for c in 0..C {
            for w in 0..W {
                // SAFETY: sixteen elements from d + 16 w on lie in the query's `d` values.
                unsafe {
                    let out = self.out[c].add(d + 16 * w);
                    match fold {
                        None => acc[c][w].write(out),
                        Some(fold) => {
                            let (a, b) = (V::Pair::splat(fold[c].0), V::Pair::splat(fold[c].1));
                            V::Pair::read(out).mul_add(a, acc[c][w].mul(b)).write(out);
                        }
                    }
                }
            }
        }
    }

    /// [`Tile::value`] for one element `d`: head dimensions that are no multiple of 16.
    #[inline(always)]
    fn value_one<E: Elem>(&self, d: usize, scores: &Scores, fold: Option<&[(f32, f32); C]>) {
        for c in 0..C {
            let mut acc = 0.0f32;
            for (i, page) in self.pages.iter().enumerate() {
                let values = self.rows(*page, Half::Value);
                for slot in 0..(self.count - i * PAGE_TOKENS).min(PAGE_TOKENS) {
                    // SAFETY: element d lies in the slot's vector.
                    let value = unsafe { E::load_one(values.add((slot * self.d + d) * E::SIZE)) };
                    acc = scores[c][i * PAGE_TOKENS + slot].mul_add(value, acc);
                }
            }
            // SAFETY: element d lies in the query's `d` values.
            let out = unsafe { &mut *self.out[c].add(d) };
            *out = fold.map_or(acc, |fold| out.mul_add(fold[c].0, acc * fold[c].1));
        }
    }
}

/// Asks for the lines of `bytes` bytes from `at` on.
#[inline(always)]
fn ask<V: Lanes>(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        V::prefetch(at.wrapping_add(64 * line));
    }
}

/// The accumulators of `R` pairs of keys by `C` queries.
///
/// # Safety
/// `2 R` vectors of `d` elements of type `E` must be readable at `keys`, one after the other, and `d` f32 at each query.
#[inline(always)]
unsafe fn dots<V: Lanes, E: Elem, const R: usize, const C: usize>(
    keys: *const u8,
    q: &[*const f32; C],
    d: usize,
) -> [[V::Pair; C]; R] {
    let mut acc = [[V::Pair::zero(); C]; R];
    let row = d * E::SIZE;
    let mut k = 0;
    while k < d {
        let n = (d - k).min(8);
        let mut qs = [V::Pair::zero(); C];
        for c in 0..C {
            // SAFETY: n elements are left in each query.
            qs[c] = unsafe {
                let p = q[c].add(k);
                if n == 8 { V::Pair::twice(p) } else { twice_part(p, n) }
            };
        }
        for r in 0..R {
            // SAFETY: n elements are left in each key.
            let pair: V::Pair = unsafe {
                let a = keys.add(2 * r * row + k * E::SIZE);
                if n == 8 { E::load_pair(a, a.add(row)) } else { E::load_pair_part(a, a.add(row), n) }
            };
            for c in 0..C {
                acc[r][c] = pair.mul_add(qs[c], acc[r][c]);
            }
        }
        k += n;
    }
    acc
}
