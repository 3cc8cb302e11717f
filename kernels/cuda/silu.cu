// The gate of the feed-forward layer: y = bf16(bf16(silu(gate)) * up).
//
// In         x [T][x_stride] bf16, gate and up interleaved by tiles of 16 features: gate 16 i .. at column 32 i,
//            up 16 i .. at 32 i + 16; T read from the device.
// Out        y [T][y_stride] bf16, columns 0 .. width; y_stride a multiple of 32.
// Grid       any, 256 threads, each strides over pieces of eight features. Shared: none.
// Moves      T width 6 bytes.
#include "num.cuh"

struct SiluArgs {
    const bf16* x;
    bf16* y;
    const unsigned* rows;
    unsigned width;
    unsigned x_stride, y_stride;
};

extern "C" __global__ void __launch_bounds__(256, 4) silu_mul(SiluArgs a) {
    // Features past `width` up to the end of a tile are zero in x, so whole pieces are written.
    unsigned pieces = ceil_div(a.width, 16) * 2;
    unsigned all = *a.rows * pieces;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        unsigned row = i / pieces, piece = i % pieces;
        const bf16* x = a.x + (size_t)row * a.x_stride + piece / 2 * 32 + piece % 2 * 8;
        float gate[8], up[8];
        unpack8(gate, *(const uint4*)x);
        unpack8(up, *(const uint4*)(x + 16));
        UNROLL
        for (int e = 0; e < 8; e++) {
            gate[e] = __fmul_rn(round_bf16(silu_f32(gate[e])), up[e]);
        }
        *(uint4*)(a.y + (size_t)row * a.y_stride + piece * 8) = pack8(gate);
    }
}
KERNEL(silu_mul)
