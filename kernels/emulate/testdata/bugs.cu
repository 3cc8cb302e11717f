// Kernels with one fault each, next to the version without it. tests/emulate/bugs.rs says which build must see which.
#include "emu.h"

// Sum of 128 floats by 4 warps: every thread writes the block's total.
template <bool BARRIER>
static inline void block_sum(float* out, const float* in) {
    SMEM(float, partial, 4);
    float v = in[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    if (BARRIER) __syncthreads();
    out[threadIdx.x] = partial[0] + partial[1] + partial[2] + partial[3];
}
extern "C" __global__ void sum_right(float* out, const float* in) { block_sum<true>(out, in); }
KERNEL(sum_right)
extern "C" __global__ void sum_no_barrier(float* out, const float* in) { block_sum<false>(out, in); }
KERNEL(sum_no_barrier)

enum { RIGHT, NO_WAIT, WRONG_COUNT, NO_BARRIER, EARLY_REFILL, NO_COMMIT };

// Each of 64 threads sums, over `tiles` tiles, the first float of the chunk that thread t ^ 33 copied.
template <int BUG>
static inline void pipeline(float* out, const float* in, int tiles) {
    DYN_SMEM(memory);
    unsigned t = threadIdx.x;
    auto issue = [&](int tile) { cp_async16(memory + (tile & 1) * 1024 + t * 16, in + (tile * 64 + int(t)) * 4); };
    float sum = 0;
    issue(0);
    cp_async_commit();
    for (int i = 0; i < tiles; i++) {
        if (i + 1 < tiles) issue(i + 1);
        if (BUG != NO_COMMIT) cp_async_commit();
        if (BUG == WRONG_COUNT) {
            cp_async_wait<2>();
        } else if (BUG != NO_WAIT) {
            cp_async_wait<1>();
        }
        if (BUG != NO_BARRIER) __syncthreads();
        sum += *reinterpret_cast<float*>(memory + (i & 1) * 1024 + (t ^ 33) * 16);
        if (BUG != EARLY_REFILL) __syncthreads();
    }
    out[t] = sum;
}
#define PIPELINE(name, bug)                                                       \
    extern "C" __global__ void name(float* out, const float* in, int tiles) {     \
        pipeline<bug>(out, in, tiles);                                            \
    }                                                                             \
    KERNEL(name)
PIPELINE(pipe_right, RIGHT)
PIPELINE(pipe_no_wait, NO_WAIT)
PIPELINE(pipe_wrong_count, WRONG_COUNT)
PIPELINE(pipe_no_barrier, NO_BARRIER)
PIPELINE(pipe_early_refill, EARLY_REFILL)
PIPELINE(pipe_no_commit, NO_COMMIT)

// Gathers in[table[t]]; the faulty version reads the table past its end.
extern "C" __global__ void gather_right(float* out, const float* in, const int* table) {
    out[threadIdx.x] = in[table[threadIdx.x]];
}
KERNEL(gather_right)
extern "C" __global__ void gather_overrun(float* out, const float* in, const int* table) {
    out[threadIdx.x] = in[table[threadIdx.x + 1] & 63];
}
KERNEL(gather_overrun)

// Every lane stores the same value to the same word: harmless on this machine, a race all the same.
extern "C" __global__ void same_word(float* out, const float* in) {
    SMEM(float, total, 1);
    total[0] = in[5];
    __syncthreads();
    out[threadIdx.x] = total[0];
}
KERNEL(same_word)

extern "C" __global__ void some_lanes_shuffle(float* out, const float* in) {
    float v = in[threadIdx.x];
    if (threadIdx.x % 32 < 20) v += __shfl_xor_sync(~0u, v, 1);
    out[threadIdx.x] = v;
}
KERNEL(some_lanes_shuffle)

extern "C" __global__ void divergent_barrier(float* out, const float* in) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = in[threadIdx.x];
}
KERNEL(divergent_barrier)

extern "C" __global__ void past_dynamic(float* out, const float* in, int floats) {
    DYN_SMEM(memory);
    auto* f = reinterpret_cast<float*>(memory);
    for (int i = int(threadIdx.x); i <= floats; i += int(blockDim.x)) f[i] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = in[threadIdx.x] + f[0];
}
KERNEL(past_dynamic)

extern "C" __global__ void past_static(float* out, const float* in) {
    SMEM(float, small, 64);
    small[threadIdx.x + (threadIdx.x == 63)] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = small[threadIdx.x ^ 1];
}
KERNEL(past_static)

extern "C" __global__ void read_outside(float* out, const float* in, int n) {
    out[threadIdx.x] = in[threadIdx.x == 7 ? n : int(threadIdx.x)];
}
KERNEL(read_outside)

extern "C" __global__ void uninitialised(float* out, const float* in) {
    SMEM(float, table, 64);
    if (threadIdx.x != 9) table[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = table[threadIdx.x ^ 1];
}
KERNEL(uninitialised)

// Lane to lane through shared memory inside one warp: a __syncwarp orders it, a shuffle does not.
template <bool SYNC>
static inline void warp_exchange(float* out, const float* in) {
    SMEM(float, table, 64);
    unsigned t = threadIdx.x;
    table[t] = in[t];
    if (SYNC) {
        __syncwarp();
    } else {
        __shfl_sync(~0u, 0, 0);
    }
    out[t] = table[t ^ 1];
}
extern "C" __global__ void warp_sync_right(float* out, const float* in) { warp_exchange<true>(out, in); }
KERNEL(warp_sync_right)
extern "C" __global__ void warp_no_sync(float* out, const float* in) { warp_exchange<false>(out, in); }
KERNEL(warp_no_sync)

// The last block to arrive sums what all blocks left. The counter wraps by itself.
template <bool FENCE>
static inline void last_block(float* out, const float* in, float* partial, unsigned* counter) {
    SMEM(unsigned, ticket, 1);
    unsigned t = threadIdx.x;
    partial[blockIdx.x * 64 + t] = in[t] * float(blockIdx.x + 1);
    if (FENCE) __threadfence();
    __syncthreads();
    if (t == 0) ticket[0] = atomicInc(counter, gridDim.x - 1);
    __syncthreads();
    if (ticket[0] != gridDim.x - 1) return;
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b * 64 + (t ^ 1)];
    out[t] = sum;
}
extern "C" __global__ void last_block_right(float* out, const float* in, float* partial, unsigned* counter) {
    last_block<true>(out, in, partial, counter);
}
KERNEL(last_block_right)
extern "C" __global__ void last_block_no_fence(float* out, const float* in, float* partial, unsigned* counter) {
    last_block<false>(out, in, partial, counter);
}
KERNEL(last_block_no_fence)

// Two blocks write one word.
extern "C" __global__ void blocks_collide(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }
KERNEL(blocks_collide)

extern "C" __global__ void misaligned_vector(float* out, const float* in) {
    if (threadIdx.x == 0) {
        float4 v = *reinterpret_cast<const float4*>(in + 1);
        out[0] = v.x;
    }
}
KERNEL(misaligned_vector)

// in[1] holds the bits of 2.0f.
extern "C" __global__ void divide_by_zero(int* out, const int* in) { out[threadIdx.x] = in[threadIdx.x] / (in[1] - 0x40000000); }
KERNEL(divide_by_zero)

extern "C" __global__ void overflow_stack(float* out, const float* in) {
    volatile char big[66 << 10];
    big[threadIdx.x] = 1;
    out[threadIdx.x] = in[threadIdx.x] + big[threadIdx.x];
}
KERNEL(overflow_stack)

extern "C" __global__ void far_outside(float* out, const float* in) { out[threadIdx.x + (size_t(1) << 28)] = in[0]; }
KERNEL(far_outside)

extern "C" __global__ void spins_for_ever(float* out, const float* in) {
    while (in[0] != 12345.0f) spin_hint();
    out[0] = 1;
}
KERNEL(spins_for_ever)

extern "C" __global__ void shuffle_from_outside(float* out, const float* in) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, in[threadIdx.x], 16);
}
KERNEL(shuffle_from_outside)

extern "C" __global__ void copy_misaligned(float* out, const float* in) {
    DYN_SMEM(memory);
    cp_async16(memory + threadIdx.x * 16, in + threadIdx.x * 4 + 1);
    cp_async_commit();
    cp_async_wait<0>();
    out[threadIdx.x] = *reinterpret_cast<float*>(memory + threadIdx.x * 16);
}
KERNEL(copy_misaligned)

// Sums of a group that are read before it ends.
extern "C" __global__ void group_read_early(float* out, const float* in) {
    unsigned a[4] = {}, b[2] = {};
    float c[4] = {in[threadIdx.x], 0, 0, 0};
    float early;
    {
        MMA_GROUP;
        mma_bf16_16816(c, a, b);
        early = c[0];
    }
    out[threadIdx.x] = early;
}
KERNEL(group_read_early)

extern "C" __global__ void group_divergent(float* out, const float* in) {
    unsigned a[4] = {}, b[2] = {};
    float c[4] = {in[threadIdx.x], 0, 0, 0};
    MMA_GROUP;
    for (unsigned i = 0; i <= threadIdx.x % 2; i++) mma_bf16_16816(c, a, b);
    out[threadIdx.x] = in[threadIdx.x];
}
KERNEL(group_divergent)
