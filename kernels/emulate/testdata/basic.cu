// Small kernels that are right: the fixtures of the driver tests.
#include "emu.h"

// out[i] = a[i] + b[i] * scale
extern "C" __global__ void test_axpy(float* out, const float* a, const float* b, float scale, int n) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = __fmaf_rn(b[i], scale, a[i]);
}
KERNEL(test_axpy)
