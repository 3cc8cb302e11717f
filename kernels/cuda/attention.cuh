// What the attention kernels and their merge share: the work items and where their partial results lie.
//
// A row's G = q_heads / kv_heads query heads of one kv head and its tokens form m = token * G + head, cut into tiles
// of 16. Its cache is cut into units of 64 positions. A work item is (unit, kv head, tile); item numbers of a row
// are (unit * kv_heads + head) * tiles + tile from AttnRow::item on, so that neighbours share K and V.
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
