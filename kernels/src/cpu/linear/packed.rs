//! Products of many activations: a block of weight rows by a stretch of K is turned into f32 once, in the order in which
//! tiles read it, and all activations of a panel pass by it.
//!
//! A stretch that ends inside a segment of K leaves its accumulators in memory and the next one takes them up again, so
//! the order of a product is the same for any length of the stretch. Turning and multiplying are compiled apart: only the
//! first depends on the type of the weights.

use std::ops::Range;

use super::part::{Ahead, Part, ROWS, Rows, WIDE, join, tile_range};
use super::stored::{Columns, Stored, with_stored};
use crate::cpu::pair::{Pair, tile_sums, twice_part};
use crate::cpu::weight::Elem;
use crate::cpu::{Kernel, Lanes, Registers, dispatch};

/// Most elements of K in a stretch: with the rows of a block 20 KiB of f32, which the first-level cache holds beside a tile
/// of activations (15 KiB).
const STRETCH: usize = 640;
/// Most activations in a panel.
const PANEL: usize = 96;
/// Fewest, however long they are.
const PANEL_MIN: usize = 24;
/// Bytes of activations that the second-level cache keeps while weights pass by.
const PANEL_BYTES: usize = 512 * 1024;

/// What a thread needs meanwhile, on its stack.
#[repr(align(64))]
struct Scratch {
    /// `[group][step of 8][pair][16]`, see [`Pair::read`]; a group is the pairs of a register tile.
    weights: [f32; ROWS * STRETCH],
    /// Accumulators `[activation][row][8]` of a segment that goes on.
    carried: [f32; PANEL * ROWS * 8],
    /// What is joined already of each output, `[activation][pair][row]`.
    sums: [[[f32; 2]; ROWS / 2]; PANEL],
    /// The third of four segments, until the fourth is there.
    held: [[[f32; 2]; ROWS / 2]; PANEL],
}

/// Where a stretch lies in a product.
#[derive(Clone, Copy)]
struct Stretch {
    from: usize,
    to: usize,
    /// Index of its segment.
    segment: usize,
    /// It begins or ends the segment.
    begins: bool,
    ends: bool,
}

impl Part<'_> {
    /// All outputs.
    pub(super) fn packed(&self) {
        let mut scratch = Scratch {
            weights: [0.0; ROWS * STRETCH],
            carried: [0.0; PANEL * ROWS * 8],
            sums: [[[0.0; 2]; ROWS / 2]; PANEL],
            held: [[[0.0; 2]; ROWS / 2]; PANEL],
        };
        let most = (PANEL_BYTES / (4 * self.w.cols())).clamp(PANEL_MIN, PANEL);
        let panels = self.t.div_ceil(most);
        for i in 0..panels {
            let panel = tile_range(self.t, panels, i);
            for row in (self.first..self.end).step_by(ROWS) {
                self.packed_block(row, &panel, &mut scratch);
            }
        }
    }

    /// The weight rows from `row` on against the activations of a panel.
    fn packed_block(&self, row: usize, panel: &Range<usize>, scratch: &mut Scratch) {
        let k = self.w.cols();
        let (borders, segments) = self.reduce.borders(k);
        for segment in 0..segments {
            let (first, end) = (borders[segment], borders[segment + 1]);
            // Stretches of about equal length: a short one costs as much beside its products as a long one.
            let count = (end - first).div_ceil(STRETCH).max(1);
            let len = (end - first).div_ceil(count).next_multiple_of(16);
            let mut at = first;
            loop {
                let to = end.min(at + len);
                let stretch = Stretch { from: at, to, segment, begins: at == first, ends: to == end };
                dispatch(self.isa, Pack { part: self, row, stretch, packed: &mut scratch.weights });
                dispatch(self.isa, Tiles { part: self, row, panel, stretch, scratch });
                if to == end {
                    break;
                }
                at = to;
            }
        }
        let values = scratch.sums[..panel.len()].as_flattened_mut().as_flattened_mut();
        self.finish(Rows { first: row, step: 1 }, panel.start, ROWS, values);
    }
}

/// Turns a stretch of a block into f32, with zeros behind the last element. The last row of the part stands for rows
/// that are not there; nobody reads what becomes of them.
struct Pack<'a> {
    part: &'a Part<'a>,
    row: usize,
    stretch: Stretch,
    packed: &'a mut [f32; ROWS * STRETCH],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_stored!(self.part.w, V, self.pairs())
    }
}

impl Pack<'_> {
    #[inline(always)]
    fn pairs<V: Lanes, S: Stored>(self) {
        let pairs = if V::REGISTERS == Registers::ThirtyTwo { 4 } else { 1 };
        let columns = Columns { from: self.stretch.from, to: self.stretch.to };
        let row = |i: usize| self.part.w.address((self.row + i).min(self.part.end - 1));
        for pair in 0..ROWS / 2 {
            let at = pair / pairs * pairs * 2 * STRETCH + pair % pairs * 16;
            let out = self.packed[at..].as_mut_ptr();
            // SAFETY: both rows are there and have the columns; the steps of the pair, at most STRETCH / 8 and 16 * pairs
            // values apart, lie in `packed`.
            unsafe { S::pack_pair::<V>(row(2 * pair), row(2 * pair + 1), columns, out, 16 * pairs) };
        }
    }
}

/// Writes the steps of a pair of rows, `apart` values from one to the next.
///
/// # Safety
/// `len` elements must be readable at `a` and at `b`; `len / 8` steps, rounded up, must be writable at `out`.
#[inline(always)]
pub(super) unsafe fn pack_pair<V: Lanes, E: Elem>(
    a: *const u8,
    b: *const u8,
    len: usize,
    out: *mut f32,
    apart: usize,
) {
    let mut k = 0;
    // SAFETY: k stays below `len`, k / 8 below the number of steps.
    unsafe {
        while k + 16 <= len {
            let [first, second] = E::load_pair_twice::<V::Pair>(a.add(k * E::SIZE), b.add(k * E::SIZE));
            first.write(out.add(k / 8 * apart));
            second.write(out.add((k / 8 + 1) * apart));
            k += 16;
        }
        while k < len {
            let n = (len - k).min(8);
            let pair = E::load_pair_part::<V::Pair>(a.add(k * E::SIZE), b.add(k * E::SIZE), n);
            pair.write(out.add(k / 8 * apart));
            k += n;
        }
    }
}

/// The packed weights against the activations of a panel: each tile of activations meets all groups while the
/// first-level cache has it.
struct Tiles<'a> {
    part: &'a Part<'a>,
    row: usize,
    panel: &'a Range<usize>,
    stretch: Stretch,
    scratch: &'a mut Scratch,
}

/// One register tile.
#[derive(Clone, Copy)]
struct Tile {
    /// The first activation, counted from the panel's first.
    at: usize,
    group: usize,
    ahead: Ahead,
}

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let groups = if V::REGISTERS == Registers::ThirtyTwo { 1 } else { 4 };
        let count = self.panel.len().div_ceil(if V::WIDE_TILES { WIDE } else { 1 });
        let ahead = self.ahead();
        for i in 0..count {
            let range = tile_range(self.panel.len(), count, i);
            for group in 0..groups {
                let tile =
                    Tile { at: range.start, group, ahead: ahead.share(count * groups, i * groups + group) };
                match (V::REGISTERS, range.len()) {
                    (Registers::ThirtyTwo, 1) => self.tile::<V, 4, 1>(tile),
                    (Registers::ThirtyTwo, 2) => self.tile::<V, 4, 2>(tile),
                    (Registers::ThirtyTwo, 3) => self.tile::<V, 4, 3>(tile),
                    (Registers::ThirtyTwo, 4) => self.tile::<V, 4, 4>(tile),
                    (Registers::ThirtyTwo, 5) => self.tile::<V, 4, 5>(tile),
                    (Registers::ThirtyTwo, _) => self.tile::<V, 4, WIDE>(tile),
                    (Registers::Sixteen, 1) => self.tile::<V, 1, 1>(tile),
                    (Registers::Sixteen, 2) => self.tile::<V, 1, 2>(tile),
                    (Registers::Sixteen, 3) => self.tile::<V, 1, 3>(tile),
                    (Registers::Sixteen, 4) => self.tile::<V, 1, 4>(tile),
                    (Registers::Sixteen, 5) => self.tile::<V, 1, 5>(tile),
                    (Registers::Sixteen, _) => self.tile::<V, 1, WIDE>(tile),
                    (Registers::Unknown, _) => self.tile::<V, 1, 1>(tile),
                }
            }
        }
    }
}

impl Tiles<'_> {
    /// The next stretch: of these rows, or the first one of the next rows.
    fn ahead(&self) -> Ahead {
        let (w, to) = (&self.part.w, self.stretch.to);
        let at = if to < w.cols() {
            w.address(self.row).wrapping_add(w.offset(to))
        } else {
            w.address(self.row + ROWS)
        };
        Ahead { at, stride: w.apart(), rows: ROWS }
    }

    /// One register tile of `R` pairs of weight rows by `C` activations.
    #[inline(always)]
    fn tile<V: Lanes, const R: usize, const C: usize>(&mut self, tile: Tile) {
        let (k, stretch) = (self.part.w.cols(), self.stretch);
        let mut acc = [[V::Pair::zero(); C]; R];
        let start = tile.at * ROWS * 8 + tile.group * 16 * R;
        let carried = self.scratch.carried[start..start + (C - 1) * ROWS * 8 + 16 * R].as_mut_ptr();
        if !stretch.begins {
            for c in 0..C {
                for r in 0..R {
                    // SAFETY: the slice at `carried` holds C times R pairs, ROWS lanes of eight apart.
                    acc[r][c] = unsafe { V::Pair::read(carried.add(c * ROWS * 8 + 16 * r)) };
                }
            }
        }
        // SAFETY: the packed weights of the group hold the stretch, and the activations of the panel have K >= `to`
        // elements each.
        unsafe {
            let w = self.scratch.weights[tile.group * R * 2 * STRETCH..].as_ptr();
            let x = self.part.x.as_ptr().add((self.panel.start + tile.at) * k + stretch.from);
            let size = self.part.w.size();
            multiply::<V, R, C>(&mut acc, w, x, k, stretch.to - stretch.from, tile.ahead, size);
        }
        if stretch.ends {
            let (group, sums) = (tile.group * R, tile_sums(&acc));
            for c in 0..C {
                let at = tile.at + c;
                let joined = self.scratch.sums[at][group..group + R].as_flattened_mut();
                let held = self.scratch.held[at][group..group + R].as_flattened_mut();
                join(stretch.segment, sums[c].as_flattened(), joined, held);
            }
        } else {
            for c in 0..C {
                for r in 0..R {
                    // SAFETY: as above.
                    unsafe { acc[r][c].write(carried.add(c * ROWS * 8 + 16 * r)) };
                }
            }
        }
    }
}

/// Adds the products of `R` pairs of packed weight rows and `C` activations over `len` elements.
///
/// # Safety
/// `len / 8` steps of packed weights, rounded up, must be readable at `w`, and `C` rows of `len` f32, `stride` elements
/// apart, at `x`.
#[inline(always)]
unsafe fn multiply<V: Lanes, const R: usize, const C: usize>(
    acc: &mut [[V::Pair; C]; R],
    w: *const f32,
    x: *const f32,
    stride: usize,
    len: usize,
    ahead: Ahead,
    size: usize,
) {
    let mut sums = *acc;
    let mut xs = [x; C];
    for c in 1..C {
        xs[c] = x.wrapping_add(c * stride);
    }
    for i in 0..len / 8 {
        if i.is_multiple_of(4) {
            ahead.ask::<V>(8 * i, size);
        }
        let mut ws = [V::Pair::zero(); R];
        for r in 0..R {
            // SAFETY: step i lies in the packed weights.
            ws[r] = unsafe { V::Pair::read(w.add((i * R + r) * 16)) };
        }
        for c in 0..C {
            // SAFETY: 8 * i + 8 <= len.
            let xs = unsafe { V::Pair::twice(xs[c].add(8 * i)) };
            for r in 0..R {
                sums[r][c] = ws[r].mul_add(xs, sums[r][c]);
            }
        }
    }
    let whole = len / 8 * 8;
    if whole < len {
        for c in 0..C {
            // SAFETY: len - whole elements are left in each activation.
            let xs: V::Pair = unsafe { twice_part(xs[c].add(whole), len - whole) };
            for r in 0..R {
                // SAFETY: the last step lies in the packed weights.
                let ws = unsafe { V::Pair::read(w.add((len / 8 * R + r) * 16)) };
                sums[r][c] = ws.mul_add(xs, sums[r][c]);
            }
        }
    }
    *acc = sums;
}
