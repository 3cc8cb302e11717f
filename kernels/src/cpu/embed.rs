//! Embedding gather.

use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, Lanes, WeightRef, dispatch, part_count, part_range};

/// `out[t] = table[ids[t]]`, converted to f32; `out` is `[T, H]` with `H = table.cols()`.
///
/// # Panics
/// When an id lies beyond the table or the lengths contradict each other.
pub fn embed(ctx: Ctx<'_>, table: WeightRef<'_>, ids: &[u32], out: &mut [f32]) {
    let h = table.cols();
    assert_eq!(out.len(), ids.len() * h, "out of an embedding");
    let parts = part_count(&ctx, ids.len(), out.len());
    let out = SharedMut::new(out);
    ctx.workers.run(parts, &|part| {
        for t in part_range(ids.len(), parts, part) {
            let id = ids[t] as usize;
            assert!(id < table.rows(), "token id {id}, the table has {} rows", table.rows());
            // SAFETY: row t belongs to this part alone.
            let out = unsafe { out.part(t * h, h) };
            dispatch(ctx.isa, Row { weights: table.row_range(id..id + 1), out });
        }
    });
}

struct Row<'a> {
    weights: WeightRef<'a>,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.weights.dtype(), V, self.copy())
    }
}

impl Row<'_> {
    #[inline(always)]
    fn copy<V: Lanes, E: Elem>(self) {
        let w = self.weights.data().as_ptr();
        let whole = self.out.len() / 8 * 8;
        let mut i = 0;
        while i < whole {
            // SAFETY: i + 8 <= H elements of both.
            unsafe { E::load::<V>(w.add(i * E::SIZE)).store(self.out.as_mut_ptr().add(i)) };
            i += 8;
        }
        while i < self.out.len() {
            // SAFETY: i is below the H elements of the weight row.
            self.out[i] = unsafe { E::load_one(w.add(i * E::SIZE)) };
            i += 1;
        }
    }
}
