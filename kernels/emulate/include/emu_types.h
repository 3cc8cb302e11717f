// Number and vector types of the kernel vocabulary, and the intrinsics that are plain arithmetic.
// Compile with -ffp-contract=off and without -march=native: every operation below rounds once, on every machine.
#pragma once

struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline unsigned __float_as_uint(float v) {
    unsigned u;
    std::memcpy(&u, &v, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float v;
    std::memcpy(&v, &u, 4);
    return v;
}
inline int __float_as_int(float v) { return int(__float_as_uint(v)); }
inline float __int_as_float(int u) { return __uint_as_float(unsigned(u)); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline unsigned __brev(unsigned v) {
    v = (v >> 16) | (v << 16);
    v = ((v & 0xff00ff00u) >> 8) | ((v & 0x00ff00ffu) << 8);
    v = ((v & 0xf0f0f0f0u) >> 4) | ((v & 0x0f0f0f0fu) << 4);
    v = ((v & 0xccccccccu) >> 2) | ((v & 0x33333333u) << 2);
    return ((v & 0xaaaaaaaau) >> 1) | ((v & 0x55555555u) << 1);
}

// CUDA declares these for device code without a header.
template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }

// 16 bits, as the device stores them: sign, 8 exponent bits, 7 fraction bits.
struct bf16 {
    unsigned short bits;
};

inline float bf16_to_f32(bf16 v) { return __uint_as_float(unsigned(v.bits) << 16); }

// Round to nearest, ties to even; every NaN becomes 0x7fff, as cuda_bf16.h does.
inline bf16 f32_to_bf16(float v) {
    unsigned u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE half: sign, 5 exponent bits, 10 fraction bits.
struct f16 {
    unsigned short bits;
};

inline float f16_to_f32(f16 v) {
    unsigned sign = unsigned(v.bits & 0x8000u) << 16;
    unsigned exponent = (v.bits >> 10) & 31u, fraction = v.bits & 1023u;
    if (exponent == 31u) return __uint_as_float(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
    if (exponent == 0u) {
        float tiny = float(fraction) * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

// Round to nearest, ties to even; overflow gives infinity, every NaN 0x7fff, as cuda_fp16.h does.
inline f16 f32_to_f16(float v) {
    unsigned u = __float_as_uint(v), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    unsigned out;
    if (magnitude > 0x7f800000u) return {0x7fff};
    if (magnitude >= 0x477ff000u) {
        out = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
        out = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
    } else {
        // Subnormal: one addition rounds at the last fraction bit, which is worth 2^-24.
        out = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    }
    return {static_cast<unsigned short>(out | sign)};
}
