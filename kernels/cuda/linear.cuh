// What the linear kernels share: their argument, the products of one block of K, and the end of an output.
#pragma once
#include "num.cuh"

struct LinearArgs {
    const uint4* w;
    const bf16* x;
    const bf16* bias;  // [n] or null
    void* y;
    const unsigned* rows;  // T
    unsigned n;            // columns of Y
    unsigned kb;           // 32-blocks of K
    unsigned x_stride;     // elements
    unsigned y_stride;     // elements
    unsigned slices;       // 4 or 8
    unsigned f32_out;      // write f32 logits
    unsigned n_real;       // logits from here on are minus infinity
};

// Pieces of 16 bytes of one packed (16 features, 32 columns) block.
#define BLOCK_PIECES 64

// One 32-block: two mma per pair of tiles. Lane (g, t) owns columns 8t .. 8t+7 of its rows; mma j takes the
// pairs 4j and 4j + 2 of them (N2), the same permutation of K in W and X.
template <int NT, int MT>
__device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], const uint4* w, const uint4 (&x)[NT]) {
    MMA_GROUP;
    UNROLL
    for (int m = 0; m < MT; m++) {
        uint4 v = w[m * BLOCK_PIECES], u = w[m * BLOCK_PIECES + 32];
        unsigned first[4] = {v.x, v.y, v.z, v.w};
        unsigned second[4] = {u.x, u.y, u.z, u.w};
        UNROLL
        for (int n = 0; n < NT; n++) {
            unsigned b[2] = {x[n].x, x[n].y};
            mma_bf16_16816(acc[m][n], first, b);
        }
        UNROLL
        for (int n = 0; n < NT; n++) {
            unsigned b[2] = {x[n].z, x[n].w};
            mma_bf16_16816(acc[m][n], second, b);
        }
    }
}

__device__ __forceinline__ void store_output(const LinearArgs& a, unsigned row, unsigned column, float value) {
    if (a.bias) {
        value = __fadd_rn(value, bf16_to_f32(a.bias[column]));
    }
    size_t at = (size_t)row * a.y_stride + column;
    if (a.f32_out) {
        ((float*)a.y)[at] = column < a.n_real ? value : NEG_INF;
    } else {
        ((bf16*)a.y)[at] = f32_to_bf16(value);
    }
}
