// Linear layers for few rows (linear_tiled.cu is for many): Y[T][N] = X[T][K] * W^T (+ bias), N1 to N5 of the numeric contract.
//
// Shapes     X bf16 row-major, stride a multiple of 32 elements, columns K.. of a row zero, base 16-byte aligned;
//            W packed (pack.cu), 1 KB per 16 features and 32 columns; T is read from the device.
// Output     bf16 [T][y_stride], rounded once, columns 0..n; or f32 logits, columns n_real..n minus infinity.
// Instances  linear_nt1 (T <= 8), _nt2 (16), _nt4 (32), _nt8 (64 a block row): NT column tiles of 8 tokens and MT
//            row tiles of 16 features a warp. More tokens: grid.y = ceil(T / 8 NT).
// Grid       x: any number of blocks, each strides over groups of 16 MT * 8/slices features; 256 threads.
// Shared     8 warps x 4 stages x MT KB, then partials [8][16 MT][8 NT + 4] f32: linear_shared_bytes() of the host.
// Moves      N K 2 bytes of W once per 8 NT tokens; X from the second-level cache.
//
// Order of one output, whatever T, NT, MT and the grid: K is cut in S = min(slices, kb) slices of 32-blocks at
// i * kb / S; a slice is one chain of mma from zero; slices are added from left to right. With slices = 8 (o and
// down, whose K tensor parallelism halves) the two halves are folded by themselves and then added.
//
// A lane copies exactly the 16-byte pieces of W that it will use, so its own wait suffices and the weight
// stream needs no barrier; the stream runs on from one group of features into the next.
#include "linear.cuh"

#define STAGES 4

// Which part of the weight a warp reads: one slice of K of its tiles in every group of the block.
struct Share {
    unsigned slice, sub;      // slice of K, place in the group
    unsigned slices;          // S
    unsigned first, blocks;   // 32-blocks of the slice
    unsigned group_tiles;     // tiles of 16 features in a group
    unsigned tiles, groups;   // of the whole weight
};

template <int MT>
__device__ __forceinline__ Share share_of(const LinearArgs& a, unsigned warp) {
    Share s;
    s.slices = min_u(a.slices, a.kb);
    s.slice = warp % a.slices;
    s.sub = warp / a.slices * MT;
    bool idle = s.slice >= s.slices;  // toy sizes: more warps than slices
    s.first = idle ? 0 : s.slice * a.kb / s.slices;
    s.blocks = idle ? 0 : (s.slice + 1) * a.kb / s.slices - s.first;
    s.group_tiles = 8 / a.slices * MT;
    s.tiles = ceil_div(a.n, 16);
    s.groups = ceil_div(s.tiles, s.group_tiles);
    return s;
}

// The loads of a lane, in the order of use, across groups.
template <int MT>
struct Stream {
    const uint4* next[MT];  // this lane's pieces of the next 32-block
    unsigned left;          // blocks left in the slice of this group; 0 after the last group
    unsigned group;

    __device__ __forceinline__ void seek(const LinearArgs& a, const Share& s, unsigned lane) {
        left = group < s.groups ? s.blocks : 0;
        if (left != 0) {
            UNROLL
            for (int m = 0; m < MT; m++) {
                // The last group may be partial: its missing tiles repeat the last one and are not stored.
                unsigned tile = min_u(group * s.group_tiles + s.sub + m, s.tiles - 1);
                next[m] = a.w + ((size_t)tile * a.kb + s.first) * BLOCK_PIECES + lane;
            }
        }
    }

    // Starts the copy of one 32-block into the stage at `to`.
    __device__ __forceinline__ void copy(uint4* to) {
        UNROLL
        for (int m = 0; m < MT; m++) {
            cp_async16(to + m * BLOCK_PIECES, next[m]);
            cp_async16(to + m * BLOCK_PIECES + 32, next[m] + 32);
            next[m] += BLOCK_PIECES;
        }
        cp_async_commit();
    }

    // After `count` copies: on to the next group when this one is exhausted.
    __device__ __forceinline__ void took(unsigned count, const LinearArgs& a, const Share& s, unsigned lane) {
        left -= count;
        if (left == 0) {
            group += gridDim.x;
            seek(a, s, lane);
        }
    }
};

template <int NT>
__device__ __forceinline__ void load_x(uint4 (&x)[NT], const uint4* base, const unsigned (&offset)[NT]) {
    UNROLL
    for (int n = 0; n < NT; n++) {
        x[n] = base[offset[n]];
    }
}

// Partials of a warp: [16 MT features][row pitch].
template <int NT, int MT>
__device__ __forceinline__ void store_partial(float* part, const float (&acc)[MT][NT][4], unsigned lane) {
    constexpr unsigned pitch = 8 * NT + 4;
    unsigned g = lane / 4, t = lane % 4;
    UNROLL
    for (int m = 0; m < MT; m++) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            float* p = part + (16 * m + g) * pitch + 8 * n + 2 * t;
            *(float2*)p = make_float2(acc[m][n][0], acc[m][n][1]);
            *(float2*)(p + 8 * pitch) = make_float2(acc[m][n][2], acc[m][n][3]);
        }
    }
}

// Slices from..to of one output, left to right; `part` is that output in slice 0, `step` a slice.
__device__ __forceinline__ float fold_slices(const float* part, unsigned step, unsigned from, unsigned to) {
    float sum = part[from * step];
    for (unsigned s = from + 1; s < to; s++) {
        sum = __fadd_rn(sum, part[s * step]);
    }
    return sum;
}

// Joins the slices of one group and writes its features for `rows` tokens from `first_row` on.
template <int NT, int MT>
__device__ __forceinline__ void fold_group(const LinearArgs& a, const Share& s, const float* partials,
                                           unsigned group, unsigned first_row, unsigned rows) {
    constexpr unsigned pitch = 8 * NT + 4, tile_floats = 16 * MT * pitch;
    unsigned log_features = (a.slices == 4 ? 5 : 4) + (MT == 2 ? 1 : 0);
    unsigned features = 1u << log_features;
    unsigned half = a.slices == 8 ? s.slices / 2 : 0;
    for (unsigned i = threadIdx.x; i < features * min_u(rows - first_row, 8 * NT); i += blockDim.x) {
        unsigned feature = i & (features - 1), row = i >> log_features;
        unsigned column = group * features + feature;
        if (column >= a.n) {
            continue;
        }
        unsigned warp = feature / (16 * MT) * a.slices;
        const float* part = partials + warp * tile_floats + feature % (16 * MT) * pitch + row;
        float sum = fold_slices(part, tile_floats, half, s.slices);
        if (half != 0) {
            sum = __fadd_rn(fold_slices(part, tile_floats, 0, half), sum);
        }
        store_output(a, first_row + row, column, sum);
    }
}

// What a warp keeps while it walks its slices.
template <int NT, int MT>
struct Walk {
    uint4* ring;           // this lane's piece of the first stage
    unsigned at;           // the stage to read, in pieces
    unsigned offset[NT];   // of this lane's piece in its tokens' rows
    const uint4* x;        // the 32-block of X that `ahead` holds
    uint4 ahead[NT];

    static constexpr unsigned stage = MT * BLOCK_PIECES, ring_mask = STAGES * stage - 1;

    // One 32-block; `more` says whether the slice goes on. Loads of X run one block ahead. With `COPY` the stage
    // that the last round used up is filled again; an empty group keeps the waits even without.
    template <bool COPY>
    __device__ __forceinline__ void block(float (&acc)[MT][NT][4], Stream<MT>& stream, bool more) {
        uint4 now[NT];
        UNROLL
        for (int n = 0; n < NT; n++) {
            now[n] = ahead[n];
        }
        x += more ? 4 : 0;
        load_x<NT>(ahead, x, offset);
        cp_async_wait<STAGES - 2>();
        multiply<NT, MT>(acc, ring + at, now);
        if (COPY) {
            stream.copy(ring + ((at + (STAGES - 1) * stage) & ring_mask));
        } else {
            cp_async_commit();
        }
        at = (at + stage) & ring_mask;
    }

    // One slice of one group.
    __device__ __forceinline__ void slice(float (&acc)[MT][NT][4], Stream<MT>& stream, const LinearArgs& a,
                                          const Share& s, unsigned lane) {
        x = (const uint4*)a.x + s.first * 4;
        load_x<NT>(ahead, x, offset);
        for (unsigned left = s.blocks; left != 0;) {
            unsigned run = min_u(left, stream.left);
            if (run == 0) {
                left--;
                block<false>(acc, stream, left != 0);
                continue;
            }
            unsigned end = left - run;
            UNROLL_BY(2)
            while (left != end) {
                left--;
                block<true>(acc, stream, left != 0);
            }
            stream.took(run, a, s, lane);
        }
    }
};

template <int NT, int MT>
__device__ __forceinline__ void linear_rows(const LinearArgs& a) {
    DYN_SMEM(shared);
    unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    unsigned rows = *a.rows, first_row = blockIdx.y * (8 * NT);
    if (first_row >= rows) {
        return;
    }
    constexpr unsigned stage = MT * BLOCK_PIECES, tile_floats = 16 * MT * (8 * NT + 4);
    float* partials = (float*)((uint4*)shared + 8 * STAGES * stage);
    Share s = share_of<MT>(a, warp);
    Walk<NT, MT> walk;
    walk.ring = (uint4*)shared + warp * (STAGES * stage) + lane;
    walk.at = 0;
    Stream<MT> stream = {};
    stream.group = blockIdx.x;
    stream.seek(a, s, lane);
    for (unsigned i = 0; i < STAGES - 1; i++) {
        if (stream.left == 0) {
            cp_async_commit();
            continue;
        }
        stream.copy(walk.ring + i * stage);
        stream.took(1, a, s, lane);
    }
    // Tokens past the last one repeat it: nothing of them is stored, and no row of a buffer needs padding.
    UNROLL
    for (int n = 0; n < NT; n++) {
        unsigned row = min_u(first_row + 8 * n + lane / 4, rows - 1);
        walk.offset[n] = row * (a.x_stride / 8) + lane % 4;
    }
    for (unsigned group = blockIdx.x; group < s.groups; group += gridDim.x) {
        if (s.blocks != 0) {
            float acc[MT][NT][4] = {};
            walk.slice(acc, stream, a, s, lane);
            store_partial<NT, MT>(partials + warp * tile_floats, acc, lane);
        }
        __syncthreads();
        fold_group<NT, MT>(a, s, partials, group, first_row, rows);
        __syncthreads();
    }
}

#define LINEAR(NAME, NT, MT, BLOCKS)                                                  \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) NAME(LinearArgs args) { \
        linear_rows<NT, MT>(args);                                                    \
    }                                                                                 \
    KERNEL(NAME)

LINEAR(linear_nt1, 1, 1, 4)
LINEAR(linear_nt2, 2, 1, 4)
LINEAR(linear_nt4, 4, 2, 1)
LINEAR(linear_nt8, 8, 2, 1)
