// Causal attention over the paged cache for rows of many queries (prefill): attended values without partial results, with
// the bits of attention.cu and attention_merge.cu. It takes the rows that have no items in the plan. Layouts: attention.cuh.
//
// Out        out [T][out_stride] bf16, columns 0 .. q_heads HD, of these rows.
// Instances  attention_many_hd16, _hd32, _hd64, _hd128.
// Grid       any, each block strides over items: (row, kv head, 8 tiles of 16 queries); 256 threads, a warp a tile.
// Shared     K and V of a unit, 128 HD bytes each; the sums of earlier segments, 512 HD bytes: many_shared() of the host.
// Moves      K and V of a row once per 128 queries.
//
// Order: as attention.cu within a unit and attention_merge.cu over units. A warp walks all units up to its last query. Its
// scores go from the fragment of one product straight into the operand of the next, since both lie alike: P never leaves
// the registers. Units past a query of the tile are masked: they change nothing. While the scores are computed, V is
// copied; while V is weighed, the next K.
#include "attention.cuh"

template <int HD>
struct Wide : Head<HD> {
    static constexpr int key_swizzle = HD < 64 ? 0 : 4;  // of odd rows, in pieces: their halves are exchanged
};

// One item, and what its warps share.
struct ManyItem {
    unsigned row, head, tile;  // `tile` of the first warp
};

// Finds item `i` among the rows without items; false past the last one.
__device__ __forceinline__ bool find_many(const AttnArgs& a, unsigned i, ManyItem& it) {
    unsigned group = a.q_heads / a.kv_heads, rows = *a.rows;
    for (unsigned row = 0; row < rows; row++) {
        if (a.row[row + 1].item == a.row[row].item) {
            unsigned tiles = ceil_div(a.row[row].tokens * group, 128), items = tiles * a.kv_heads;
            if (i < items) {
                // The last tiles first: they see the most units.
                it.row = row, it.head = i % a.kv_heads, it.tile = (tiles - 1 - i / a.kv_heads) * 8;
                return true;
            }
            i -= items;
        }
    }
    return false;
}

// Starts the copy of K of the unit, [64][HD].
template <int HD>
__device__ __forceinline__ void copy_keys(bf16* k, const AttnArgs& a, const Item& it, unsigned length) {
    using H = Wide<HD>;
    for (unsigned i = threadIdx.x; i < UNIT * H::pieces; i += blockDim.x) {
        unsigned row = i / H::pieces, piece = i % H::pieces, position = it.unit * UNIT + row;
        bool valid = position < length;
        const bf16* from = valid ? cached<HD>(a, it, position, 0) + piece * 8 : a.kv;
        cp_async16_zfill(k + row * HD + ((piece ^ (row & 1) * H::key_swizzle) * 8), from, valid ? 16 : 0);
    }
    cp_async_commit();
}

// 16 of the unit's attended dimensions, from 16-byte piece `piece` of V on.
template <int HD>
__device__ __forceinline__ void weigh_dims(float (&low)[4], float (&high)[4], const unsigned (&p)[UNIT / 16][4],
                                           const bf16* v, unsigned piece, unsigned lane) {
    unsigned matrix = lane / 8;
    MMA_GROUP;
    UNROLL
    for (int k = 0; k < UNIT / 16; k++) {
        unsigned row = 16 * k + matrix % 2 * 8 + lane % 8, b[4];
        ldmatrix_x4_trans(b, v + row * HD + (((piece + matrix / 2) ^ (row & Head<HD>::swizzle)) * 8));
        unsigned b_low[2] = {b[0], b[1]}, b_high[2] = {b[2], b[3]};
        mma_bf16_16816(low, p[k], b_low);
        mma_bf16_16816(high, p[k], b_high);
    }
}

// What a warp keeps of its 16 queries: rows g and g + 8 of each lane.
template <int HD>
struct Walk {
    Queries<HD> q;
    unsigned p[UNIT / 16][4];  // weights of the unit, as A operands
    float top[2];              // the unit's largest scores
    float max[2], sum[2], o[HD / 8][4];  // of the segment
    float all_max[2], all_sum[2];        // of the segments before it

    // Scores and weights of a unit.
    __device__ __forceinline__ void scores(const bf16* k, unsigned unit, float scale, unsigned g, unsigned t) {
        float s[UNIT / 8][4] = {};
        UNROLL
        for (int n = 0; n < UNIT / 8; n++) {
            unsigned row = 8 * n + g;
            uint4 x[Head<HD>::blocks];
            UNROLL
            for (int b = 0; b < Head<HD>::blocks; b++) {
                unsigned piece = 4 * b + t;
                x[b] = make_uint4(0, 0, 0, 0);
                if (HD >= 32 || t < 2) {
                    x[b] = *(const uint4*)(k + row * HD + ((piece ^ (row & 1) * Wide<HD>::key_swizzle) * 8));
                }
            }
            score<HD>(s[n], q, x);
        }
        float2 best = mask_scores(s, q.last, (int)(unit * UNIT + 2 * t), scale);
        top[0] = best.x, top[1] = best.y;
        UNROLL
        for (int h = 0; h < 2; h++) {
            float base = top[h] == NEG_INF ? 0.0f : top[h];
            UNROLL
            for (int n = 0; n < UNIT / 8; n++) {
                float x = exp2_neg(__fsub_rn(s[n][2 * h], base)), y = exp2_neg(__fsub_rn(s[n][2 * h + 1], base));
                p[n / 2][h + n % 2 * 2] = pack_bf16(x, y);
            }
        }
    }

    // Weighs the values of the unit and folds it into the segment; `first` of it: takes it as it is.
    __device__ __forceinline__ void weigh(const bf16* v, bool first, unsigned lane) {
        const unsigned ones[2] = {0x3f803f80u, 0x3f803f80u};
        float unit_sum[4] = {};
        {
            MMA_GROUP;
            UNROLL
            for (int k = 0; k < UNIT / 16; k++) {
                mma_bf16_16816(unit_sum, p[k], ones);
            }
        }
        Join j[2] = {Join(max[0], top[0]), Join(max[1], top[1])};
        UNROLL
        for (int h = 0; h < 2; h++) {
            max[h] = first ? top[h] : j[h].max;
            sum[h] = first ? unit_sum[2 * h] : j[h].of(sum[h], unit_sum[2 * h]);
        }
        UNROLL
        for (int d = 0; d < HD / 16; d++) {
            float low[4] = {}, high[4] = {};
            weigh_dims<HD>(low, high, p, v, 2 * d, lane);
            UNROLL
            for (int i = 0; i < 4; i++) {
                o[2 * d][i] = first ? low[i] : j[i / 2].of(o[2 * d][i], low[i]);
                o[2 * d + 1][i] = first ? high[i] : j[i / 2].of(o[2 * d + 1][i], high[i]);
            }
        }
    }

    // The end of a segment: joins it to those before it, which wait in `rest`, [HD / 2][256]; each thread has its own.
    __device__ __forceinline__ void end_segment(float* rest, bool first, bool last) {
        if (!first) {
            Join j[2] = {Join(all_max[0], max[0]), Join(all_max[1], max[1])};
            UNROLL
            for (int h = 0; h < 2; h++) {
                max[h] = j[h].max;
                sum[h] = j[h].of(all_sum[h], sum[h]);
            }
            UNROLL
            for (int d = 0; d < HD / 8; d++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    o[d][i] = j[i / 2].of(rest[(4 * d + i) * 256 + threadIdx.x], o[d][i]);
                }
            }
        }
        if (!last) {
            UNROLL
            for (int d = 0; d < HD / 8; d++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    rest[(4 * d + i) * 256 + threadIdx.x] = o[d][i];
                }
            }
            UNROLL
            for (int h = 0; h < 2; h++) {
                all_max[h] = max[h], all_sum[h] = sum[h];
            }
        }
    }

    __device__ __forceinline__ void store(const AttnArgs& a, const AttnRow& r, const RowShape& s, const Item& it,
                                          unsigned g, unsigned t) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            unsigned m = it.tile * 16 + g + 8 * h;
            if (m < s.queries) {
                float inverse = __fdiv_rn(1.0f, sum[h]);
                bf16* out = a.out + (size_t)(r.first + m / s.group) * a.out_stride +
                            (it.head * s.group + m % s.group) * HD + 2 * t;
                UNROLL
                for (int d = 0; d < HD / 8; d++) {
                    *(unsigned*)(out + 8 * d) =
                        pack_bf16(attended(o[d][2 * h], inverse), attended(o[d][2 * h + 1], inverse));
                }
            }
        }
    }
};

// Units that the queries of tiles `from` .. `to` see.
__device__ __forceinline__ unsigned units_of(const AttnRow& r, const RowShape& s, unsigned from, unsigned to) {
    return from >= s.tiles ? 0 : (r.start + (min_u(to * 16, s.queries) - 1) / s.group) / UNIT + 1;
}

template <int HD>
__device__ __forceinline__ void attention_many(const AttnArgs& a) {
    DYN_SMEM(shared);
    bf16* k = (bf16*)shared;
    bf16* v = k + UNIT * HD;
    float* rest = (float*)(v + UNIT * HD);
    unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    ManyItem many;
    for (unsigned i = blockIdx.x; find_many(a, i, many); i += gridDim.x) {
        AttnRow r = a.row[many.row];
        RowShape s(a, r);
        Item it = {a.tables + (size_t)many.row * a.table_stride, 0, many.head, many.tile + warp};
        unsigned units = units_of(r, s, many.tile, many.tile + 8), own = units_of(r, s, it.tile, it.tile + 1);
        Walk<HD> walk = {};
        walk.q.load(a, r, s, it, g, t);
        copy_keys<HD>(k, a, it, s.length);
        for (unsigned unit = 0; unit < units; unit++) {
            cp_async_wait<0>();
            __syncthreads();  // K is there, and the last unit's V has been read
            it.unit = unit;
            copy_values<HD>(v, a, it, s.length);
            if (unit < own) {
                walk.scores(k, unit, a.scale, g, t);
            }
            cp_async_wait<0>();
            __syncthreads();  // V is there, and K has been read
            if (unit + 1 < units) {
                it.unit = unit + 1;
                copy_keys<HD>(k, a, it, s.length);
            }
            if (unit < own) {
                walk.weigh(v, unit % SEGMENT == 0, lane);
                if (unit % SEGMENT == SEGMENT - 1 || unit + 1 == own) {
                    walk.end_segment(rest, unit < SEGMENT, unit + 1 == own);
                }
            }
        }
        walk.store(a, r, s, it, g, t);
    }
}

#define ATTENTION_MANY(NAME, HD)                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 1) NAME(AttnArgs args) { attention_many<HD>(args); } \
    KERNEL(NAME)

ATTENTION_MANY(attention_many_hd16, 16)
ATTENTION_MANY(attention_many_hd32, 32)
ATTENTION_MANY(attention_many_hd64, 64)
ATTENTION_MANY(attention_many_hd128, 128)
