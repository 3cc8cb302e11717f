// What the attention kernels and their merge share: the work items and where their partial results lie.
//
// A row's G = q_heads / kv_heads query heads of one kv head and its tokens form m = token * G + head, cut into tiles
// of 16. Its cache is cut into units of 64 positions. A work item is (unit, kv head, tile); item numbers of a row
// are (unit * kv_heads + head) * tiles + tile from AttnRow::item on, so that neighbours share K and V.
// A row without items is one of many queries: attention_many.cu has it.
// An item leaves, per m row in use, `HD + 4` f32: O[HD], M, L and two unused; `pitch` rows an item.
#pragma once
#include "num.cuh"

// One row of the step. An extra entry at the end holds the total of the items.
struct AttnRow {
    unsigned first;   // its first token in the step
    unsigned tokens;  // fed in the step, at least 1
    unsigned start;   // position of the first one
    unsigned item;    // items of all rows before it
    unsigned part;    // partial rows of all rows before it
};

struct AttnArgs {
    const bf16* q;   // [T][q_stride]: normed and rotated
    const bf16* kv;  // [page][kv_head][K, V][16][HD] of one layer; all tokens of the step are in it
    const AttnRow* row;
    const unsigned* tables;  // [rows][table_stride]
    const unsigned* token_row;
    float* partials;
    bf16* out;             // [T][out_stride]
    const unsigned* rows;  // of the step
    const unsigned* tokens;
    unsigned q_heads, kv_heads;
    unsigned q_stride, out_stride, table_stride;
    float scale;  // of the scores, times log2 e
};

#define UNIT 64
#define SEGMENT 8  // units

// How two states with the maxima `left` and `right` join: the new maximum and the factors of both.
struct Join {
    float max, left, right;

    __device__ __forceinline__ Join(float l, float r) {
        max = l > r ? l : r;
        float base = max == NEG_INF ? 0.0f : max;
        left = exp2_neg(__fsub_rn(l, base)), right = exp2_neg(__fsub_rn(r, base));
    }

    // Of a sum or an element.
    __device__ __forceinline__ float of(float l, float r) const { return __fmaf_rn(l, left, __fmul_rn(r, right)); }
};

// The attended value: O (1 / L), without a negative zero, which units that count for nothing would have removed.
__device__ __forceinline__ float attended(float o, float inverse) { return __fadd_rn(__fmul_rn(o, inverse), 0.0f); }

// Sizes of one row.
struct RowShape {
    unsigned group, queries, tiles, pitch, length;

    __device__ __forceinline__ RowShape(const AttnArgs& a, const AttnRow& r) {
        group = a.q_heads / a.kv_heads;
        queries = r.tokens * group;
        tiles = ceil_div(queries, 16);
        pitch = min_u(queries, 16);
        length = r.start + r.tokens;
    }
};

template <int HD>
__device__ __forceinline__ float* partial_of(const AttnArgs& a, const AttnRow& r, const RowShape& s, unsigned item) {
    return a.partials + (size_t)(r.part + item * s.pitch) * (HD + 4);
}

// Sizes of a head.
template <int HD>
struct Head {
    static constexpr int blocks = HD < 32 ? 1 : HD / 32;
    static constexpr int pieces = HD / 8;  // of 16 bytes in a row of K or V
    static constexpr int swizzle = pieces < 8 ? pieces - 1 : 7;
};

// One item: what all its threads know.
struct Item {
    const unsigned* pages;
    unsigned unit, head, tile;
};

template <int HD>
__device__ __forceinline__ const bf16* cached(const AttnArgs& a, const Item& it, unsigned position, unsigned value) {
    return a.kv + ((((size_t)it.pages[position / 16] * a.kv_heads + it.head) * 2 + value) * 16 + position % 16) * HD;
}

// Starts the copy of V of the unit, [64][HD] with 16-byte pieces swizzled by the row.
template <int HD>
__device__ __forceinline__ void copy_values(bf16* v, const AttnArgs& a, const Item& it, unsigned length) {
    using H = Head<HD>;
    for (unsigned i = threadIdx.x; i < UNIT * H::pieces; i += blockDim.x) {
        unsigned row = i / H::pieces, piece = i % H::pieces, position = it.unit * UNIT + row;
        bool valid = position < length;
        const bf16* from = valid ? cached<HD>(a, it, position, 1) + piece * 8 : a.kv;
        cp_async16_zfill(v + row * HD + ((piece ^ (row & H::swizzle)) * 8), from, valid ? 16 : 0);
    }
    cp_async_commit();
}

// 16 bytes per block of 32 elements: elements 32 b + 8 t .. of one vector; zero where there is none.
template <int HD>
__device__ __forceinline__ void load_vector(uint4 (&x)[Head<HD>::blocks], const bf16* vector, bool valid, unsigned t) {
    UNROLL
    for (int b = 0; b < Head<HD>::blocks; b++) {
        x[b] = make_uint4(0, 0, 0, 0);
        if (valid && (HD >= 32 || t < 2)) {
            x[b] = *(const uint4*)(vector + 32 * b + 8 * t);
        }
    }
}

// The two m rows of a lane, g and g + 8 of the tile.
template <int HD>
struct Queries {
    uint4 q[2][Head<HD>::blocks];
    int last[2];  // last position each may see; -1: no query

    __device__ __forceinline__ void load(const AttnArgs& a, const AttnRow& r, const RowShape& s, const Item& it,
                                         unsigned g, unsigned t) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            unsigned m = it.tile * 16 + g + 8 * h;
            bool valid = m < s.queries;
            unsigned token = valid ? m / s.group : 0, head = valid ? m % s.group : 0;
            const bf16* from = a.q + (size_t)(r.first + token) * a.q_stride + (it.head * s.group + head) * HD;
            load_vector<HD>(q[h], from, valid, t);
            last[h] = valid ? (int)(r.start + token) : -1;
        }
    }
};

// Scores of 8 positions for 16 queries.
template <int HD>
__device__ __forceinline__ void score(float (&s)[4], const Queries<HD>& q, const uint4 (&k)[Head<HD>::blocks]) {
    MMA_GROUP;
    UNROLL
    for (int b = 0; b < Head<HD>::blocks; b++) {
        unsigned a0[4] = {q.q[0][b].x, q.q[1][b].x, q.q[0][b].y, q.q[1][b].y}, b0[2] = {k[b].x, k[b].y};
        mma_bf16_16816(s, a0, b0);
        unsigned a1[4] = {q.q[0][b].z, q.q[1][b].z, q.q[0][b].w, q.q[1][b].w}, b1[2] = {k[b].z, k[b].w};
        mma_bf16_16816(s, a1, b1);
    }
}

__device__ __forceinline__ float larger(float a, float b) { return a > b ? a : b; }

// Scales and masks; returns the largest score of each of the lane's two rows over its positions,
// `position` and on in tiles of 8.
template <int N>
__device__ __forceinline__ float2 mask_scores(float (&s)[N][4], const int (&last)[2], int position, float scale) {
    float top[2] = {NEG_INF, NEG_INF};
    UNROLL
    for (int n = 0; n < N; n++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            bool seen = position + 8 * n + i % 2 <= last[i / 2];
            s[n][i] = seen ? __fmul_rn(s[n][i], scale) : NEG_INF;
            top[i / 2] = larger(top[i / 2], s[n][i]);
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        top[h] = larger(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = larger(top[h], __shfl_xor_sync(~0u, top[h], 2));
    }
    return make_float2(top[0], top[1]);
}
