// Reductions over a block of 8 warps. All threads call them and get the result; `slots` holds 8 values and may be
// written again after the next barrier.
#pragma once
#include "num.cuh"

#define BLOCK_WARPS 8

__device__ __forceinline__ unsigned long long block_max(unsigned long long x, unsigned long long* slots) {
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = x;
    }
    __syncthreads();
    for (unsigned w = 0; w < BLOCK_WARPS; w++) {
        x = slots[w] > x ? slots[w] : x;
    }
    return x;
}

__device__ __forceinline__ unsigned long long block_sum(unsigned long long x, unsigned long long* slots) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = 0;
    for (unsigned w = 0; w < BLOCK_WARPS; w++) {
        x += slots[w];
    }
    return x;
}

// Lanes in the order 16, 8, 4, 2, 1, then warps from left to right; `slots` holds 8 values.
__device__ __forceinline__ float block_sum_f32(float x, float* slots) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = slots[0];
    for (unsigned w = 1; w < BLOCK_WARPS; w++) {
        x = __fadd_rn(x, slots[w]);
    }
    return x;
}

// Sum in the fixed order of a tree over the thread numbers; `slots` holds 256 values.
__device__ __forceinline__ double block_sum_f64(double x, double* slots) {
    slots[threadIdx.x] = x;
    __syncthreads();
    for (unsigned d = 32 * BLOCK_WARPS / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) {
            slots[threadIdx.x] = slots[threadIdx.x] + slots[threadIdx.x + d];
        }
        __syncthreads();
    }
    x = slots[0];
    __syncthreads();
    return x;
}
