//! Keys and values of a segment, turned into f32.

use super::{Block, GROUP, Segment, stride};
use crate::cpu::kv::Half;
use crate::cpu::weight::{Elem, with_elem};
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS};

/// Fills keys `[group][element][position of the group]` and values `[position][element]`, with zeros up to the stride.
pub(super) struct Turn<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) segment: Segment<'a>,
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.block.args.kv.layout().dtype, V, self.pages())
    }
}

impl Turn<'_> {
    #[inline(always)]
    fn pages<V: Lanes, E: Elem>(self) {
        let (args, d) = (self.block.args, self.block.args.kv.layout().head_dim);
        for (i, page) in self.segment.pages.iter().enumerate() {
            let at = i * PAGE_TOKENS;
            let rows = |half| args.kv.head_rows(*page, args.layer, half, self.block.head);
            let (keys, values) = (rows(Half::Key), rows(Half::Value));
            // SAFETY: the page holds sixteen vectors of `d` elements each; there is room for a segment of keys, in whole
            // groups, and of values of `stride` f32.
            unsafe {
                let out = self.segment.keys.add(at / GROUP * GROUP * d + at % GROUP);
                turn_keys::<V, E>(keys, d, out);
                turn_keys::<V, E>(keys.add(8 * d * E::SIZE), d, out.add(8));
                for slot in 0..PAGE_TOKENS {
                    let out = self.segment.values.add((at + slot) * stride(d));
                    widen::<V, E>(values.add(slot * d * E::SIZE), d, out, stride(d));
                }
            }
        }
    }
}

/// Element `k` of key `i` of eight goes to `out[k * GROUP + i]`.
///
/// # Safety
/// Eight vectors of `d` elements must be readable at `keys`, one after the other, and `(d - 1) * GROUP + 8` f32
/// writable at `out`.
#[inline(always)]
unsafe fn turn_keys<V: Lanes, E: Elem>(keys: *const u8, d: usize, out: *mut f32) {
    let whole = d / 8 * 8;
    // SAFETY: k + 8 <= d, and k < d.
    unsafe {
        for k in (0..whole).step_by(8) {
            let mut rows = [V::splat(0.0); 8];
            for i in 0..8 {
                rows[i] = E::load(keys.add((i * d + k) * E::SIZE));
            }
            let rows = V::transposed(rows);
            for i in 0..8 {
                rows[i].store(out.add((k + i) * GROUP));
            }
        }
        for k in whole..d {
            for i in 0..8 {
                *out.add(k * GROUP + i) = E::load_one(keys.add((i * d + k) * E::SIZE));
            }
        }
    }
}

/// A vector of `d` elements with zeros up to `stride`.
///
/// # Safety
/// `d` elements must be readable at `from`, and `stride >= d` f32 writable at `out`.
#[inline(always)]
unsafe fn widen<V: Lanes, E: Elem>(from: *const u8, d: usize, out: *mut f32, stride: usize) {
    let whole = d / 8 * 8;
    // SAFETY: k + 8 <= d, and k < d or k < stride.
    unsafe {
        for k in (0..whole).step_by(8) {
            E::load::<V>(from.add(k * E::SIZE)).store(out.add(k));
        }
        for k in whole..d {
            *out.add(k) = E::load_one(from.add(k * E::SIZE));
        }
        for k in d..stride {
            *out.add(k) = 0.0;
        }
    }
}
