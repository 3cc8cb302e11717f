// Linear layers for many rows, Y[T][N] = X[T][K] * W^T (+ bias): the bits of linear.cu, with W and X shared by a block.
//
// Shapes, output: as linear.cu.
// Grid       any, 256 threads; each block strides over tiles of 128 features and 128 tokens, tokens fastest, so that
//            the blocks that share weights run together. T is read from the device.
// Shared     3 stages x (16 KB of W + 16 KB of X) of 64 columns; with slices = 8 another 64 KB. The stages hold the tile
//            at the end, [128 tokens][132] f32.
// Moves      per 128 tokens N K 2 bytes of W, per 128 features T K 2 bytes of X, mostly from the second-level cache.
//
// Order of one output: that of linear.cu. `acc` is the chain of a slice, `total` their sum from left to right; with slices
// = 8 the first half waits in shared memory, where only its own thread reads it, and is added to the second at the end.
//
// A warp has 64 features x 32 tokens: 64 products for 24 loads of 16 bytes per 64 columns. W lies as packed, so a
// fragment is 512 bytes in a row; X has rows of 128 bytes whose halves are exchanged in odd rows: no bank conflicts.
#include "linear.cuh"

#define TILE 128
#define RING 3
#define STAGE_PIECES 2048  // 16 bytes each; W, then X
#define X_PIECES 1024      // where X starts
#define OUT_PITCH (TILE + 4)

// The copies of one thread: its pieces of the next stage.
struct TileCopy {
    const uint4* w[2];  // of tiles tid / 64 and tid / 64 + 4
    const uint4* x;     // of row tid / 8; the next ones are 32 rows on
    unsigned x_step;    // 32 rows, in pieces
    unsigned rows;      // that exist from row tid / 8 on, 32 rows apart
    unsigned x_to;      // place of the first piece of X in a stage
    unsigned block;     // 32-block of K

    __device__ __forceinline__ TileCopy(const LinearArgs& a, unsigned feature_tile, unsigned first_row,
                                        unsigned all_rows) {
        unsigned tid = threadIdx.x, tiles = ceil_div(a.n, 16);
        UNROLL
        for (int i = 0; i < 2; i++) {
            // Tiles past the last one repeat it and are not stored.
            unsigned tile = min_u(feature_tile * 8 + tid / 64 + 4 * i, tiles - 1);
            w[i] = a.w + (size_t)tile * a.kb * BLOCK_PIECES + tid % 64;
        }
        unsigned row = tid / 8, pieces = a.x_stride / 8;
        x = (const uint4*)a.x + (size_t)(first_row + row) * pieces + tid % 8;
        x_step = 32 * pieces;
        unsigned left = all_rows - first_row;
        rows = left > row ? ceil_div(left - row, 32) : 0;
        x_to = X_PIECES + row * 8 + (tid % 8 ^ (row & 1) * 4);
        block = 0;
    }

    // Starts the copy of 64 columns into the stage at `to`; of 32 if there are no more.
    __device__ __forceinline__ void stage(const LinearArgs& a, uint4* to) {
        unsigned tid = threadIdx.x;
        UNROLL
        for (int half = 0; half < 2; half++) {
            if (block + half < a.kb) {
                cp_async16(to + half * 512 + tid, w[0] + half * BLOCK_PIECES);
                cp_async16(to + half * 512 + 256 + tid, w[1] + half * BLOCK_PIECES);
            }
        }
        bool inside = block + tid % 8 / 4 < a.kb;
        UNROLL
        for (int i = 0; i < 4; i++) {
            bool valid = inside && (unsigned)i < rows;
            cp_async16_zfill(to + x_to + i * 256, valid ? (const void*)(x + (size_t)i * x_step) : (const void*)a.x,
                             valid ? 16 : 0);
        }
        w[0] += 2 * BLOCK_PIECES, w[1] += 2 * BLOCK_PIECES;
        x += 8;
        block += 2;
    }
};

// Sums of a warp: four tiles of 16 features by four of 8 tokens.
struct TileSums {
    float acc[4][4][4];
    float total[4][4][4];
};

#define EACH_SUM(m, n, i)             \
    UNROLL for (int m = 0; m < 4; m++) \
    UNROLL for (int n = 0; n < 4; n++) \
    UNROLL for (int i = 0; i < 4; i++)

// The end of slice `slice`: into the total; the first half of two aside.
__device__ __forceinline__ void end_slice(TileSums& s, unsigned slice, unsigned half, float* aside) {
    bool first = slice == 0 || slice == half;
    EACH_SUM(m, n, i) {
        s.total[m][n][i] = first ? s.acc[m][n][i] : __fadd_rn(s.total[m][n][i], s.acc[m][n][i]);
        s.acc[m][n][i] = 0.0f;
    }
    if (slice + 1 == half) {
        EACH_SUM(m, n, i) { aside[((m * 4 + n) * 4 + i) * 256 + threadIdx.x] = s.total[m][n][i]; }
    }
}

// 32 columns of a stage.
__device__ __forceinline__ void multiply_tile(float (&acc)[4][4][4], const uint4* stage, unsigned half,
                                              unsigned warp, unsigned lane) {
    unsigned g = lane / 4, t = lane % 4;
    const uint4* x = stage + X_PIECES + (warp / 2 * 32 + g) * 8 + ((half * 4 + t) ^ (g & 1) * 4);
    uint4 tokens[4];
    UNROLL
    for (int n = 0; n < 4; n++) {
        tokens[n] = x[n * 64];
    }
    multiply<4, 4>(acc, stage + half * 512 + warp % 2 * 256 + lane, tokens);
}

// Puts the total of the warp where rows of Y can be written whole.
__device__ __forceinline__ void place_tile(float* out, const TileSums& s, unsigned warp, unsigned lane) {
    unsigned feature = warp % 2 * 64 + lane / 4, token = warp / 2 * 32 + lane % 4 * 2;
    EACH_SUM(m, n, i) {
        out[(token + n * 8 + i % 2) * OUT_PITCH + feature + m * 16 + i / 2 * 8] = s.total[m][n][i];
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) linear_tiled(LinearArgs a) {
    DYN_SMEM(shared);
    uint4* ring = (uint4*)shared;
    float* aside = (float*)(ring + RING * STAGE_PIECES);
    unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    unsigned rows = *a.rows, slices = min_u(a.slices, a.kb), half = a.slices == 8 ? slices / 2 : 0;
    unsigned token_tiles = ceil_div(rows, TILE), items = token_tiles * ceil_div(a.n, TILE);
    unsigned stages = ceil_div(a.kb, 2);
    for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
        unsigned feature_tile = item / token_tiles, first_row = item % token_tiles * TILE;
        TileCopy copy(a, feature_tile, first_row, rows);
        UNROLL
        for (int i = 0; i < RING - 1; i++) {
            if ((unsigned)i < stages) {
                copy.stage(a, ring + i * STAGE_PIECES);
            }
            cp_async_commit();
        }
        TileSums sums = {};
        unsigned read = RING - 1, block = 0;
        for (unsigned slice = 0; slice < slices; slice++) {
            for (unsigned end = (slice + 1) * a.kb / slices; block < end; block++) {
                if (block % 2 == 0) {
                    cp_async_wait<RING - 2>();
                    __syncthreads();  // everybody's copies are there, and everybody has read the stage that is filled
                    if (copy.block < a.kb) {
                        copy.stage(a, ring + read * STAGE_PIECES);
                    }
                    cp_async_commit();
                    read = read + 1 == RING ? 0 : read + 1;
                }
                multiply_tile(sums.acc, ring + read * STAGE_PIECES, block % 2, warp, lane);
            }
            end_slice(sums, slice, half, aside);
        }
        if (half != 0) {
            EACH_SUM(m, n, i) {
                sums.total[m][n][i] =
                    __fadd_rn(aside[((m * 4 + n) * 4 + i) * 256 + threadIdx.x], sums.total[m][n][i]);
            }
        }
        float* out = (float*)shared;
        __syncthreads();  // the last stage has been read
        place_tile(out, sums, warp, lane);
        __syncthreads();
        unsigned column = feature_tile * TILE + threadIdx.x % TILE;
        for (unsigned row = threadIdx.x / TILE; row < min_u(rows - first_row, TILE); row += 256 / TILE) {
            if (column < a.n) {
                store_output(a, first_row + row, column, out[row * OUT_PITCH + threadIdx.x % TILE]);
            }
        }
        __syncthreads();  // the next tile is copied over it
    }
}
KERNEL(linear_tiled)
