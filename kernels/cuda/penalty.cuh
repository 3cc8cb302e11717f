// What changes logits before the temperature: bias, forbidden ids, repetition, frequency and presence penalties, as
// `sampling::penalty` of the host, operation by operation. One block a row; the lists are a request's, not long.
#pragma once
#include "sample.cuh"

__device__ __forceinline__ bool needs_history(const RowSample& d) {
    return d.repetition != 1.0f || d.presence != 0.0f || d.frequency != 0.0f;
}

// Whether entry i is the first of its id, and the id exists: one thread alone then changes that logit.
__device__ __forceinline__ bool first_of_id(const unsigned* ids, unsigned i, unsigned vocab) {
    bool first = ids[i] < vocab;
    for (unsigned j = 0; j < i && first; j++) {
        first = ids[j] != ids[i];
    }
    return first;
}

// Adds the biases. The first entry of an id adds all of that id in order, so that equal ids keep the list's order.
__device__ __forceinline__ void add_bias(const SampleArgs& a, const RowSample& d, float* x) {
    const unsigned* ids = a.bias_ids + d.bias;
    const float* values = a.bias_values + d.bias;
    for (unsigned i = threadIdx.x; i < d.bias_len; i += blockDim.x) {
        if (first_of_id(ids, i, a.vocab)) {
            float sum = x[ids[i]];
            for (unsigned j = i; j < d.bias_len; j++) {
                sum = ids[j] == ids[i] ? __fadd_rn(sum, values[j]) : sum;
            }
            x[ids[i]] = sum;
        }
    }
}

__device__ __forceinline__ void mask_forbidden(const SampleArgs& a, const RowSample& d, float* x) {
    const unsigned* ids = a.forbidden_ids + d.forbidden;
    for (unsigned i = threadIdx.x; i < d.forbidden_len; i += blockDim.x) {
        if (first_of_id(ids, i, a.vocab)) {
            x[ids[i]] = NEG_INF;
        }
    }
}

// One id that occurs in the history, `output` times in its output part.
__device__ __forceinline__ float penalised(const RowSample& d, float x, unsigned output) {
    if (d.repetition != 1.0f) {
        x = x > 0.0f ? __fdiv_rn(x, d.repetition) : __fmul_rn(x, d.repetition);
    }
    if (output > 0) {
        x = __fsub_rn(x, __fmul_rn(d.frequency, (float)output));
        x = __fsub_rn(x, d.presence);
    }
    return x;
}

// A count is 0, or 2 n or 1 + 2 n for an id that was seen and occurs n times in the output (which of the two depends on
// what came first, and nobody asks). Whoever takes it away applies the penalty, and leaves the counts clean.
__device__ __forceinline__ void penalise(const SampleArgs& a, const RowSample& d, float* x, unsigned* counts) {
    const unsigned* ids = a.history_ids + d.history;
    for (unsigned i = threadIdx.x; i < d.history_len; i += blockDim.x) {
        if (ids[i] < a.vocab) {
            atomicMax(counts + ids[i], 1u);
        }
    }
    for (unsigned i = d.prompt_len + threadIdx.x; i < d.history_len; i += blockDim.x) {
        if (ids[i] < a.vocab) {
            atomicAdd(counts + ids[i], 2u);
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < d.history_len; i += blockDim.x) {
        unsigned count = ids[i] < a.vocab ? atomicExch(counts + ids[i], 0u) : 0;
        if (count != 0) {
            x[ids[i]] = penalised(d, x[ids[i]], count / 2);
        }
    }
    __syncthreads();
}

// The row's logits with all changes: the raw ones, or a changed copy.
__device__ __forceinline__ const float* changed_logits(const SampleArgs& a, const RowSample& d, unsigned row) {
    const float* raw = a.logits + (size_t)row * a.stride;
    float* x = a.work + (size_t)row * a.stride;
    for (unsigned id = threadIdx.x; id < a.vocab; id += blockDim.x) {
        x[id] = raw[id];
    }
    __syncthreads();
    add_bias(a, d, x);
    __syncthreads();
    mask_forbidden(a, d, x);
    __syncthreads();
    if (needs_history(d)) {
        penalise(a, d, x, a.counts + (size_t)row * a.vocab);
    }
    return x;
}
