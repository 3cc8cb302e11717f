// RMSNorm, alone, after a residual addition, and for the few tokens whose logits are wanted.
//
// In         h [T][stride] bf16; delta [T][stride] bf16 or null; weight [width] bf16; index [T] or null: row i
//            reads row index[i] of h and delta; T read from the device.
// Out        out [T][stride] = norm(h + delta) * weight, columns 0 .. stride; with `store`, h = bf16(h + delta) as
//            well (only without index).
// Padding    columns width .. stride of h and delta are zero, and so are those of out.
// Grid       one block a row (any number, they stride), 128 threads. Shared: the sums, (stride / 16 + 1) f32.
// Moves      T width (2 to 8) bytes.
//
// Order (N5, N6): h = bf16(h + delta); the squares of 16 features are added in the pairs feature ^ 8, ^ 1, ^ 2,
// ^ 4; lane l of a warp adds the sums of groups l, l + 32, ..; lanes join in the order 16, 8, 4, 2, 1; r = 1 /
// sqrt(sum / width + eps); out = bf16(bf16(h r) w).
#include "num.cuh"

struct NormArgs {
    bf16* h;
    const bf16* delta;
    const bf16* weight;
    const unsigned* index;
    bf16* out;
    const unsigned* rows;
    unsigned width;
    unsigned stride;  // elements, a multiple of 32
    float eps;
    unsigned store;
};

// Eight features of h + delta, rounded to bf16.
__device__ __forceinline__ void load_sum(float (&x)[8], const NormArgs& a, size_t at) {
    unpack8(x, *(const uint4*)(a.h + at));
    if (a.delta) {
        float d[8];
        unpack8(d, *(const uint4*)(a.delta + at));
        UNROLL
        for (int i = 0; i < 8; i++) {
            x[i] = round_bf16(__fadd_rn(x[i], d[i]));
        }
    }
}

// The sum of squares of 16 features, of which this thread and its neighbour hold eight each.
__device__ __forceinline__ float group_square(const float (&x)[8]) {
    float s[8];
    UNROLL
    for (int i = 0; i < 8; i++) {
        s[i] = __fmul_rn(x[i], x[i]);
        s[i] = __fadd_rn(s[i], __shfl_xor_sync(~0u, s[i], 1));
    }
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3])),
                     __fadd_rn(__fadd_rn(s[4], s[5]), __fadd_rn(s[6], s[7])));
}

extern "C" __global__ void __launch_bounds__(128, 8) rms_norm(NormArgs a) {
    DYN_SMEM(shared);
    float* sums = (float*)shared;
    unsigned groups = a.stride / 16, lane = threadIdx.x % 32;
    for (unsigned row = blockIdx.x; row < *a.rows; row += gridDim.x) {
        size_t from = (size_t)(a.index ? a.index[row] : row) * a.stride, to = (size_t)row * a.stride;
        // Whole warps go around together: they shuffle. A warp's last round may lie past the row in part.
        for (unsigned i = threadIdx.x; i - lane < a.stride / 8; i += blockDim.x) {
            float x[8] = {};
            if (i < a.stride / 8) {
                load_sum(x, a, from + i * 8);
                if (a.store) {
                    *(uint4*)(a.h + from + i * 8) = pack8(x);
                }
            }
            float sum = group_square(x);
            if (i < a.stride / 8 && i % 2 == 0) {
                sums[i / 2] = sum;
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            float sum = 0.0f;
            for (unsigned g = lane; g < groups; g += 32) {
                sum = __fadd_rn(sum, sums[g]);
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                sums[groups] = inverse_rms(sum, a.width, a.eps);
            }
        }
        __syncthreads();
        float r = sums[groups];
        for (unsigned i = threadIdx.x; i < a.stride / 8; i += blockDim.x) {
            float x[8];
            if (a.store) {
                unpack8(x, *(const uint4*)(a.h + from + i * 8));  // this thread wrote it
            } else {
                load_sum(x, a, from + i * 8);
            }
            UNROLL
            for (int e = 0; e < 8; e++) {
                unsigned column = i * 8 + e;
                x[e] = column < a.width ? norm_one(x[e], r, bf16_to_f32(a.weight[column])) : 0.0f;
            }
            *(uint4*)(a.out + to + i * 8) = pack8(x);
        }
        // No barrier: the next row's sums are written where nobody reads since the last one, and its inverse after the next.
    }
}
KERNEL(rms_norm)
