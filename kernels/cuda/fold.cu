// Joins what the ranks of a tensor-parallel model hold: the partial sums of a row-parallel layer, and the logits of
// each rank's part of the vocabulary.
//
// fold_ranks
// In         partials [ranks][rank_step] f32, of each rank [T][stride] (linear.cu with f32_out, slices = 4); bias [n]
//            bf16 or null; ranks 1 to 8; T read from the device.
// Out        delta [T][stride] bf16, columns n .. stride zero.
// Grid       any, 256 threads, each strides over four columns. Shared: none.
// Moves      T n (4 ranks + 2) bytes.
//
// Order      ((p0 + p1) + p2) .., then the bias, then one rounding (N4, N5). With two ranks this is half 0 + half 1: the
//            bits of the whole layer with slices = 8 where K is a multiple of 64. After an all-reduce of two ranks, whose
//            one addition commutes, ranks = 1 gives the same.
//
// unshard_logits
// In         shards [ranks][rank_step] f32, of each rank [R][width]: columns of rank r from r width on; R from the device.
// Out        logits [R][stride] f32, columns 0 .. n; n_real .. up to the next multiple of 4 behind n minus infinity.
// Grid       as above; width and stride are multiples of 4. Shared: none.
// Moves      R n 8 bytes.
#include "num.cuh"

struct FoldArgs {
    const float* partials;
    const bf16* bias;
    bf16* delta;
    const unsigned* rows;  // T
    unsigned ranks;
    unsigned rank_step;  // elements, a multiple of 4
    unsigned n;          // columns
    unsigned stride;     // elements, a multiple of 32
};

struct UnshardArgs {
    const float* shards;
    float* logits;
    const unsigned* rows;  // R
    unsigned rank_step;    // elements, a multiple of 4
    unsigned width;        // columns of a rank
    unsigned n;            // columns of all ranks that exist
    unsigned n_real;       // logits from here on are minus infinity
    unsigned stride;       // elements
};

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

extern "C" __global__ void __launch_bounds__(256, 4) fold_ranks(FoldArgs a) {
    unsigned pieces = a.stride / 4;
    size_t all = (size_t)*a.rows * pieces, step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        unsigned column = (unsigned)(i % pieces) * 4;
        const float4* part = (const float4*)a.partials + i;
        float4 sum = *part;
        for (unsigned r = 1; r < a.ranks; r++) {
            sum = add4(sum, part[(size_t)r * (a.rank_step / 4)]);
        }
        float x[4] = {sum.x, sum.y, sum.z, sum.w};
        UNROLL
        for (int e = 0; e < 4; e++) {
            bool inside = column + e < a.n;
            if (a.bias && inside) {
                x[e] = __fadd_rn(x[e], bf16_to_f32(a.bias[column + e]));
            }
            x[e] = inside ? x[e] : 0.0f;
        }
        ((uint2*)a.delta)[i] = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    }
}
KERNEL(fold_ranks)

extern "C" __global__ void __launch_bounds__(256, 4) unshard_logits(UnshardArgs a) {
    unsigned pieces = ceil_div(a.n, 4);
    size_t all = (size_t)*a.rows * pieces, step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        size_t row = i / pieces;
        unsigned column = (unsigned)(i % pieces) * 4;
        const float* shard = a.shards + (size_t)(column / a.width) * a.rank_step + row * a.width;
        float4 v = *(const float4*)(shard + column % a.width);
        float x[4] = {v.x, v.y, v.z, v.w};
        UNROLL
        for (int e = 0; e < 4; e++) {
            x[e] = column + e < a.n_real && column + e < a.n ? x[e] : NEG_INF;
        }
        *(float4*)(a.logits + row * a.stride + column) = make_float4(x[0], x[1], x[2], x[3]);
    }
}
KERNEL(unshard_logits)
