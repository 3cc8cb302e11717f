// f32 linear layers of router heads: Y[R][n] = act(X[R][k] * W^T + bias) (+ add).
//
// Shapes     W row-major [n][w_stride], f32 or bf16 by the instance, w_stride a multiple of 4, columns k .. zero; bias
//            [n] f32 or null; X [R][x_stride] f32 or bf16 (x_bf16), x_stride a multiple of 4, columns k .. ignored; add
//            [R][add_stride] f32 or null, may be Y itself; R read from the device.
// Output     Y [R][y_stride] f32, columns 0 .. n. Nothing, unless *wanted has bit `head` (wanted null: always).
// Instances  head_linear_f32, _bf16: the type of W; 4 features a warp. head_linear_narrow_f32, _bf16: one, for layers that
//            would fill only a part of the device otherwise.
// Grid       any, 256 threads, each block strides over items of 32 or 8 features and 8 rows, rows fastest, so that the
//            blocks that share weights run together. Shared: static, 32 KB of X (8 rows, 1,024 columns at a time).
// Moves      n k 4 bytes of W (2 of bf16) from memory once, then from the second-level cache per 8 rows.
//
// Order of one output, whatever R, the grid and the instance: lane l chains, by fused multiply-adds from zero, the columns 4 l .. 4 l +
// 3 of each 128; lanes join in the order 16, 8, 4, 2, 1; then the bias, the activation, add + value.
#include "num.cuh"

struct HeadLinearArgs {
    const void* w;
    const float* bias;
    const void* x;
    const float* add;
    float* y;
    const unsigned* rows;    // R
    const unsigned* wanted;
    unsigned head;
    unsigned n, k;
    unsigned w_stride, x_stride, add_stride, y_stride;  // elements
    unsigned x_bf16;
    unsigned activation;  // 0 none, 1 GELU, 2 ReLU, 3 SiLU
};

#define HEAD_ROWS 8
#define HEAD_CHUNK 1024

__device__ __forceinline__ float4 load4(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 load4(const bf16* p) {
    uint2 v = *(const uint2*)p;
    return make_float4(low_f32(v.x), high_f32(v.x), low_f32(v.y), high_f32(v.y));
}

__device__ __forceinline__ float chain4(float sum, float4 w, float4 x) {
    sum = __fmaf_rn(w.x, x.x, sum);
    sum = __fmaf_rn(w.y, x.y, sum);
    sum = __fmaf_rn(w.z, x.z, sum);
    return __fmaf_rn(w.w, x.w, sum);
}

__device__ __forceinline__ float activate(float x, unsigned activation) {
    switch (activation) {
        case 1: return gelu_f32(x);
        case 2: return x < 0.0f ? 0.0f : x;  // NaN stays
        case 3: return silu_f32(x);
        default: return x;
    }
}

// Columns chunk .. of `count` rows into shared memory, zero past the last column.
__device__ __forceinline__ void stage_rows(float4* to, const HeadLinearArgs& a, unsigned first_row, unsigned count,
                                           unsigned chunk) {
    unsigned pieces = min_u(HEAD_CHUNK / 4, ceil_div(a.k - chunk, 4));
    for (unsigned i = threadIdx.x; i < count * pieces; i += blockDim.x) {
        unsigned row = i / pieces, piece = i % pieces, column = chunk + piece * 4;
        size_t at = (size_t)(first_row + row) * a.x_stride + column;
        float4 v = a.x_bf16 ? load4((const bf16*)a.x + at) : load4((const float*)a.x + at);
        v.y = column + 1 < a.k ? v.y : 0.0f;
        v.z = column + 2 < a.k ? v.z : 0.0f;
        v.w = column + 3 < a.k ? v.w : 0.0f;
        to[row * (HEAD_CHUNK / 4) + piece] = v;
    }
}

// Joins the lanes of the sums and writes them: lane F r + f has row r, feature f.
template <int F>
__device__ __forceinline__ void store_sums(const float (&acc)[F][HEAD_ROWS], const HeadLinearArgs& a,
                                           unsigned feature, unsigned first_row, unsigned count) {
    unsigned lane = threadIdx.x % 32, row = first_row + lane / F, column = feature + lane % F;
    float value = 0.0f;
    UNROLL
    for (int r = 0; r < HEAD_ROWS; r++) {
        if ((unsigned)r < count) {
            UNROLL
            for (int f = 0; f < F; f++) {
                float sum = warp_sum(acc[f][r]);
                value = lane == (unsigned)(F * r + f) ? sum : value;
            }
        }
    }
    if (lane / F < count && column < a.n) {
        value = activate(a.bias ? __fadd_rn(value, a.bias[column]) : value, a.activation);
        if (a.add) {
            value = __fadd_rn(a.add[(size_t)row * a.add_stride + column], value);
        }
        a.y[(size_t)row * a.y_stride + column] = value;
    }
}

template <class W, int F>
__device__ __forceinline__ void head_linear(const HeadLinearArgs& a) {
    SMEM(float4, x, HEAD_ROWS * HEAD_CHUNK / 4);
    unsigned rows = *a.rows, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (a.wanted && (*a.wanted >> a.head & 1) == 0) {
        return;
    }
    unsigned row_tiles = ceil_div(rows, HEAD_ROWS), items = row_tiles * ceil_div(a.n, 8 * F);
    for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
        unsigned first_row = item % row_tiles * HEAD_ROWS, count = min_u(rows - first_row, HEAD_ROWS);
        unsigned feature = (item / row_tiles * 8 + warp) * F;
        // Features past the last one repeat it and are not stored.
        const W* w[F];
        UNROLL
        for (int f = 0; f < F; f++) {
            w[f] = (const W*)a.w + (size_t)min_u(feature + f, a.n - 1) * a.w_stride + lane * 4;
        }
        float acc[F][HEAD_ROWS] = {};
        for (unsigned chunk = 0; chunk < a.k; chunk += HEAD_CHUNK) {
            __syncthreads();  // everybody has read the last chunk
            stage_rows(x, a, first_row, count, chunk);
            __syncthreads();
            unsigned end = feature < a.n ? min_u(a.k - chunk, HEAD_CHUNK) : 0;
            for (unsigned j = lane * 4; j < end; j += 128) {
                float4 v[F];
                UNROLL
                for (int f = 0; f < F; f++) {
                    v[f] = load4(w[f]);
                    w[f] += 128;
                }
                UNROLL
                for (int r = 0; r < HEAD_ROWS; r++) {
                    if ((unsigned)r < count) {  // the same for all threads
                        float4 y = x[r * (HEAD_CHUNK / 4) + j / 4];
                        UNROLL
                        for (int f = 0; f < F; f++) {
                            acc[f][r] = chain4(acc[f][r], v[f], y);
                        }
                    }
                }
            }
        }
        if (feature < a.n) {
            store_sums<F>(acc, a, feature, first_row, count);
        }
    }
}

#define HEAD_LINEAR(NAME, W, F)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(HeadLinearArgs args) { head_linear<W, F>(args); } \
    KERNEL(NAME)

HEAD_LINEAR(head_linear_f32, float, 4)
HEAD_LINEAR(head_linear_bf16, bf16, 4)
HEAD_LINEAR(head_linear_narrow_f32, float, 1)
HEAD_LINEAR(head_linear_narrow_bf16, bf16, 1)
