// What the kernels rely on and what the emulation claims about the hardware, dumped for a comparison: the same kernels
// run on the emulation and, compiled by nvcc (tests/device.sh), on a GPU.
#include "simt.cuh"

// One mma per block of one warp, its operands as the lanes hold them: a [32][4], b [32][2], c and d [32][4].
extern "C" __global__ void probe_mma(float* d, const unsigned* a, const unsigned* b, const float* c) {
    unsigned lane = threadIdx.x, at = blockIdx.x * 32 + lane;
    unsigned fa[4] = {a[at * 4], a[at * 4 + 1], a[at * 4 + 2], a[at * 4 + 3]}, fb[2] = {b[at * 2], b[at * 2 + 1]};
    float fc[4] = {c[at * 4], c[at * 4 + 1], c[at * 4 + 2], c[at * 4 + 3]};
    mma_bf16_16816(fc, fa, fb);
    for (int i = 0; i < 4; i++) d[at * 4 + i] = fc[i];
}
KERNEL(probe_mma)

// 256 elements as four 8 x 8 matrices; what each lane receives, then the same transposed: out [2][4][32].
extern "C" __global__ void probe_ldmatrix(unsigned* out, const bf16* in) {
    SMEM(bf16, tile, 4 * 64);
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) tile[i] = in[i];
    __syncwarp();
    unsigned r[4], t[4];
    ldmatrix_x4(r, tile + lane * 8);
    ldmatrix_x4_trans(t, tile + lane * 8);
    for (unsigned m = 0; m < 4; m++) {
        out[m * 32 + lane] = r[m];
        out[128 + m * 32 + lane] = t[m];
    }
}
KERNEL(probe_ldmatrix)

// Shuffles and votes of the lanes' numbers: out [6][32].
extern "C" __global__ void probe_warp(unsigned* out, unsigned salt) {
    unsigned lane = threadIdx.x, v = lane * 3 + salt;
    out[lane] = __shfl_sync(~0u, v, (int)(lane * 7 % 32));
    out[32 + lane] = __shfl_xor_sync(~0u, v, 5);
    out[64 + lane] = __shfl_up_sync(~0u, v, 3);
    out[96 + lane] = __shfl_down_sync(~0u, v, 9);
    out[128 + lane] = __shfl_xor_sync(~0u, v, 3, 8);
    out[160 + lane] = __ballot_sync(~0u, v % 3 == 1);
}
KERNEL(probe_warp)

// Rounding of n floats to bf16 and f16, and n 16-bit patterns as f16 widened.
extern "C" __global__ void probe_convert(unsigned short* narrow, float* wide, const float* in, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        narrow[i] = f32_to_bf16(in[i]).bits;
        narrow[n + i] = f32_to_f16(in[i]).bits;
        f16 pattern;
        pattern.bits = (unsigned short)i;
        wide[i] = f16_to_f32(pattern);
    }
}
KERNEL(probe_convert)

// Nothing but products, eight chains a warp: what the tensor cores can do.
extern "C" __global__ void probe_rate(float* out, unsigned rounds) {
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, threadIdx.x};
    float c[8][4] = {};
    for (unsigned i = 0; i < rounds; i++) {
        UNROLL
        for (int n = 0; n < 8; n++) mma_bf16_16816(c[n], a, b);
    }
    float sum = 0;
    UNROLL
    for (int n = 0; n < 8; n++) sum += c[n][0] + c[n][1] + c[n][2] + c[n][3];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
KERNEL(probe_rate)
