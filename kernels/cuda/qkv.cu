// What lies between the q, k, v product and attention: norm of each q and k head (if the model has one), rotation
// by the position, and the write of k and v into the paged cache.
//
// In         qkv [T][stride] bf16: q_heads, then kv_heads of k, then of v, HD elements each; norm weights [HD] bf16
//            or null; rope [positions][2][HD / 2] f32, cosines then sines; positions [T], token_row [T], tables
//            [rows][table_stride] of pages; T read from the device.
// Out        q in place; k and v to kv [page][kv_head][K, V][16][HD] bf16 of one layer.
// Instances  qkv_hd16, _hd32, _hd64, _hd128.
// Grid       any, 256 threads; four lanes a (token, head), they stride. Shared: none.
// Moves      T (q_heads + 2 kv_heads) HD 4 bytes, and the rotation table's rows.
//
// Order: lane t of the four holds elements 32 b + 8 t .. + 8; it chains its squares in ascending order, the four
// join in the order 1, 2; bf16(bf16(x r) w); the rotation in f32 with fused multiply-adds; rounded once.
#include "num.cuh"

struct QkvArgs {
    bf16* qkv;
    bf16* kv;
    const bf16* q_norm;
    const bf16* k_norm;
    const float* rope;
    const unsigned* positions;
    const unsigned* token_row;
    const unsigned* tables;
    const unsigned* rows;  // T
    unsigned q_heads, kv_heads;
    unsigned stride, table_stride;
    float eps;
};

// One head spread over four lanes.
template <int HD>
struct Head {
    static constexpr int blocks = HD < 32 ? 1 : HD / 32;
    float x[blocks][8];

    // Lane t has data; at HD 16 the upper two have none.
    static __device__ __forceinline__ bool holds(unsigned t) { return HD >= 32 || t < 2; }

    __device__ __forceinline__ void load(const bf16* head, unsigned t) {
        UNROLL
        for (int b = 0; b < blocks; b++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (holds(t)) {
                v = *(const uint4*)(head + 32 * b + 8 * t);
            }
            unpack8(x[b], v);
        }
    }

    __device__ __forceinline__ void store(bf16* head, unsigned t) const {
        if (holds(t)) {
            UNROLL
            for (int b = 0; b < blocks; b++) {
                *(uint4*)(head + 32 * b + 8 * t) = pack8(x[b]);
            }
        }
    }

    // All 32 lanes call it; `weight` null leaves the head as it is.
    __device__ __forceinline__ void norm(const bf16* weight, float eps, unsigned t) {
        float sum = 0.0f;
        UNROLL
        for (int b = 0; b < blocks; b++) {
            UNROLL
            for (int e = 0; e < 8; e++) {
                sum = __fadd_rn(sum, __fmul_rn(x[b][e], x[b][e]));
            }
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        if (!weight || !holds(t)) {
            return;
        }
        float r = inverse_rms(sum, HD, eps);
        UNROLL
        for (int b = 0; b < blocks; b++) {
            float w[8];
            unpack8(w, *(const uint4*)(weight + 32 * b + 8 * t));
            UNROLL
            for (int e = 0; e < 8; e++) {
                x[b][e] = norm_one(x[b][e], r, w[e]);
            }
        }
    }

    // All 32 lanes call it. From HD 64 on both elements of a pair lie in one lane.
    __device__ __forceinline__ void rotate(const float* cos, const float* sin, unsigned t) {
        if (HD >= 64) {
            UNROLL
            for (int b = 0; b < blocks / 2; b++) {
                UNROLL
                for (int e = 0; e < 8; e++) {
                    unsigned i = 32 * b + 8 * t + e;
                    rotate_pair(x[b][e], x[b + blocks / 2][e], cos[i], sin[i]);
                }
            }
            return;
        }
        constexpr unsigned apart = HD == 32 ? 2 : 1;
        UNROLL
        for (int e = 0; e < 8; e++) {
            float other = __shfl_xor_sync(~0u, x[0][e], apart);
            bool high = (t & apart) != 0;
            unsigned i = 8 * (t & (apart - 1)) + e;
            float a = high ? other : x[0][e], b = high ? x[0][e] : other;
            rotate_pair(a, b, cos[i], sin[i]);
            x[0][e] = high ? b : a;
        }
    }
};

// Where the cache keeps K (or V) of a head at a position.
template <int HD>
__device__ __forceinline__ bf16* cache_row(const QkvArgs& a, unsigned token, unsigned position, unsigned head,
                                           unsigned value) {
    unsigned page = a.tables[(size_t)a.token_row[token] * a.table_stride + position / 16];
    return a.kv + ((((size_t)page * a.kv_heads + head) * 2 + value) * 16 + position % 16) * HD;
}

template <int HD>
__device__ __forceinline__ void qk_norm_rope_kv(const QkvArgs& a) {
    unsigned heads = a.q_heads + 2 * a.kv_heads, all = *a.rows * heads;
    unsigned t = threadIdx.x % 4, quad = threadIdx.x % 32 / 4;
    // Whole warps go around together, because they shuffle: past the last head a lane carries zeros.
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 4; i - quad < all; i += gridDim.x * blockDim.x / 4) {
        unsigned unit = min_u(i, all - 1);
        unsigned token = unit / heads, head = unit % heads;
        bool is_q = head < a.q_heads, is_v = head >= a.q_heads + a.kv_heads;
        bf16* row = a.qkv + (size_t)token * a.stride + head * HD;
        unsigned position = a.positions[token];
        Head<HD> h = {};
        if (i < all) {
            h.load(row, t);
        }
        const float* table = a.rope + (size_t)position * HD;
        Head<HD> turned = h;
        turned.norm(is_q ? a.q_norm : a.k_norm, a.eps, t);
        turned.rotate(table, table + HD / 2, t);
        if (i >= all) {
            continue;
        }
        if (is_q) {
            turned.store(row, t);
        } else if (is_v) {
            h.store(cache_row<HD>(a, token, position, head - a.q_heads - a.kv_heads, 1), t);
        } else {
            turned.store(cache_row<HD>(a, token, position, head - a.q_heads, 0), t);
        }
    }
}

#define QKV(NAME, HD)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(QkvArgs args) { qk_norm_rope_kv<HD>(args); } \
    KERNEL(NAME)

QKV(qkv_hd16, 16)
QKV(qkv_hd32, 32)
QKV(qkv_hd64, 64)
QKV(qkv_hd128, 128)
