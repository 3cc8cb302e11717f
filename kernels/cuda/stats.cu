// Statistics of 128 logits at a time, the first of two passes over the raw logits; signals.cu is the second.
//
// In         logits [R][stride] f32, columns 0 .. vocab read, padding ids at minus infinity; R from the device.
// Out        tiles [R][ceil(vocab / 128)] TileStats.
// Grid       any, 256 threads, a warp a tile, they stride. Shared: none.
// Moves      R vocab 4 bytes, from the second-level cache after the head.
//
// Order of S and U: lane l chains columns 4 l .. 4 l + 3, lanes join in the order 16, 8, 4, 2, 1.
#include "stats.cuh"

struct StatsArgs {
    const float* logits;
    TileStats* tiles;
    const unsigned* rows;  // R
    unsigned vocab, stride;
};

extern "C" __global__ void __launch_bounds__(256, 4) logit_stats(StatsArgs a) {
    unsigned per_row = ceil_div(a.vocab, STAT_TILE), all = *a.rows * per_row, lane = threadIdx.x % 32;
    unsigned warps = gridDim.x * blockDim.x / 32;
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < all; i += warps) {
        const float* row = a.logits + (size_t)(i / per_row) * a.stride;
        unsigned first = i % per_row * STAT_TILE + lane * 4;
        float x[4];
        unsigned long long key = 0;
        UNROLL
        for (int e = 0; e < 4; e++) {
            x[e] = first + e < a.vocab ? row[first + e] : NEG_INF;
            unsigned long long k = first + e < a.vocab ? rank_key(first + e, x[e]) : 0;
            key = k > key ? k : key;
        }
        key = warp_max(key);
        float max = finite_max(key), s = 0.0f, u = 0.0f;
        UNROLL
        for (int e = 0; e < 4; e++) {
            float d = __fsub_rn(x[e], max), p = exp_f32(d);
            s = __fadd_rn(s, p);
            u = __fadd_rn(u, p == 0.0f ? 0.0f : __fmul_rn(p, d));  // 0 * -inf counts as 0
        }
        s = warp_sum(s), u = warp_sum(u);
        if (lane == 0) {
            a.tiles[i] = TileStats{key, s, u};
        }
    }
}
KERNEL(logit_stats)
