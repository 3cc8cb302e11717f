// Small kernels that are right: the fixtures of the driver tests.
#include "emu.h"

// out[i] = a[i] + b[i] * scale
extern "C" __global__ void test_axpy(float* out, const float* a, const float* b, float scale, int n) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = __fmaf_rn(b[i], scale, a[i]);
}
KERNEL(test_axpy)

// Writes value to p[0]: order shows in the last value. Works on device and pinned memory.
extern "C" __global__ void test_set(int* p, int value) {
    if (threadIdx.x == 0 && blockIdx.x == 0) p[0] = value;
}
KERNEL(test_set)

// p[0] = p[0] * 10 + digit: a log of the order in which launches ran.
extern "C" __global__ void test_log(long long* p, int digit) {
    if (threadIdx.x == 0) p[0] = p[0] * 10 + digit;
}
KERNEL(test_log)

// Which thread of which block ran when: a slot from a device counter.
extern "C" __global__ void test_order(unsigned* order, unsigned* next) {
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}
KERNEL(test_order)

// Fills n floats of dynamic shared memory and sums them.
extern "C" __global__ void test_dynamic(float* out, int n) {
    DYN_SMEM(memory);
    auto* f = reinterpret_cast<float*>(memory);
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) f[i] = 1.0f;
    __syncthreads();
    float sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < n; i++) sum += f[i];
        out[0] = sum;
    }
}
KERNEL(test_dynamic)
