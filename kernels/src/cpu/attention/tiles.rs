//! Scores and weighted sums of values: some queries against one segment of the cache in registers.

use std::ops::Range;

use super::block::QUERIES;
use super::{AttnArgs, LANES, SEGMENT_TOKENS};
use crate::cpu::kv::Half;
use crate::cpu::pair::Pair;
use crate::cpu::weight::Elem;
use crate::cpu::{Lanes, PAGE_TOKENS, Registers};

/// How far prefetches run ahead: the memory takes longer to answer than a page of one head to be computed. On Zen 5 both 6
/// and 20 KiB are a tenth slower over 4,096 positions.
const AHEAD_BYTES: usize = 10 * 1024;
/// Fewest pages of a head that they run ahead.
const PAGES_AHEAD: usize = 3;

type Scores = [[f32; SEGMENT_TOKENS]; QUERIES];

/// How many pages of `bytes` bytes of a head prefetches run ahead.
pub(super) fn pages_ahead(bytes: usize) -> usize {
    (AHEAD_BYTES / bytes).max(PAGES_AHEAD)
}

/// `C` queries over a segment.
pub(super) struct Tile<'a, const C: usize> {
    pub(super) args: &'a AttnArgs<'a>,
    pub(super) head: usize,
    pub(super) pages: &'a [u32],
    /// The pages behind the segment.
    pub(super) next: &'a [u32],
    /// Positions of the segment that each query sees, ascending.
    pub(super) seen: [usize; C],
    /// Elements of a vector.
    pub(super) d: usize,
    /// `d` readable values each.
    pub(super) q: [*const f32; C],
    /// `d` writable values each.
    pub(super) out: [*mut f32; C],
    /// Pages that prefetches run ahead: the first tile that passes a segment prefetches, others do not.
    pub(super) ahead: Option<usize>,
}

impl<const C: usize> Tile<'_, C> {
    fn rows(&self, page: u32, half: Half) -> *const u8 {
        self.args.kv.head_rows(page, self.args.layer, half, self.head)
    }

    /// What is read so many pages after page `index` of this half, if it is to be prefetched: all keys come before all
    /// values.
    #[inline(always)]
    fn ahead(&self, index: usize, half: Half) -> Option<*const u8> {
        let at = index + self.ahead?;
        let (pages, half) = match (at.checked_sub(self.pages.len()), half) {
            (None, half) => return Some(self.rows(self.pages[at], half)),
            (Some(at), Half::Key) => (self.pages.get(at), Half::Value),
            (Some(at), Half::Value) => (self.next.get(at), Half::Key),
        };
        pages.map(|page| self.rows(*page, half))
    }

    /// Fills `scores[c][..seen[c]]`; what lies behind, up to the end of four pages, is meaningless.
    #[inline(always)]
    pub(super) fn score<V: Lanes, E: Elem>(&self, scores: &mut Scores) {
        // As many accumulators as there are registers for, and no fewer than hide the latency of a multiply-add.
        match (V::REGISTERS, C) {
            (Registers::ThirtyTwo, 1) => self.score_by::<V, E, 4, 4>(scores),
            (Registers::ThirtyTwo, 2 | 3) => self.score_by::<V, E, 4, 2>(scores),
            (Registers::ThirtyTwo, _) => self.score_by::<V, E, 4, 1>(scores),
            (Registers::Sixteen, 1) => self.score_by::<V, E, 2, 2>(scores),
            (Registers::Sixteen | Registers::Unknown, _) => self.score_by::<V, E, 2, 1>(scores),
        }
    }

    /// `R` pages and `L` lanes at a time.
    #[inline(always)]
    fn score_by<V: Lanes, E: Elem, const L: usize, const R: usize>(&self, scores: &mut Scores) {
        let (last, scale) = (self.pages.len() - 1, V::Pair::splat(self.args.scale));
        for i in (0..=last).step_by(R) {
            let mut keys = [Keys { at: std::ptr::null(), next: None }; R];
            for r in 0..R {
                // The last page stands for those that are not there.
                let page = (i + r).min(last);
                keys[r] =
                    Keys { at: self.rows(self.pages[page], Half::Key), next: self.ahead(i + r, Half::Key) };
            }
            // SAFETY: each page has `d` elements of sixteen keys of this head, and q holds `d` values each.
            let sums: [[V::Pair; C]; R] = unsafe { dots::<V, E, L, R, C>(&keys, &self.q, self.d) };
            for r in 0..R {
                for c in 0..C {
                    let out = &mut scores[c][(i + r) * PAGE_TOKENS..][..PAGE_TOKENS];
                    // SAFETY: `out` holds sixteen values.
                    unsafe { sums[r][c].mul(scale).write(out.as_mut_ptr()) };
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
            for slot in 0..self.seen[0].saturating_sub(i * PAGE_TOKENS).min(PAGE_TOKENS) {
                if let Some(next) = next {
                    ask::<V>(next.wrapping_add(slot * row + d * E::SIZE), 16 * W * E::SIZE);
                }
                // SAFETY: sixteen elements from d + 16 w on lie in the slot's vector.
                let vs = unsafe { sixteens::<V, E, W>(values.add(slot * row + d * E::SIZE)) };
                for c in 0..C {
                    let weight = V::Pair::splat(scores[c][i * PAGE_TOKENS + slot]);
                    for w in 0..W {
                        acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                    }
                }
            }
        }
        // Through memory: an index that the compiler does not know would keep all accumulators there, in the loop above too.
        let mut sums = [[[0.0f32; 16]; W]; C];
        for c in 0..C {
            for w in 0..W {
                // SAFETY: there are sixteen.
                unsafe { acc[c][w].write(sums[c][w].as_mut_ptr()) };
            }
        }
        for c in 1..C {
            self.later::<V, E, W>(d, self.seen[0]..self.seen[c], &scores[c], &mut sums[c]);
        }
        for c in 0..C {
            for w in 0..W {
                // SAFETY: sixteen elements from d + 16 w on lie in the query's `d` values.
                unsafe {
                    let (sum, out) = (V::Pair::read(sums[c][w].as_ptr()), self.out[c].add(d + 16 * w));
                    match fold {
                        None => sum.write(out),
                        Some(fold) => {
                            let (a, b) = (V::Pair::splat(fold[c].0), V::Pair::splat(fold[c].1));
                            V::Pair::read(out).mul_add(a, sum.mul(b)).write(out);
                        }
                    }
                }
            }
        }
    }

    /// Adds the weighted values of positions that not all queries see.
    #[inline(always)]
    fn later<V: Lanes, E: Elem, const W: usize>(
        &self,
        d: usize,
        positions: Range<usize>,
        weights: &[f32; SEGMENT_TOKENS],
        sums: &mut [[f32; 16]; W],
    ) {
        for j in positions {
            let values = self.rows(self.pages[j / PAGE_TOKENS], Half::Value);
            let weight = V::Pair::splat(weights[j]);
            // SAFETY: sixteen elements from d + 16 w on lie in the slot's vector, and in a row of sums.
            unsafe {
                let slot = values.add((j % PAGE_TOKENS * self.d + d) * E::SIZE);
                let vs = sixteens::<V, E, W>(slot);
                for w in 0..W {
                    let sum = sums[w].as_mut_ptr();
                    weight.mul_add(vs[w], V::Pair::read(sum)).write(sum);
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
                for slot in 0..self.seen[c].saturating_sub(i * PAGE_TOKENS).min(PAGE_TOKENS) {
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

/// `16 W` elements.
///
/// # Safety
/// They must be readable at `p`.
#[inline(always)]
unsafe fn sixteens<V: Lanes, E: Elem, const W: usize>(p: *const u8) -> [V::Pair; W] {
    let mut vs = [V::Pair::zero(); W];
    for w in 0..W {
        // SAFETY: as the caller grants.
        vs[w] = unsafe {
            let p = p.add(16 * w * E::SIZE);
            E::load_pair(p, p.add(8 * E::SIZE))
        };
    }
    vs
}

/// Asks for the lines of `bytes` bytes from `at` on.
#[inline(always)]
fn ask<V: Lanes>(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        V::prefetch(at.wrapping_add(64 * line));
    }
}

/// The keys of a page, and what is to be prefetched meanwhile.
#[derive(Clone, Copy)]
struct Keys {
    at: *const u8,
    next: Option<*const u8>,
}

/// The dot products of the sixteen keys of each of `R` pages with `C` queries. A register holds one element of sixteen keys:
/// the eight lanes of a dot product are eight registers, of which `L`, 2 or 4, are computed at a time, and joining them takes
/// seven additions.
///
/// # Safety
/// Pages must hold `d` elements of sixteen keys, `[element][slot]`, and each query `d` f32.
#[inline(always)]
unsafe fn dots<V: Lanes, E: Elem, const L: usize, const R: usize, const C: usize>(
    keys: &[Keys; R],
    q: &[*const f32; C],
    d: usize,
) -> [[V::Pair; C]; R] {
    let mut halves = [[[V::Pair::zero(); C]; R]; 2];
    for half in 0..2 {
        for group in 0..4 / L {
            let first = 4 * half + L * group;
            // SAFETY: as the caller grants.
            let acc: [[[V::Pair; C]; R]; L] = unsafe {
                let mut lanes = [0; L];
                lanes.copy_from_slice(&LANES[first..first + L]);
                some_lanes::<V, E, L, R, C>(keys, q, d, lanes, first)
            };
            for r in 0..R {
                for c in 0..C {
                    let mut sum = acc[0][r][c].add(acc[1][r][c]);
                    if L == 4 {
                        sum = sum.add(acc[2 % L][r][c].add(acc[3 % L][r][c]));
                    }
                    halves[half][r][c] = if group == 0 { sum } else { halves[half][r][c].add(sum) };
                }
            }
        }
    }
    let [mut sums, odd] = halves;
    for r in 0..R {
        for c in 0..C {
            sums[r][c] = sums[r][c].add(odd[r][c]);
        }
    }
    sums
}

/// Accumulators `[lane][page][query]` of some lanes, `first` after those that had their turn: lane `l` takes the elements
/// `l, l + 8, ..`.
///
/// # Safety
/// See [`dots`]; lanes are below eight.
#[inline(always)]
unsafe fn some_lanes<V: Lanes, E: Elem, const L: usize, const R: usize, const C: usize>(
    keys: &[Keys; R],
    q: &[*const f32; C],
    d: usize,
    lanes: [usize; L],
    first: usize,
) -> [[[V::Pair; C]; R]; L] {
    let mut acc = [[[V::Pair::zero(); C]; R]; L];
    let mut k = 0;
    while k < d {
        for r in 0..R {
            if let Some(next) = keys[r].next {
                // Eight elements have as many parts as lanes take turns; each turn asks for one of them.
                let element = PAGE_TOKENS * E::SIZE;
                ask::<V>(next.wrapping_add((k + first) * element), L * element);
            }
        }
        for l in 0..L {
            let k = k + lanes[l];
            if k >= d {
                continue;
            }
            for r in 0..R {
                // SAFETY: k < d.
                let sixteen: V::Pair = unsafe {
                    let element = keys[r].at.add(k * PAGE_TOKENS * E::SIZE);
                    E::load_pair(element, element.add(8 * E::SIZE))
                };
                for c in 0..C {
                    // SAFETY: k < d.
                    let x = V::Pair::splat(unsafe { *q[c].add(k) });
                    acc[l][r][c] = sixteen.mul_add(x, acc[l][r][c]);
                }
            }
        }
        k += 8;
    }
    acc
}
