// Rows that router heads read, as f32: copied, normalised, or their softmax.
//
// In         by `source`: 0 x f32 [R][x_stride], 1 x bf16 [R][x_stride], 2 row ids[R] of a packed bf16 table (pack.cu) of
//            kb 32-blocks, an id at or above vocab reads row 0; R read from the device.
// Out        out [R][out_stride] f32, columns 0 .. width. Nothing, unless *wanted has bit `head` (null: always).
// By `op`    0 copy; 1 LayerNorm with weight and bias [width] f32; 2 softmax.
// Grid       one block a row (any number, they stride), 256 threads. Shared: static, 2.1 KB.
// Moves      R width (2 to 12 read + 4) bytes, most of it from the second-level cache.
//
// Order: thread t chains columns t, t + 256, ..; lanes join in the order 16, 8, 4, 2, 1, warps from left to right. Norm:
// mean = sum / width; d = x - mean; v = chain of fma(d, d, v); scale = 1 / sqrt(v / width + eps); fma(d scale, weight,
// bias). Softmax: e = exp(x - max), their sum in f64, threads joined in a tree, e / sum.
#include "block.cuh"

struct HeadRowsArgs {
    const void* x;
    const unsigned* ids;
    const float* weight;
    const float* bias;
    float* out;
    const unsigned* rows;  // R
    const unsigned* wanted;
    unsigned head;
    unsigned source, op;
    unsigned width;
    unsigned x_stride, out_stride;  // elements
    unsigned kb, vocab;
    float eps;
};

// Where a row lies.
struct HeadRow {
    const void* base;
    unsigned source, id;

    __device__ __forceinline__ HeadRow(const HeadRowsArgs& a, unsigned row) {
        source = a.source;
        id = 0;
        if (source == 2) {
            id = a.ids[row] < a.vocab ? a.ids[row] : 0;
            base = (const unsigned*)a.x + (size_t)(id / 16) * a.kb * 256;
        } else {
            size_t at = (size_t)row * a.x_stride;
            base = source == 0 ? (const void*)((const float*)a.x + at) : (const void*)((const bf16*)a.x + at);
        }
    }

    __device__ __forceinline__ float at(unsigned column) const {
        if (source == 0) {
            return ((const float*)base)[column];
        }
        if (source == 1) {
            return bf16_to_f32(((const bf16*)base)[column]);
        }
        // Column 32 b + 8 t + 4 j + e: half e % 2 of word (id's row of 8) + e / 2 * 2 of piece (j, lane) in block b.
        unsigned b = column / 32, t = column / 8 % 4, j = column / 4 % 2, e = column % 4;
        unsigned word = ((const unsigned*)base)[(b * 64 + j * 32 + id % 8 * 4 + t) * 4 + id / 8 % 2 + e / 2 * 2];
        return e % 2 ? high_f32(word) : low_f32(word);
    }
};

__device__ __forceinline__ void head_layer_norm(const HeadRowsArgs& a, const HeadRow& x, float* out, float* slots) {
    float sum = 0.0f, square = 0.0f;
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        sum = __fadd_rn(sum, x.at(i));
    }
    float mean = __fdiv_rn(block_sum_f32(sum, slots), (float)a.width);
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        float d = __fsub_rn(x.at(i), mean);
        square = __fmaf_rn(d, d, square);
    }
    float scale = inverse_rms(block_sum_f32(square, slots + BLOCK_WARPS), a.width, a.eps);
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        out[i] = __fmaf_rn(__fmul_rn(__fsub_rn(x.at(i), mean), scale), a.weight[i], a.bias[i]);
    }
}

__device__ __forceinline__ void head_softmax(const HeadRowsArgs& a, const HeadRow& x, float* out,
                                             unsigned long long* keys, double* sums) {
    unsigned long long best = 0;
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        unsigned long long key = rank_key(0, x.at(i));
        best = key > best ? key : best;
    }
    best = block_max(best, keys);
    float max = best == 0 ? NEG_INF : key_value(best);
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        sum += (double)exp_f32(__fsub_rn(x.at(i), max));
    }
    float scale = (float)block_sum_f64(sum, sums);
    for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
        out[i] = __fdiv_rn(exp_f32(__fsub_rn(x.at(i), max)), scale);
    }
}

extern "C" __global__ void __launch_bounds__(256, 4) head_rows(HeadRowsArgs a) {
    SMEM(float, slots, 2 * BLOCK_WARPS);
    SMEM(unsigned long long, keys, BLOCK_WARPS);
    SMEM(double, sums, 32 * BLOCK_WARPS);
    if (a.wanted && (*a.wanted >> a.head & 1) == 0) {
        return;
    }
    for (unsigned row = blockIdx.x; row < *a.rows; row += gridDim.x) {
        HeadRow x(a, row);
        float* out = a.out + (size_t)row * a.out_stride;
        if (a.op == 1) {
            head_layer_norm(a, x, out, slots);
        } else if (a.op == 2) {
            head_softmax(a, x, out, keys, sums);
        } else {
            for (unsigned i = threadIdx.x; i < a.width; i += blockDim.x) {
                out[i] = x.at(i);
            }
        }
    }
}
KERNEL(head_rows)
