// Arithmetic that several kernels share (N7 of the numeric contract): one inline function each, the same bits
// in every kernel, on the device and in the host emulation.
//
// All files are compiled without contraction (`-fmad=false`): a fused multiply-add happens where it is
// written and nowhere else. Division and square root are the IEEE ones.
#pragma once
#include "simt.cuh"

#define NEG_INF __uint_as_float(0xff800000u)
#define POS_INF __uint_as_float(0x7f800000u)

__device__ __forceinline__ unsigned min_u(unsigned a, unsigned b) { return a < b ? a : b; }
__device__ __forceinline__ unsigned ceil_div(unsigned a, unsigned b) { return (a + b - 1) / b; }

// Two bf16 of one 32-bit word, the lower index in the low half.
__device__ __forceinline__ float low_f32(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_f32(unsigned w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    return (unsigned)f32_to_bf16(low).bits | (unsigned)f32_to_bf16(high).bits << 16;
}
__device__ __forceinline__ float round_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// Eight bf16 of 16 bytes.
__device__ __forceinline__ void unpack8(float (&x)[8], uint4 v) {
    x[0] = low_f32(v.x), x[1] = high_f32(v.x), x[2] = low_f32(v.y), x[3] = high_f32(v.y);
    x[4] = low_f32(v.z), x[5] = high_f32(v.z), x[6] = low_f32(v.w), x[7] = high_f32(v.w);
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

// e^x: the operations of `cpu::math::exp`, to the bit; sampling relies on that.
__device__ __forceinline__ float exp_f32(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    float t = __fmaf_rn(x, 1.44269504088896340736f, magic);
    float n = __fsub_rn(t, magic);
    float r = __fmaf_rn(n, -0.693147182464599609375f, x);
    r = __fmaf_rn(n, 1.90465421e-9f, r);
    float p = 1.0f / 5040.0f;
    p = __fmaf_rn(p, r, 1.0f / 720.0f);
    p = __fmaf_rn(p, r, 1.0f / 120.0f);
    p = __fmaf_rn(p, r, 1.0f / 24.0f);
    p = __fmaf_rn(p, r, 1.0f / 6.0f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(__fmaf_rn(p, r, 1.0f), r, 1.0f);
    float scale = __uint_as_float((__float_as_uint(t) << 23) + (126u << 23));
    float e = __fmul_rn(__fmul_rn(p, scale), 2.0f);
    e = x < -86.6f ? 0.0f : e;
    return x > 88.73f ? POS_INF : e;
}

// 2^x for x <= 0, within 2 units in the last place; 0 below -125, exactly 1 at 0. Order: the nearest integer
// n, then Horner over x - n with ln(2)^i / i! from i = 6 down.
__device__ __forceinline__ float exp2_neg(float x) {
    const float magic = 12582912.0f;
    float t = __fadd_rn(x, magic);
    float r = __fsub_rn(x, __fsub_rn(t, magic));
    float p = 1.5403530393381609954e-4f;
    p = __fmaf_rn(p, r, 1.3333558146428443423e-3f);
    p = __fmaf_rn(p, r, 9.6181291076284771619e-3f);
    p = __fmaf_rn(p, r, 5.5504108664821579953e-2f);
    p = __fmaf_rn(p, r, 2.4022650695910071233e-1f);
    p = __fmaf_rn(p, r, 6.9314718055994530942e-1f);
    p = __fmaf_rn(p, r, 1.0f);
    float e = __fmul_rn(p, __uint_as_float((__float_as_uint(t) << 23) + (127u << 23)));
    return x < -125.0f ? 0.0f : e;
}

// ln x in f64 for finite x > 0 that are no subnormals; NaN for everything else but infinity. One value per
// row needs it, so its cost does not matter. Order: x = m 2^e with m in [sqrt(1/2), sqrt(2)), f = (m - 1) /
// (m + 1), Horner over f^2 from 1/21 down, then e ln 2 + 2 f p.
__device__ __forceinline__ double ln_f64(double x) {
    unsigned long long bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    if (x != x || e < -1022 || e >= 1024) {
        return e == 1024 && x > 0.0 ? x : (double)__uint_as_float(0x7fffffffu);
    }
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e += 1;
    }
    double f = (m - 1.0) / (m + 1.0);
    double f2 = f * f;
    double p = 1.0 / 21.0;
    for (int i = 19; i > 0; i -= 2) {
        p = p * f2 + 1.0 / (double)i;
    }
    return (double)e * 0.69314718055994530942 + 2.0 * f * p;
}

__device__ __forceinline__ float silu_f32(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exp_f32(-x))); }

// The exact GELU: the operations of `cpu::gelu_one`, whose text says where the polynomial comes from.
__device__ __forceinline__ float gelu_f32(float x) {
    float z = __fmul_rn(x < 0.0f ? __fsub_rn(0.0f, x) : x, 0.70710678118654752440f);
    float t = __fdiv_rn(1.0f, __fmaf_rn(z, 0.4f, 1.0f));
    float r = -0.037139896f;
    r = __fmaf_rn(r, t, 0.24135959f);
    r = __fmaf_rn(r, t, -0.60784894f);
    r = __fmaf_rn(r, t, 0.70530236f);
    r = __fmaf_rn(r, t, -0.4297787f);
    r = __fmaf_rn(r, t, 0.36094502f);
    r = __fmaf_rn(r, t, 0.0932317f);
    r = __fmaf_rn(r, t, 0.22480792f);
    r = __fmaf_rn(r, t, 0.22325484f);
    r = __fmaf_rn(r, t, 0.22587322f);
    r = __fmaf_rn(r, t, -7.0663723e-6f);
    float q = __fmul_rn(__fmul_rn(exp_f32(__fsub_rn(0.0f, __fmul_rn(z, z))), 0.5f), r);
    float tail = __fmul_rn(x, q);
    return x < 0.0f ? tail : __fsub_rn(x, tail);
}

// 1 / sqrt(sum / n + eps), each operation rounded once.
__device__ __forceinline__ float inverse_rms(float sum, unsigned n, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)n), eps)));
}

// One element of a norm: bf16(bf16(x r) w).
__device__ __forceinline__ float norm_one(float x, float r, float w) {
    return round_bf16(__fmul_rn(round_bf16(__fmul_rn(x, r)), w));
}

// Rotates the pair (a, b) of elements i and i + D/2.
__device__ __forceinline__ void rotate_pair(float& a, float& b, float cos, float sin) {
    float x = __fmaf_rn(a, cos, -__fmul_rn(b, sin));
    float y = __fmaf_rn(b, cos, __fmul_rn(a, sin));
    a = x, b = y;
}

// A key that is larger for a better rank: larger logit first, ties by the lower id; both zeros are one value
// and NaN ranks below everything. As `rank_key` of the CPU's sampling.
__device__ __forceinline__ unsigned long long rank_key(unsigned id, float x) {
    if (x != x) {
        return 0;
    }
    unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
    unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)ordered << 32 | (unsigned)~id;
}
__device__ __forceinline__ unsigned key_id(unsigned long long key) { return ~(unsigned)key; }
__device__ __forceinline__ float key_value(unsigned long long key) {
    unsigned ordered = (unsigned)(key >> 32);
    return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}
// What rank_key gives for minus infinity, without its id.
#define KEY_NEG_INF_HIGH 0x007fffffu

// Sums and the largest key of a warp, in the order 16, 8, 4, 2, 1; every lane gets the result.
__device__ __forceinline__ float warp_sum(float x) {
    for (int d = 16; d > 0; d >>= 1) {
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, d));
    }
    return x;
}
__device__ __forceinline__ unsigned long long warp_max(unsigned long long x) {
    for (int d = 16; d > 0; d >>= 1) {
        unsigned long long y = __shfl_xor_sync(~0u, x, d);
        x = y > x ? y : x;
    }
    return x;
}
__device__ __forceinline__ unsigned long long warp_sum(unsigned long long x) {
    for (int d = 16; d > 0; d >>= 1) {
        x += __shfl_xor_sync(~0u, x, d);
    }
    return x;
}
