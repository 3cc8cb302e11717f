// Dumps of what lanes see: fragment layouts, shuffles, votes, conversions.
#include "emu.h"

// c (16 x 8) += a (16 x 16) b (16 x 8), matrices row-major, fragments filled by hand.
extern "C" __global__ void mma_once(float* c, const bf16* a, const bf16* b) {
    unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    auto pair = [](bf16 low, bf16 high) { return unsigned(low.bits) | unsigned(high.bits) << 16; };
    unsigned fa[4], fb[2];
    float fc[4];
    for (unsigned i = 0; i < 4; i++) {
        const bf16* p = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        fa[i] = pair(p[0], p[1]);
        fc[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    for (unsigned i = 0; i < 2; i++) fb[i] = pair(b[(2 * t + i * 8) * 8 + g], b[(2 * t + i * 8 + 1) * 8 + g]);
    mma_bf16_16816(fc, fa, fb);
    for (unsigned i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}
KERNEL(mma_once)

// Three chains of products, two of them on the same sums: one by one, or all in a group.
template <bool GROUP>
__device__ __forceinline__ void chains(float (&fc)[2][4], const unsigned (&fa)[4], const unsigned (&fb)[2]) {
    unsigned other[4] = {fa[1], fa[0], fa[3], fa[2]};
    if (GROUP) {
        MMA_GROUP;
        for (int i = 0; i < 20; i++) {
            mma_bf16_16816(fc[0], fa, fb);
            mma_bf16_16816(fc[1], other, fb);
            mma_bf16_16816(fc[0], other, fb);
        }
    } else {
        for (int i = 0; i < 20; i++) {
            mma_bf16_16816(fc[0], fa, fb);
            mma_bf16_16816(fc[1], other, fb);
            mma_bf16_16816(fc[0], other, fb);
        }
    }
}

extern "C" __global__ void mma_group(float* out, const unsigned* a, const unsigned* b, int group) {
    unsigned lane = threadIdx.x;
    unsigned fa[4] = {a[lane], a[lane + 32], a[lane + 64], a[lane + 96]}, fb[2] = {b[lane], b[lane + 32]};
    float fc[2][4] = {{1, 2, 3, 4}, {0.1f, 0.2f, 0.3f, 0.4f}};
    if (group) {
        chains<true>(fc, fa, fb);
    } else {
        chains<false>(fc, fa, fb);
    }
    for (int i = 0; i < 8; i++) out[i * 32 + int(lane)] = fc[i / 4][i % 4];
}
KERNEL(mma_group)

// The same product with ldmatrix: a as it lies in shared memory, b through .trans.
extern "C" __global__ void mma_ldmatrix(float* c, const bf16* a, const bf16* b) {
    SMEM(bf16, sa, 16 * 16);
    SMEM(bf16, sb, 16 * 16);
    unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (unsigned i = lane; i < 256; i += 32) {
        sa[i] = a[i];
        sb[i] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : bf16{0};
    }
    __syncwarp();
    unsigned fa[4], fb[4];
    // Matrices 0..3 are the quarters (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
    unsigned row = lane % 8 + lane / 8 % 2 * 8, column = lane / 16 * 8;
    ldmatrix_x4(fa, sa + row * 16 + column);
    ldmatrix_x4_trans(fb, sb + row * 16 + column);
    float fc[4] = {0, 0, 0, 0};
    unsigned low[2] = {fb[0], fb[1]};
    mma_bf16_16816(fc, fa, low);
    for (unsigned i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}
KERNEL(mma_ldmatrix)

// What each lane receives: four registers per lane, matrix m in register m. trans != 0 takes the transposed form.
extern "C" __global__ void ldmatrix_dump(unsigned* out, const bf16* in, int trans) {
    SMEM(bf16, tile, 4 * 64);
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32) tile[i] = in[i];
    __syncwarp();
    unsigned r[4];
    if (trans) {
        ldmatrix_x4_trans(r, tile + lane * 8);
    } else {
        ldmatrix_x4(r, tile + lane * 8);
    }
    for (int m = 0; m < 4; m++) out[m * 32 + int(lane)] = r[m];
}
KERNEL(ldmatrix_dump)

// Twelve values per lane from shuffles and votes.
extern "C" __global__ void shuffle_dump(unsigned* out) {
    unsigned lane = threadIdx.x;
    unsigned v = 100 + lane;
    unsigned* o = out + lane * 12;
    o[0] = __shfl_sync(~0u, v, 7);
    o[1] = __shfl_sync(~0u, v, int(lane) + 3, 8);
    o[2] = __shfl_xor_sync(~0u, v, 5);
    o[3] = __shfl_up_sync(~0u, v, 3);
    o[4] = __shfl_down_sync(~0u, v, 3, 16);
    o[5] = unsigned(__shfl_xor_sync(~0u, (unsigned long long)v << 32, 1) >> 32);
    o[6] = __ballot_sync(~0u, lane % 3 == 0);
    o[7] = unsigned(__any_sync(~0u, lane == 31)) + 2 * unsigned(__all_sync(~0u, lane < 31));
    o[8] = unsigned(__float_as_int(__shfl_xor_sync(~0u, __int_as_float(int(v)), 16)));
    o[9] = lane < 16 ? __ballot_sync(0xffffu, 1) : __ballot_sync(0xffff0000u, lane == 20);
    o[10] = unsigned(__syncthreads_count(lane < 9));
    o[11] = unsigned(__syncthreads_or(lane == 40));
}
KERNEL(shuffle_dump)

// Bits of every conversion: what = 0 bf16 to f32, 1 f32 to bf16, 2 f16 to f32, 3 f32 to f16.
extern "C" __global__ void convert(unsigned* out, const unsigned* in, int what, int n) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    unsigned v = in[i];
    switch (what) {
        case 0: out[i] = __float_as_uint(bf16_to_f32(bf16{(unsigned short)v})); break;
        case 1: out[i] = f32_to_bf16(__uint_as_float(v)).bits; break;
        case 2: out[i] = __float_as_uint(f16_to_f32(f16{(unsigned short)v})); break;
        default: out[i] = f32_to_f16(__uint_as_float(v)).bits; break;
    }
}
KERNEL(convert)

// Zero-filled copies: 16-byte chunk t gets the first t source bytes and zeros behind them.
extern "C" __global__ void zero_fill(unsigned char* out, const unsigned char* in) {
    DYN_SMEM(memory);
    int t = int(threadIdx.x);
    cp_async16_zfill(memory + t * 16, in, t);
    cp_async_commit();
    cp_async_wait<0>();
    for (int i = 0; i < 16; i++) out[t * 16 + i] = memory[t * 16 + i];
}
KERNEL(zero_fill)

// Counts in shared and device memory from every thread.
extern "C" __global__ void counters(unsigned* out, float* sum) {
    SMEM(unsigned, here, 1);
    if (threadIdx.x == 0) here[0] = 0;
    __syncthreads();
    atomicAdd(&here[0], threadIdx.x);
    atomicMax(&out[1], blockIdx.x * 1000 + threadIdx.x);
    atomicAdd(sum, 0.5f);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&out[0], here[0]);
    if (threadIdx.x == 1) atomicInc(&out[2], 2);
    if (threadIdx.x == 2) atomicCAS(&out[3], 0u, 77u);
}
KERNEL(counters)

struct Shape {
    int rows, columns;
    float scale;
    unsigned char flags[3];
};

// A struct by value between other parameters.
extern "C" __global__ void parameters(double* out, char c, Shape shape, long long big, const float* p) {
    out[0] = c;
    out[1] = shape.rows;
    out[2] = shape.columns;
    out[3] = shape.scale;
    out[4] = shape.flags[2];
    out[5] = double(big);
    out[6] = p[0];
}
KERNEL(parameters)
