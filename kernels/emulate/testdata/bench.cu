// Loops that measure the emulation itself.
#include "emu.h"

extern "C" __global__ void bench_barrier(float* out, int rounds) {
    for (int i = 0; i < rounds; i++) __syncthreads();
    out[threadIdx.x] = 1;
}
KERNEL(bench_barrier)

extern "C" __global__ void bench_shuffle(float* out, int rounds) {
    float v = float(threadIdx.x);
    for (int i = 0; i < rounds; i++) v = __shfl_xor_sync(~0u, v, 1);
    out[threadIdx.x] = v;
}
KERNEL(bench_shuffle)

extern "C" __global__ void bench_mma(float* out, int rounds) {
    unsigned a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
    float c[4] = {0, 0, 0, 0};
    for (int i = 0; i < rounds; i++) mma_bf16_16816(c, a, b);
    out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
KERNEL(bench_mma)

// Plain loads and stores: what the checks of the race build cost.
extern "C" __global__ void bench_loads(float* out, const float* in, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += in[(int(threadIdx.x) + i) % n];
    out[threadIdx.x] = sum;
}
KERNEL(bench_loads)
