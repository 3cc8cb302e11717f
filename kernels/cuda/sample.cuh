// What sampling shares: the parameters of a row, the counter RNG, and the weights.
#pragma once
#include "block.cuh"

// One row's draw. Ranges name parts of the step's shared lists.
struct RowSample {
    unsigned long long seed;
    unsigned choice, position, tag;  // tag: purpose << 16 | model
    float temperature;
    unsigned top_k;
    float top_p, min_p;
    float repetition, presence, frequency;
    unsigned bias, bias_len;            // of bias_ids and bias_values
    unsigned forbidden, forbidden_len;  // of forbidden_ids
    unsigned history, history_len;      // of history_ids
    unsigned prompt_len;                // of the history
    unsigned spare;
};

struct SampleArgs {
    const float* logits;  // [R][stride], raw; only read
    float* work;          // [R][stride]: a changed copy, for rows that bias, mask or penalise
    unsigned* counts;     // [R][vocab], all zero before and after
    const RowSample* draws;
    const unsigned* bias_ids;
    const float* bias_values;
    const unsigned* forbidden_ids;
    const unsigned* history_ids;
    unsigned* token;  // [R]
    unsigned* fault;  // [R]: 1 if the logits allow no draw, else 0
    float* logit;     // [R]: the token's, raw
    const unsigned* rows;
    unsigned vocab, stride;
};

// Word 0 above word 1 of Philox4x32-10, counter (0, position, choice, tag), key the seed: `rng::bits` of the host.
__device__ __forceinline__ unsigned long long random_bits(const RowSample& d) {
    unsigned c[4] = {0, d.position, d.choice, d.tag}, k0 = (unsigned)d.seed, k1 = (unsigned)(d.seed >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned long long a = (unsigned long long)c[0] * 0xD2511F53u, b = (unsigned long long)c[2] * 0xCD9E8D57u;
        c[0] = (unsigned)(b >> 32) ^ c[1] ^ k0;
        c[2] = (unsigned)(a >> 32) ^ c[3] ^ k1;
        c[1] = (unsigned)b;
        c[3] = (unsigned)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (unsigned long long)c[0] << 32 | c[1];
}

// The upper 64 bits of a product.
__device__ __forceinline__ unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
    unsigned long long al = (unsigned)a, ah = a >> 32, bl = (unsigned)b, bh = b >> 32;
    unsigned long long middle = ah * bl + (al * bl >> 32), low = al * bh + (unsigned)middle;
    return ah * bh + (middle >> 32) + (low >> 32);
}

// round_ties_even(exp((x - max) / temperature) 2^30), an integer: sums of weights are exact in any order.
__device__ __forceinline__ unsigned weight_of(float x, float max, float temperature) {
    float w = __fmul_rn(exp_f32(__fdiv_rn(__fsub_rn(x, max), temperature)), 1073741824.0f);
    if (w < 8388608.0f) {  // 2^23: from here on every float is an integer
        w = __fsub_rn(__fadd_rn(w, 8388608.0f), 8388608.0f);
    }
    return (unsigned)w;
}

// What all threads of a block know about the row that it draws.
struct Draw {
    const float* x;  // the logits, changed or raw
    unsigned vocab;
    float max, temperature;
    unsigned long long least_key;  // smaller rank keys are filtered out
    unsigned least_weight;         // and smaller weights

    __device__ __forceinline__ unsigned long long key(unsigned id) const { return rank_key(id, x[id]); }
    __device__ __forceinline__ unsigned weight(unsigned id) const { return weight_of(x[id], max, temperature); }
    __device__ __forceinline__ unsigned kept(unsigned id) const {
        unsigned w = weight(id);
        return key(id) < least_key || w < least_weight ? 0 : w;
    }
};
