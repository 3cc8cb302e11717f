// The statistics of a tile of logits.
#pragma once
#include "num.cuh"

#define STAT_TILE 128

struct TileStats {
    unsigned long long key;  // rank key of the largest logit, 0 if all are NaN
    float s;                 // sum of exp(x - m), m the largest logit (0 if that is minus infinity)
    float u;                 // sum of (x - m) exp(x - m)
};

// What is subtracted before the exponential: the largest logit, or 0 where there is no finite one, so that
// exp(-inf - 0) is 0 and a NaN stays one.
__device__ __forceinline__ float finite_max(unsigned long long key) {
    return (unsigned)(key >> 32) <= KEY_NEG_INF_HIGH ? 0.0f : key_value(key);
}
