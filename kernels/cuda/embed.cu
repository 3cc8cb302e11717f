// Embedding rows from a packed table (pack.cu), which a tied output matrix shares.
//
// In         table packed [ceil(vocab / 16)][kb][2][32][16 bytes]; ids [T]; T read from the device.
// Out        h [T][stride] bf16, columns 0 .. 32 kb (the padding of a row is zero, as the table's is).
// Faults     an id at or above vocab reads row 0 and sets *fault to 1.
// Grid       one block a token (any number, they stride), 128 threads. Shared: none.
// Moves      T H (4 + 2) bytes: half of each 16-byte piece belongs to another token.
#include "num.cuh"

struct EmbedArgs {
    const unsigned* table;
    const unsigned* ids;
    bf16* h;
    const unsigned* rows;  // T
    unsigned* fault;
    unsigned vocab;
    unsigned kb;
    unsigned stride;  // of h, elements, a multiple of 32
};

extern "C" __global__ void __launch_bounds__(128, 8) embed(EmbedArgs a) {
    for (unsigned token = blockIdx.x; token < *a.rows; token += gridDim.x) {
        unsigned id = a.ids[token];
        if (id >= a.vocab) {
            id = 0;
            if (threadIdx.x == 0) {
                atomicExch(a.fault, 1u);
            }
        }
        const unsigned* tile = a.table + (size_t)(id / 16) * a.kb * 256;
        unsigned g = id % 8, high = id / 8 % 2;
        uint2* out = (uint2*)(a.h + (size_t)token * a.stride);
        // Each thread moves four columns c = 32 b + 8 t + 4 j: words `high` and `high + 2` of one piece.
        for (unsigned i = threadIdx.x; i < a.kb * 8; i += blockDim.x) {
            unsigned b = i / 8, t = i / 2 % 4, j = i % 2;
            const unsigned* piece = tile + (b * 64 + j * 32 + g * 4 + t) * 4 + high;
            out[i] = make_uint2(piece[0], piece[2]);
        }
    }
}
KERNEL(embed)
