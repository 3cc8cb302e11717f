// The vocabulary of every kernel here: what a kernel may use besides plain C++.
//
// Under nvcc it maps to CUDA, with the few PTX instructions that CUDA C++ has no name for wrapped one by
// one. Any other compiler gets the same names from the host emulation (kernels/emulate/include/emu.h), so
// that the same files run thread by thread in tests. `asm` appears in this file only.
#pragma once

#ifndef __CUDACC__

#include "emu.h"

#define UNROLL
#define UNROLL_BY(n)

#else

// In front of a loop: unrolls it, by n or in full.
#define PRAGMA_OF(text) _Pragma(#text)
#define UNROLL PRAGMA_OF(unroll)
#define UNROLL_BY(n) PRAGMA_OF(unroll n)

#define SMEM(type, name, n) __shared__ __align__(16) type name[n]
#define DYN_SMEM(name) extern __shared__ __align__(128) unsigned char name[]
// The emulation registers each kernel here.
#define KERNEL(f)

// Storage types: 16 bits, arithmetic is f32. Conversions to them round to nearest even; NaN becomes 0x7fff.
struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};

__device__ __forceinline__ float bf16_to_f32(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ __forceinline__ bf16 f32_to_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

__device__ __forceinline__ float f16_to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ f16 f32_to_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

// Copies 16 bytes from device to shared memory in the background. `.cg`: the data passes by the first-level
// cache, which has no second reader for it.
__device__ __forceinline__ void cp_async16(void* smem, const void* gmem) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(smem)), "l"(gmem) : "memory");
}

// As above, but only the first `src_bytes` (0..16) are read; the rest of the 16 becomes zero. With 0 the
// source is not touched.
__device__ __forceinline__ void cp_async16_zfill(void* smem, const void* gmem, int src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)), "l"(gmem), "r"(src_bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are in flight.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the row addresses of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a * b for a 16 x 16 `a`, a 16 x 8 `b`; fragments as the PTX manual lays them out.
__device__ __forceinline__ void mma_bf16_16816(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// From here to the end of the scope only the sums of mma change, and nobody reads them: the emulation may carry all of
// them out together. Nothing here.
#define MMA_GROUP

// A hint that changes no result.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Inside a loop that waits for another block: hardware needs nothing, the emulation lets others run.
__device__ __forceinline__ void spin_hint() {}

#endif
