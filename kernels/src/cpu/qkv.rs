//! What lies between the q, k, v products and attention, in one pass: norm of each q and k head,
//! rotation by the position, and the write of k and v into the paged cache.

use super::kv::Half;
use super::norm::norm_row;
use super::rope::rotate;
use super::shared::SharedMut;
use super::{
    Ctx, Kernel, KvArena, Lanes, PAGE_TOKENS, RopeTable, StepTokens, WeightRef, dispatch, part_count,
    part_range,
};

/// Arguments of [`qk_norm_rope_kv`]; `Hq` query heads, `Hkv` kv heads of `D` elements.
pub struct QkvArgs<'a> {
    /// Queries `[T, Hq, D]`, changed in place.
    pub q: &'a mut [f32],
    /// Keys `[T, Hkv, D]`, changed in place, then stored.
    pub k: &'a mut [f32],
    /// Values `[T, Hkv, D]`, stored.
    pub v: &'a [f32],
    /// Weight `[1, D]` of the norm of each query head, if the model has one.
    pub q_norm: Option<WeightRef<'a>>,
    /// Weight `[1, D]` of the norm of each key head, if the model has one.
    pub k_norm: Option<WeightRef<'a>>,
    /// Added to the mean square in the norms.
    pub eps: f32,
    /// Rotation per position.
    pub rope: &'a RopeTable,
    /// Whose the tokens are.
    pub tokens: &'a StepTokens<'a>,
    /// Layer of the cache.
    pub layer: usize,
}

/// Norm (order of [`super::rms_norm`]), rotation (`fma(a, cos, -(b * sin))`, `fma(b, cos, a * sin)`)
/// and cache write of all tokens, in the order of the tokens.
///
/// # Panics
/// When lengths contradict each other, or a position or page does not exist.
pub fn qk_norm_rope_kv(ctx: Ctx<'_>, args: QkvArgs<'_>, kv: &mut KvArena) {
    let QkvArgs { q, k, v, q_norm, k_norm, eps, rope, tokens, layer } = args;
    let t = tokens.len();
    let (d, kv_heads) = (kv.layout().head_dim, kv.layout().kv_heads);
    if t == 0 {
        return;
    }
    assert_eq!(rope.head_dim(), d, "head_dim of the rotation table and the cache");
    assert!(k.len() == t * kv_heads * d && v.len() == k.len(), "k and v of {} elements, T {t}", k.len());
    assert!(q.len() % k.len() == 0, "q of {} elements, k of {}", q.len(), k.len());
    let group = q.len() / k.len() * d;
    let parts = part_count(&ctx, kv_heads, (q.len() + 2 * k.len()) * 4);
    let (q, k) = (SharedMut::new(q), SharedMut::new(k));
    let kv: &KvArena = kv;
    // Cut by heads, not by tokens: parts then never meet in the cache, whatever the page tables say.
    ctx.workers.run(parts, &|part| {
        for token in 0..t {
            let position = tokens.positions[token] as usize;
            let page = tokens.pages_of(token)[position / PAGE_TOKENS];
            let (cos, sin) = rope.at(position);
            for head in part_range(kv_heads, parts, part) {
                let at = token * kv_heads + head;
                // SAFETY: this head of q and k belongs to this part alone.
                let (q, k) = unsafe { (q.part(at * group, group), k.part(at * d, d)) };
                dispatch(ctx.isa, Heads { x: q, d, norm: q_norm, eps, cos, sin });
                dispatch(ctx.isa, Heads { x: k, d, norm: k_norm, eps, cos, sin });
                let slot = position % PAGE_TOKENS;
                // SAFETY: the operation borrows the arena mutably, and this head of it belongs to
                // this part alone.
                unsafe {
                    kv.store(page, layer, Half::Key, head, slot, k);
                    kv.store(page, layer, Half::Value, head, slot, &v[at * d..(at + 1) * d]);
                }
            }
        }
    });
}

/// Some heads of one token.
struct Heads<'a> {
    x: &'a mut [f32],
    d: usize,
    norm: Option<WeightRef<'a>>,
    eps: f32,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Heads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        for head in self.x.chunks_exact_mut(self.d) {
            if let Some(weight) = self.norm {
                norm_row::<V>(head, weight, self.eps);
            }
            rotate::<V>(head, self.cos, self.sin);
        }
    }
}
