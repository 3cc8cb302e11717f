//! Scalar twins: every operation as the plainest loops that state its order, on one thread, with a
//! contiguous cache of one row. The fast kernels are compared with them to the bit, and reference
//! loops compute whole models with them.

mod attention;
mod layers;

pub use attention::{RowCache, attention};
pub use layers::{add_rms_norm, embed, layer_norm, linear, qk_norm_rope, rms_norm, silu_mul};

/// The dot product of the [module text](super): 8 accumulators, fused multiply-adds, zero padding,
/// a fixed tree. `a(k)` is the stored operand and `b(k)` the f32 one.
pub fn dot(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    for k in 0..len.next_multiple_of(8) {
        let (x, y) = if k < len { (a(k), b(k)) } else { (0.0, 0.0) };
        lanes[k % 8] = x.mul_add(y, lanes[k % 8]);
    }
    tree(&lanes)
}

/// `((a0+a4)+(a2+a6)) + ((a1+a5)+(a3+a7))`.
fn tree(a: &[f32; 8]) -> f32 {
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}
