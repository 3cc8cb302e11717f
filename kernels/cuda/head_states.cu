// Hidden states for heads that read whole prompts: kept beside keys and values, then averaged over a prompt.
//
// keep_states
// In         states [T][stride] bf16, after the final norm; T read from the device.
// Out        kept [page][16][stride] bf16: token i at its row's page of its position.
// Grid       any, 256 threads, each strides over pieces of eight features. Shared: none.
// Moves      T stride 4 bytes.
//
// prompt_means
// In         kept, of all positions of the prompts; ends [E], E read from the device.
// Out        means [E][out_stride] f32, columns 0 .. width. Nothing, unless *wanted has bit `head` (null: always).
// Grid       any, 256 threads, each block strides over items of an end and 64 columns. Shared: static, 4 KB.
// Moves      E tokens width 2 bytes.
//
// Order of a mean: warp w adds positions w, w + 8, .. in f64, warps join from left to right, one division, one rounding to
// f32. bf16 states of one size are summed without error, so the CPU's order gives the same.
#include "num.cuh"

struct KeepArgs {
    const bf16* states;
    bf16* kept;
    const unsigned* positions;  // [T]
    const unsigned* token_row;  // [T]
    const unsigned* tables;     // [rows][table_stride] of pages
    const unsigned* tokens;     // T
    unsigned stride;            // elements, a multiple of 32
    unsigned table_stride;
};

// A row of the step that has seen its prompt and no more.
struct HeadEnd {
    unsigned row;
    unsigned tokens;  // of the prompt, at least 1
};

struct MeanArgs {
    const bf16* kept;
    const HeadEnd* ends;
    const unsigned* tables;
    float* means;
    const unsigned* count;  // E
    const unsigned* wanted;
    unsigned head;
    unsigned width;
    unsigned stride, out_stride;  // elements
    unsigned table_stride;
};

#define MEAN_COLUMNS 64

extern "C" __global__ void __launch_bounds__(256, 4) keep_states(KeepArgs a) {
    unsigned pieces = a.stride / 8, all = *a.tokens * pieces;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        unsigned token = i / pieces, piece = i % pieces, position = a.positions[token];
        size_t page = a.tables[(size_t)a.token_row[token] * a.table_stride + position / 16];
        ((uint4*)a.kept)[(page * 16 + position % 16) * pieces + piece] = ((const uint4*)a.states)[i];
    }
}
KERNEL(keep_states)

extern "C" __global__ void __launch_bounds__(256, 4) prompt_means(MeanArgs a) {
    SMEM(double, sums, 8 * MEAN_COLUMNS);
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (a.wanted && (*a.wanted >> a.head & 1) == 0) {
        return;
    }
    unsigned groups = ceil_div(a.width, MEAN_COLUMNS), items = *a.count * groups;
    for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
        HeadEnd end = a.ends[item / groups];
        unsigned first = item % groups * MEAN_COLUMNS, column = first + lane * 2;
        const unsigned* pages = a.tables + (size_t)end.row * a.table_stride;
        double low = 0.0, high = 0.0;
        if (column < a.stride) {  // columns width .. stride are zero
            UNROLL_BY(4)
            for (unsigned p = warp; p < end.tokens; p += 8) {
                size_t at = ((size_t)pages[p / 16] * 16 + p % 16) * a.stride + column;
                unsigned v = *(const unsigned*)(a.kept + at);
                low += (double)low_f32(v);
                high += (double)high_f32(v);
            }
        }
        sums[warp * MEAN_COLUMNS + lane * 2] = low;
        sums[warp * MEAN_COLUMNS + lane * 2 + 1] = high;
        __syncthreads();
        column = first + threadIdx.x;
        if (threadIdx.x < MEAN_COLUMNS && column < a.width) {
            double sum = sums[threadIdx.x];
            for (unsigned w = 1; w < 8; w++) {
                sum += sums[w * MEAN_COLUMNS + threadIdx.x];
            }
            a.means[(size_t)(item / groups) * a.out_stride + column] = (float)(sum / (double)end.tokens);
        }
        __syncthreads();  // the next item writes the sums
    }
}
KERNEL(prompt_means)
