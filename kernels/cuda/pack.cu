// Weight packing at load: row-major rows of any storage type to the tiles that the linear kernels read.
//
// In         src [n][k], bf16 (type 0), f16 (1) or f32 (2), aligned to its element.
// Out        dst [tiles][kb][2][32 lanes][16 bytes] bf16, kb = ceil(k / 32): piece j of lane (g = lane / 4,
//            t = lane % 4) of a (16 features, 32 columns) block is the A fragment of mma j:
//            {W[g][c], W[g+8][c], W[g][c+2], W[g+8][c+2]}, two columns a word, c = 8t + 4j. Zeros pad n and k.
// Tiles      source tile i (rows 16 i ..) becomes tile first_tile + i * tile_step: gate and up interleave with
//            step 2, q, k and v stack with step 1.
// Grid       any, 256 threads, each strides over pieces. Shared: none.
// Moves      n k (source size + 2) bytes.
#include "num.cuh"

struct PackArgs {
    const void* src;
    uint4* dst;
    unsigned n, k;
    unsigned first_tile, tile_step;
    unsigned type;
};

__device__ __forceinline__ unsigned short load_bf16(const PackArgs& a, unsigned row, unsigned column) {
    if (row >= a.n || column >= a.k) {
        return 0;
    }
    size_t at = (size_t)row * a.k + column;
    if (a.type == 0) {
        return ((const bf16*)a.src)[at].bits;
    }
    float x = a.type == 1 ? f16_to_f32(((const f16*)a.src)[at]) : ((const float*)a.src)[at];
    return f32_to_bf16(x).bits;
}

__device__ __forceinline__ unsigned load_pair(const PackArgs& a, unsigned row, unsigned column) {
    return load_bf16(a, row, column) | (unsigned)load_bf16(a, row, column + 1) << 16;
}

extern "C" __global__ void __launch_bounds__(256, 4) pack_weight(PackArgs a) {
    unsigned kb = ceil_div(a.k, 32);
    size_t pieces = (size_t)ceil_div(a.n, 16) * kb * 64;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += (size_t)gridDim.x * blockDim.x) {
        unsigned lane = (unsigned)i % 32, j = (unsigned)(i / 32) % 2;
        size_t block = i / 64;
        unsigned tile = (unsigned)(block / kb), b = (unsigned)(block % kb);
        unsigned row = tile * 16 + lane / 4, column = b * 32 + lane % 4 * 8 + j * 4;
        uint4 piece = make_uint4(load_pair(a, row, column), load_pair(a, row + 8, column),
                                 load_pair(a, row, column + 2), load_pair(a, row + 8, column + 2));
        size_t to = (size_t)(a.first_tile + tile * a.tile_step) * kb + b;
        a.dst[to * 64 + i % 64] = piece;
    }
}
KERNEL(pack_weight)
