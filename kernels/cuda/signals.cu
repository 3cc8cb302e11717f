// What routers want to know about a row, from the raw logits: the second pass after stats.cu. With it the argmax.
//
// In         logits [R][stride] f32; tiles [R][ceil(vocab / 128)] of stats.cu, whose keys are used up; R from the
//            device; how many of the largest logits are wanted, from the device (at least 2 for the margin, at most top).
// Out        signals [R]; top_ids, top_logits [R][top]: largest first, ties by the lower id, then id 0 and -inf; entries
//            behind those that are wanted stay as they were.
// Grid       one block a row (any number, they stride), 256 threads. Shared: static, 2.2 KB.
// Moves      R (vocab / 8 + wanted 512) bytes.
//
// Order, as CPU `signals`, with tiles in place of blocks: S = sum of S_t e, U = sum of (U_t + (m_t - m) S_t) e, e =
// exp(m_t - m), in f64; thread j chains tiles j, j + 256, ..; threads join in a tree. lse = m + ln S, entropy = ln S
// - U / S (both terms at least 0: nothing cancels), margin = (1 - exp(x_2 - m)) / S.
#include "block.cuh"
#include "stats.cuh"

struct RowSignals {
    float lse, entropy, margin;
    float max;        // minus infinity if no logit is above it
    unsigned argmax;  // lowest id of the largest logit
    unsigned top_len; // entries of the lists that count: those above minus infinity
};

struct SignalArgs {
    const float* logits;
    TileStats* tiles;
    RowSignals* signals;
    unsigned* top_ids;
    float* top_logits;
    const unsigned* rows;    // R
    const unsigned* wanted;  // at most top
    unsigned vocab, stride, top;
};

// The best key of a tile that ranks below `limit`; called by one warp.
__device__ __forceinline__ unsigned long long best_below(const float* row, unsigned vocab, unsigned tile,
                                                         unsigned long long limit) {
    unsigned long long best = 0;
    for (unsigned e = threadIdx.x % 32; e < STAT_TILE; e += 32) {
        unsigned id = tile * STAT_TILE + e;
        unsigned long long key = id < vocab ? rank_key(id, row[id]) : 0;
        best = key < limit && key > best ? key : best;
    }
    return warp_max(best);
}

// The best ranks that are wanted: each round takes the best tile's best key and looks up that tile's next one. Returns how many
// lie above minus infinity, and the second one's logit.
__device__ __forceinline__ unsigned take_top(const SignalArgs& a, unsigned row, unsigned tiles,
                                             unsigned long long* slots, float& second) {
    const float* logits = a.logits + (size_t)row * a.stride;
    TileStats* stats = a.tiles + (size_t)row * tiles;
    unsigned len = 0, wanted = min_u(*a.wanted, a.top);
    second = NEG_INF;
    for (unsigned i = 0; i < wanted; i++) {
        unsigned long long best = 0;
        for (unsigned t = threadIdx.x; t < tiles; t += blockDim.x) {
            best = stats[t].key > best ? stats[t].key : best;
        }
        best = block_max(best, slots);
        bool counts = (unsigned)(best >> 32) > KEY_NEG_INF_HIGH;
        unsigned id = counts ? key_id(best) : 0;
        float logit = counts ? logits[id] : NEG_INF;
        len += counts;
        second = i == 1 ? logit : second;
        if (threadIdx.x < 32 && counts) {
            unsigned long long next = best_below(logits, a.vocab, id / STAT_TILE, best);
            if (threadIdx.x == 0) {
                stats[id / STAT_TILE].key = next;
            }
        }
        if (threadIdx.x == 0) {
            a.top_ids[(size_t)row * a.top + i] = id;
            a.top_logits[(size_t)row * a.top + i] = logit;
        }
        __syncthreads();  // the next round reads the tile's new key
    }
    return len;
}

extern "C" __global__ void __launch_bounds__(256, 4) row_signals(SignalArgs a) {
    SMEM(double, sums, 256);
    SMEM(unsigned long long, slots, BLOCK_WARPS);
    unsigned tiles = ceil_div(a.vocab, STAT_TILE);
    for (unsigned row = blockIdx.x; row < *a.rows; row += gridDim.x) {
        const TileStats* stats = a.tiles + (size_t)row * tiles;
        unsigned long long best = 0;
        for (unsigned t = threadIdx.x; t < tiles; t += blockDim.x) {
            best = stats[t].key > best ? stats[t].key : best;
        }
        best = block_max(best, slots);
        float max = finite_max(best);
        double s = 0.0, u = 0.0;
        for (unsigned t = threadIdx.x; t < tiles; t += blockDim.x) {
            float d = __fsub_rn((unsigned)(stats[t].key >> 32) <= KEY_NEG_INF_HIGH ? 0.0f : key_value(stats[t].key), max);
            bool empty = (unsigned)(stats[t].key >> 32) <= KEY_NEG_INF_HIGH;
            double e = empty ? 1.0 : (double)exp_f32(d);  // an empty tile holds 0, or NaN to pass on
            s = s + (double)stats[t].s * e;
            u = u + (empty || e == 0.0 ? 0.0 : ((double)stats[t].u + (double)d * (double)stats[t].s) * e);
        }
        s = block_sum_f64(s, sums);
        u = block_sum_f64(u, sums);
        float second;
        unsigned len = take_top(a, row, tiles, slots, second);
        if (threadIdx.x == 0) {
            double log_sum = ln_f64(s);
            RowSignals out;
            out.lse = (float)((double)max + log_sum);
            out.entropy = (float)(log_sum - u / s);
            out.margin = (float)((1.0 - (double)exp_f32(__fsub_rn(second, max))) / s);
            out.max = (unsigned)(best >> 32) <= KEY_NEG_INF_HIGH ? NEG_INF : key_value(best);
            out.argmax = best == 0 ? 0 : key_id(best);
            out.top_len = len;
            a.signals[row] = out;
        }
    }
}
KERNEL(row_signals)
