// Folds the units of attention.cu and writes the attended values. Items, layouts: attention.cuh.
//
// Out        out [T][out_stride] bf16, columns 0 .. q_heads HD, of the rows that have items.
// Instances  attention_merge_hd16, _hd32, _hd64, _hd128.
// Grid       any, 256 threads; a warp a (token, query head), they stride. Shared: none.
// Moves      (HD + 4) 4 bytes per unit, token and query head.
//
// Order: units fold left to right within a segment of 8, segments left to right; the first one is taken as it is;
// then n = max(M, m), a = exp2(M - n), b = exp2(m - n), L = fma(L, a, l b), O = fma(O, a, o b). Result O (1 / L) + 0.
#include "attention.cuh"

template <int HD>
struct State {
    static constexpr int width = HD < 32 ? 1 : HD / 32;
    float max, sum, o[width];

    // Lane l holds dimensions width l .. ; at HD 16 the upper half of the warp repeats the lower.
    static __device__ __forceinline__ unsigned dim(unsigned lane) { return HD < 32 ? lane % HD : lane * width; }

    __device__ __forceinline__ void load(const float* part, unsigned lane) {
        max = part[HD], sum = part[HD + 1];
        UNROLL
        for (int i = 0; i < width; i++) {
            o[i] = part[dim(lane) + i];
        }
    }

    __device__ __forceinline__ void fold(const State& next) {
        Join j(max, next.max);
        max = j.max;
        sum = j.of(sum, next.sum);
        UNROLL
        for (int i = 0; i < width; i++) {
            o[i] = j.of(o[i], next.o[i]);
        }
    }
};

template <int HD>
__device__ __forceinline__ void merge_units(const AttnArgs& a) {
    using S = State<HD>;
    unsigned lane = threadIdx.x % 32, all = *a.tokens * a.q_heads;
    unsigned warps = gridDim.x * blockDim.x / 32;
    for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < all; i += warps) {
        unsigned token = i / a.q_heads, q_head = i % a.q_heads;
        const AttnRow* row = a.row + a.token_row[token];
        AttnRow r = *row;
        if (row[1].item == r.item) {
            continue;  // attention_many.cu has written it
        }
        RowShape s(a, r);
        unsigned m = (token - r.first) * s.group + q_head % s.group, head = q_head / s.group;
        unsigned units = (r.start + token - r.first) / UNIT + 1;
        S total = {}, segment = {};
        for (unsigned unit = 0; unit < units; unit++) {
            unsigned item = (unit * a.kv_heads + head) * s.tiles + m / 16;
            S next;
            next.load(partial_of<HD>(a, r, s, item) + m % 16 * (HD + 4), lane);
            if (unit % SEGMENT == 0) {
                segment = next;
            } else {
                segment.fold(next);
            }
            if (unit % SEGMENT == SEGMENT - 1 || unit == units - 1) {
                if (unit < SEGMENT) {
                    total = segment;
                } else {
                    total.fold(segment);
                }
            }
        }
        float inverse = __fdiv_rn(1.0f, total.sum);
        bf16* out = a.out + (size_t)token * a.out_stride + q_head * HD + S::dim(lane);
        if (HD >= 32 || lane < HD) {
            UNROLL
            for (int e = 0; e < S::width; e++) {
                out[e] = f32_to_bf16(attended(total.o[e], inverse));
            }
        }
    }
}

#define MERGE(NAME, HD)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, 4) NAME(AttnArgs args) { merge_units<HD>(args); } \
    KERNEL(NAME)

MERGE(attention_merge_hd16, 16)
MERGE(attention_merge_hd32, 32)
MERGE(attention_merge_hd64, 64)
MERGE(attention_merge_hd128, 128)
