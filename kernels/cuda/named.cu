// The logits of named ids, one a row: what a log-probability is made of beside the row's log-sum (signals.cu).
//
// In         logits [R][stride] f32, columns 0 .. vocab read; ids [R]; R from the device.
// Out        out [R]: the id's logit, minus infinity for an id that is no column.
// Grid       any, 256 threads, a thread a row, they stride. Shared: none.
// Moves      R 40 bytes (a sector a row).
#include "num.cuh"

struct NamedArgs {
    const float* logits;
    const unsigned* ids;
    float* out;
    const unsigned* rows;  // R
    unsigned vocab, stride;
};

extern "C" __global__ void __launch_bounds__(256, 4) named_logits(NamedArgs a) {
    for (unsigned row = blockIdx.x * blockDim.x + threadIdx.x; row < *a.rows; row += gridDim.x * blockDim.x) {
        unsigned id = a.ids[row];
        a.out[row] = id < a.vocab ? a.logits[(size_t)row * a.stride + id] : NEG_INF;
    }
}
KERNEL(named_logits)
