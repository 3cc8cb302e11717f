//! Keys and values of a segment, turned into f32.

use super::{Block, GROUP, Segment, stride};
use crate::cpu::kv::Half;
use crate::cpu::pair::Pair;
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
            // SAFETY: the page holds sixteen vectors of `d` elements each, keys side by side; there is room for a segment of
            // keys, in whole groups, and of values of `stride` f32.
            unsafe {
                let out = self.segment.keys.add(at / GROUP * GROUP * d + at % GROUP);
                for k in 0..d {
                    let element = keys.add(k * PAGE_TOKENS * E::SIZE);
                    E::load_pair::<V::Pair>(element, element.add(8 * E::SIZE)).write(out.add(k * GROUP));
                }
                for slot in 0..PAGE_TOKENS {
                    let out = self.segment.values.add((at + slot) * stride(d));
                    widen::<V, E>(values.add(slot * d * E::SIZE), d, out, stride(d));
                }
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
