// Causal attention over the paged cache for few queries a row: decode and extend alike, one unit of 64 positions a
// work item. attention_merge.cu folds the units. Items, layouts: attention.cuh.
//
// Out        partials: per item and m row O_u[HD] = P V, M = max, L = P 1, unit state from zero.
// Instances  attention_hd16, _hd32, _hd64, _hd128.
// Grid       any, each block strides over items; 128 threads.
// Shared     static: V 128 HD bytes, P 2.25 KB, maxima 256 bytes.
// Moves      K and V of each unit once per tile of 16 queries; decode: 2 length kv_heads HD 2 bytes a row.
//
// Order, depending on positions only: scores by chains of mma from zero over the head in blocks of 32 (K permuted
// as N2); times scale; masked to minus infinity by position; m_u = max of the unit; P = bf16(exp2(s - m_u)); O_u and
// L_u = P 1 by chains of mma from zero over the positions. K rows at or beyond the length are not read, V rows there
// are zero: pages past the end and unwritten slots never count.
//
// Four warps share a tile: warp w scores positions 16 w .. + 16, then takes a part of the head's dimensions. K goes
// straight to registers, since each element has one reader; V goes through shared memory for the transposition.
#include "attention.cuh"

#define P_PITCH 72  // elements: 16-byte rows that ldmatrix reads without bank conflicts

template <int HD>
struct Tile : Head<HD> {
    static constexpr int dims = HD < 64 ? 16 : HD / 4;  // of a warp in P V
    static constexpr int warps = HD / dims;             // that take part in it
};

// The row that an item belongs to: the last one whose first item is not above it.
__device__ __forceinline__ unsigned find_row(const AttnRow* row, unsigned rows, unsigned item) {
    unsigned low = 0, high = rows;
    while (high - low > 1) {
        unsigned mid = (low + high) / 2;
        if (row[mid].item <= item) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return low;
}

__device__ __forceinline__ float unit_max(const float* maxima, unsigned row) {
    return larger(larger(maxima[row], maxima[16 + row]), larger(maxima[32 + row], maxima[48 + row]));
}

// P of the warp's positions into shared memory, [16][P_PITCH] bf16.
__device__ __forceinline__ void store_weights(bf16* p, const float (&s)[2][4], const float* maxima, unsigned g,
                                              unsigned column) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        float max = unit_max(maxima, g + 8 * h);
        max = max == NEG_INF ? 0.0f : max;
        UNROLL
        for (int n = 0; n < 2; n++) {
            float x = exp2_neg(__fsub_rn(s[n][2 * h], max)), y = exp2_neg(__fsub_rn(s[n][2 * h + 1], max));
            *(unsigned*)(p + (g + 8 * h) * P_PITCH + column + 8 * n) = pack_bf16(x, y);
        }
    }
}

// O_u of the warp's dimensions, from `dim` on, and the row sums, which one warp of the tile will store: a product
// with ones has the same order of additions whatever warp does it.
template <int HD>
__device__ __forceinline__ void weigh(float (&o)[Tile<HD>::dims / 8][4], float (&sum)[4], const bf16* p, const bf16* v,
                                      unsigned dim, unsigned lane) {
    using T = Tile<HD>;
    const unsigned ones[2] = {0x3f803f80u, 0x3f803f80u};
    unsigned matrix = lane / 8;
    MMA_GROUP;
    UNROLL
    for (int k = 0; k < UNIT / 16; k++) {
        unsigned a[4];
        ldmatrix_x4(a, p + lane % 16 * P_PITCH + 16 * k + lane / 16 * 8);
        mma_bf16_16816(sum, a, ones);
        unsigned row = 16 * k + matrix % 2 * 8 + lane % 8;
        UNROLL
        for (int d = 0; d < T::dims / 16; d++) {
            unsigned piece = dim / 8 + 2 * d + matrix / 2, b[4];
            ldmatrix_x4_trans(b, v + row * HD + ((piece ^ (row & T::swizzle)) * 8));
            unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
            mma_bf16_16816(o[2 * d], a, low);
            mma_bf16_16816(o[2 * d + 1], a, high);
        }
    }
}

// Two neighbouring dimensions of the lane's two rows per fragment.
template <int HD>
__device__ __forceinline__ void store_part(float* part, const float (&o)[Tile<HD>::dims / 8][4], unsigned dim,
                                           const bool (&used)[2], unsigned g, unsigned t) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (used[h]) {
            float* row = part + (g + 8 * h) * (HD + 4) + dim + 2 * t;
            UNROLL
            for (int d = 0; d < Tile<HD>::dims / 8; d++) {
                *(float2*)(row + 8 * d) = make_float2(o[d][2 * h], o[d][2 * h + 1]);
            }
        }
    }
}

template <int HD>
__device__ __forceinline__ void attend(const AttnArgs& a, const AttnRow& r, const RowShape& s, const Item& it,
                                       float* part, bf16* v, bf16* p, float* maxima) {
    using T = Tile<HD>;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    copy_values<HD>(v, a, it, s.length);
    Queries<HD> q;
    q.load(a, r, s, it, g, t);
    float scores[2][4] = {};
    unsigned first = it.unit * UNIT + warp * 16;
    UNROLL
    for (int n = 0; n < 2; n++) {
        unsigned position = first + 8 * n + g;
        bool valid = position < s.length;
        uint4 k[T::blocks];
        load_vector<HD>(k, valid ? cached<HD>(a, it, position, 0) : a.kv, valid, t);
        score<HD>(scores[n], q, k);
    }
    float2 top = mask_scores(scores, q.last, (int)(first + 2 * t), a.scale);
    if (t == 0) {
        maxima[warp * 16 + g] = top.x;
        maxima[warp * 16 + g + 8] = top.y;
    }
    __syncthreads();
    store_weights(p, scores, maxima, g, warp * 16 + 2 * t);
    cp_async_wait<0>();
    __syncthreads();
    if (warp < T::warps) {
        float o[T::dims / 8][4] = {}, sum[4] = {};
        unsigned dim = warp * T::dims;
        weigh<HD>(o, sum, p, v, dim, lane);
        bool used[2] = {q.last[0] >= 0, q.last[1] >= 0};
        store_part<HD>(part, o, dim, used, g, t);
        if (warp == 0 && t == 0) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                if (used[h]) {
                    float* tail = part + (g + 8 * h) * (HD + 4) + HD;
                    *(float2*)tail = make_float2(unit_max(maxima, g + 8 * h), sum[2 * h]);
                }
            }
        }
    }
    __syncthreads();  // the next item writes the same shared memory
}

template <int HD>
__device__ __forceinline__ void attention_units(const AttnArgs& a) {
    SMEM(bf16, v, UNIT * HD);
    SMEM(bf16, p, 16 * P_PITCH);
    SMEM(float, maxima, 64);
    unsigned rows = *a.rows, items = a.row[rows].item;
    for (unsigned i = blockIdx.x; i < items; i += gridDim.x) {
        unsigned index = find_row(a.row, rows, i);
        AttnRow r = a.row[index];
        RowShape s(a, r);
        unsigned local = i - r.item;
        Item it = {a.tables + (size_t)index * a.table_stride, local / s.tiles / a.kv_heads,
                   local / s.tiles % a.kv_heads, local % s.tiles};
        // A unit beyond the tile's last query would fold in as nothing: nobody reads it.
        unsigned last = min_u(it.tile * 16 + 15, s.queries - 1) / s.group + r.start;
        if (it.unit * UNIT <= last) {
            attend<HD>(a, r, s, it, partial_of<HD>(a, r, s, local), v, p, maxima);
        }
    }
}

#define ATTENTION(NAME, HD, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) NAME(AttnArgs args) { attention_units<HD>(args); } \
    KERNEL(NAME)

ATTENTION(attention_hd16, 16, 6)
ATTENTION(attention_hd32, 32, 6)
ATTENTION(attention_hd64, 64, 6)
ATTENTION(attention_hd128, 128, 4)
