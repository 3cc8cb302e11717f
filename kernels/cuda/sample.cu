// From logits to a token: the rules of `sampling` on the host, with the same tokens for equal logits.
//
// In         SampleArgs (sample.cuh); R from the device; the raw logits stay as they are.
// Out        token [R], fault [R], logit [R]: the token's raw logit.
// Grid       one block a row (any number, they stride), 256 threads. Shared: static, 3.2 KB.
// Moves      the row 3 times without filters, 8 times more per top_k and top_p (second-level cache).
//
// Filters keep a leading part of the ranks, so each is one least rank key. It is found by a radix selection, eight
// bits at a time from the top: the bucket where the running sum (of ones for top_k, of weights for top_p) first
// meets its target holds the last rank that stays. All sums are integers.
#include "penalty.cuh"

#define DIGITS 256

// Counts and weights per digit, one digit of the search at a time.
struct Buckets {
    unsigned long long* weight;  // [DIGITS]
    unsigned* count;             // [DIGITS]
    unsigned* found;             // [2]: the digit, and whether there is one
    unsigned long long* passed;  // [1]: sum in front of the digit
};

__device__ __forceinline__ void fill_buckets(const Draw& d, const Buckets& b, unsigned shift, unsigned long long prefix,
                                             bool by_weight) {
    for (unsigned i = threadIdx.x; i < DIGITS; i += blockDim.x) {
        b.weight[i] = 0;
        b.count[i] = 0;
    }
    __syncthreads();
    for (unsigned id = threadIdx.x; id < d.vocab; id += blockDim.x) {
        unsigned long long key = d.key(id);
        if (shift == 56 || key >> (shift + 8) == prefix) {
            unsigned digit = (unsigned)(key >> shift) % DIGITS;
            atomicAdd(b.count + digit, 1u);
            if (by_weight) {
                atomicAdd(b.weight + digit, (unsigned long long)d.weight(id));
            }
        }
    }
    __syncthreads();
}

// The highest digit at which `sum` and the buckets down to it meet the target; an empty bucket is no rank.
__device__ __forceinline__ void find_digit(const Buckets& b, unsigned long long sum, double target, bool by_weight) {
    if (threadIdx.x == 0) {
        b.found[1] = 0;
        for (int digit = DIGITS - 1; digit >= 0; digit--) {
            unsigned long long with = sum + (by_weight ? b.weight[digit] : b.count[digit]);
            if (b.count[digit] != 0 && (double)with >= target) {
                b.found[0] = digit;
                b.found[1] = 1;
                break;
            }
            sum = with;
        }
        b.passed[0] = sum;
    }
    __syncthreads();
}

// The key of the first rank at which the sum over it and all better ranks meets the target; 0 if none does.
__device__ __forceinline__ unsigned long long select_key(const Draw& d, const Buckets& b, double target, bool by_weight) {
    unsigned long long prefix = 0, sum = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        fill_buckets(d, b, shift, prefix, by_weight);
        find_digit(b, sum, target, by_weight);
        bool found = b.found[1] != 0;
        prefix = prefix << 8 | b.found[0];
        sum = b.passed[0];
        if (!found) {
            return 0;
        }
    }
    return prefix;
}

// Weight of all that the filters so far keep.
__device__ __forceinline__ unsigned long long total_weight(const Draw& d, unsigned long long* slots) {
    unsigned long long sum = 0;
    for (unsigned id = threadIdx.x; id < d.vocab; id += blockDim.x) {
        sum += d.kept(id);
    }
    return block_sum(sum, slots);
}

__device__ __forceinline__ void apply_filters(Draw& d, const RowSample& p, const Buckets& b, unsigned long long* slots) {
    if (p.top_k != 0 && p.top_k < d.vocab) {
        d.least_key = select_key(d, b, (double)p.top_k, false);
    }
    if (p.top_p < 1.0f) {
        double wanted = (double)p.top_p * (double)total_weight(d, slots);
        unsigned long long key = select_key(d, b, wanted, true);
        d.least_key = key > d.least_key ? key : d.least_key;
    }
    if (p.min_p > 0.0f) {
        double least = (double)(p.min_p < 1.0f ? p.min_p : 1.0f) * 1073741824.0;
        unsigned whole = (unsigned)least;
        d.least_weight = whole + ((double)whole < least);  // rounded up
    }
}

// The first id, in ascending order, at which the running sum of kept weights exceeds the target. Each warp adds up a
// range of ids; then, behind a barrier, the warp whose range holds the target walks it and writes the token.
__device__ __forceinline__ void draw_token(const Draw& d, unsigned long long bits, unsigned long long* slots,
                                           unsigned* token) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned range = ceil_div(d.vocab, BLOCK_WARPS * 32) * 32;
    unsigned from = min_u(warp * range, d.vocab), to = min_u(from + range, d.vocab);
    unsigned long long own = 0;
    for (unsigned id = from + lane; id < to; id += 32) {
        own += d.kept(id);
    }
    own = warp_sum(own);
    if (lane == 0) {
        slots[warp] = own;
    }
    __syncthreads();
    unsigned long long total = 0, before = 0;
    for (unsigned w = 0; w < BLOCK_WARPS; w++) {
        before += w < warp ? slots[w] : 0;
        total += slots[w];
    }
    unsigned long long target = multiply_high(bits, total);
    if (before <= target && target < before + own) {
        for (unsigned first = from; first < to; first += 32) {
            unsigned id = first + lane;
            unsigned long long sum = id < to ? d.kept(id) : 0;
            for (unsigned step = 1; step < 32; step *= 2) {
                unsigned long long other = __shfl_up_sync(~0u, sum, step);
                sum += lane >= step ? other : 0;
            }
            unsigned over = __ballot_sync(~0u, before + sum > target);
            if (over != 0) {
                if (lane == 0) {
                    *token = first + __ffs(over) - 1;
                }
                break;
            }
            before += __shfl_sync(~0u, sum, 31);
        }
    }
    __syncthreads();
}

// The best rank key, or 0 if the logits allow no draw: a NaN, plus infinity, or nothing above minus infinity.
__device__ __forceinline__ unsigned long long checked_best(const float* x, unsigned vocab, unsigned long long* slots) {
    unsigned long long best = 0;
    int bad = 0;
    for (unsigned id = threadIdx.x; id < vocab; id += blockDim.x) {
        unsigned long long key = rank_key(id, x[id]);
        bad |= x[id] != x[id] || x[id] == POS_INF;
        best = key > best ? key : best;
    }
    best = block_max(best, slots);
    return __syncthreads_or(bad) || (unsigned)(best >> 32) <= KEY_NEG_INF_HIGH ? 0 : best;
}

extern "C" __global__ void __launch_bounds__(256, 4) sample_tokens(SampleArgs a) {
    SMEM(unsigned long long, weights, DIGITS);
    SMEM(unsigned, counts, DIGITS);
    SMEM(unsigned, found, 2);
    SMEM(unsigned long long, passed, 1);
    SMEM(unsigned long long, slots, BLOCK_WARPS);
    Buckets buckets = {weights, counts, found, passed};
    for (unsigned row = blockIdx.x; row < *a.rows; row += gridDim.x) {
        RowSample p = a.draws[row];
        Draw d = {a.logits + (size_t)row * a.stride, a.vocab, 0.0f, 0.0f, 0, 0};
        unsigned long long best = checked_best(d.x, a.vocab, slots);
        if (best != 0 && (p.bias_len != 0 || p.forbidden_len != 0 || needs_history(p))) {
            d.x = changed_logits(a, p, row);
            best = checked_best(d.x, a.vocab, slots);
        }
        if (threadIdx.x == 0) {
            a.fault[row] = best == 0;
            a.token[row] = best == 0 ? 0 : key_id(best);
            a.logit[row] = a.logits[(size_t)row * a.stride + a.token[row]];
        }
        // A temperature that is no number is greedy too.
        if (best == 0 || !(p.temperature >= 1e-5f)) {
            continue;
        }
        d.max = key_value(best);
        d.temperature = p.temperature == POS_INF ? 3.4028234663852886e38f : p.temperature;
        apply_filters(d, p, buckets, slots);
        draw_token(d, random_bits(p), slots, a.token + row);
        if (threadIdx.x == 0) {  // behind the barrier at the end of the draw
            a.logit[row] = a.logits[(size_t)row * a.stride + a.token[row]];
        }
    }
}
KERNEL(sample_tokens)
