//! The gate of the feed-forward layer.

use super::math::{exp_lanes, silu};
use super::shared::SharedMut;
use super::{Ctx, Kernel, Lanes, dispatch, part_count, part_range};

/// Elements per unit of work.
const CHUNK: usize = 1024;

/// `gate = (gate / (1 + e^-gate)) * up`, element by element.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(ctx: Ctx<'_>, gate: &mut [f32], up: &[f32]) {
    let len = gate.len();
    assert_eq!(up.len(), len, "gate and up");
    let chunks = len.div_ceil(CHUNK);
    let parts = part_count(&ctx, chunks, len * 16);
    let gate = SharedMut::new(gate);
    ctx.workers.run(parts, &|part| {
        let range = part_range(chunks, parts, part);
        let (from, to) = (range.start * CHUNK, (range.end * CHUNK).min(len));
        // SAFETY: chunks of this part belong to it alone.
        let gate = unsafe { gate.part(from, to - from) };
        dispatch(ctx.isa, Slice { gate, up: &up[from..to] });
    });
}

struct Slice<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Slice<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let one = V::splat(1.0);
        let mut gates = self.gate.chunks_exact_mut(8);
        let mut ups = self.up.chunks_exact(8);
        for (gate, up) in gates.by_ref().zip(ups.by_ref()) {
            // SAFETY: both chunks hold eight values.
            unsafe {
                let g = V::load(gate.as_ptr());
                let e = exp_lanes(V::splat(-0.0).sub(g));
                g.div(one.add(e)).mul(V::load(up.as_ptr())).store(gate.as_mut_ptr());
            }
        }
        for (gate, up) in gates.into_remainder().iter_mut().zip(ups.remainder()) {
            *gate = silu(*gate) * up;
        }
    }
}
