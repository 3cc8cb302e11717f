//! How fast a buffer can be read at all: the peer of every product that streams weights.
#![allow(unreachable_pub, reason = "every bench compiles this module for itself")]

use std::hint::black_box;

use tokenrouter_kernels::cpu::Ctx;

/// Sums 64-bit words four matrix rows at a time, the next four prefetched, split over the worker group like the
/// product is: as fast as these bytes can be read.
pub fn read_all(ctx: Ctx<'_>, words: &[u64]) {
    const ROW: usize = 512;
    let blocks = words.len() / (4 * ROW);
    let parts = 4 * ctx.workers.threads();
    ctx.workers.run(parts, &|part| {
        let mut lanes = [0_u64; 32];
        for block in part * blocks / parts..(part + 1) * blocks / parts {
            let rows: [&[u64]; 4] = std::array::from_fn(|r| &words[(4 * block + r) * ROW..][..ROW]);
            for at in (0..ROW).step_by(8) {
                for (r, row) in rows.iter().enumerate() {
                    prefetch(row.as_ptr().wrapping_add(4 * ROW + at));
                    for (lane, word) in lanes[8 * r..8 * r + 8].iter_mut().zip(&row[at..at + 8]) {
                        *lane = lane.wrapping_add(*word);
                    }
                }
            }
        }
        black_box(lanes);
    });
}

/// Asks for a cache line; any address is allowed.
fn prefetch(address: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
