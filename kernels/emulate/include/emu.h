// The vocabulary of kernels/cuda/simt.cuh for a host C++ compiler: with this header a .cu file runs on the CPU,
// one fiber per CUDA thread (src/sim), under the pretend driver (src/driver).
//
// Everything that can block takes its call site as trailing default arguments, so that reports name the
// kernel's line. A helper that wraps one of these should pass its own caller's site on, or reports name the helper.
#pragma once

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define SIMT_EMU 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define EMU_SITE const char *emu_file = __builtin_FILE(), int emu_line = __builtin_LINE()
#define EMU_AT const char *emu_file, int emu_line
#define EMU_HERE emu_file, emu_line

#include "emu_types.h"

namespace emu {

struct Dim {
    unsigned x, y, z;
};

// What a kernel may see of its thread. The scheduler points `self` at the running one.
struct Thread {
    Dim tid;
};

extern __attribute__((visibility("hidden"))) Thread* self;
extern __attribute__((visibility("hidden"))) Dim block_index, block_dim, grid_dim;

// A value of any 32 or 64-bit type on its way through a shuffle.
template <class T>
inline uint64_t to_bits(T v) {
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "at most 64 bits");
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof(T));
    return bits;
}
template <class T>
inline T from_bits(uint64_t bits) {
    T v;
    std::memcpy(&v, &bits, sizeof(T));
    return v;
}

enum class Shuffle { Index, Xor, Up, Down };

int barrier(int op, int value, EMU_AT);
void warp_sync(unsigned mask, EMU_AT);
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int arg, int width, EMU_AT);
unsigned ballot(unsigned mask, int predicate, EMU_AT);
void copy_async(void* smem, const void* gmem, int src_bytes, EMU_AT);
void copy_commit(EMU_AT);
void copy_wait(int groups, EMU_AT);
void ldmatrix(unsigned* out, const void* row, bool transposed, EMU_AT);
void mma_16816(float* c, const unsigned* a, const unsigned* b, EMU_AT);
struct Tiles;

// Products of one lane that are carried out together when the scope ends; until then their c hold NaN.
class MmaGroup {
   public:
    explicit MmaGroup(EMU_AT);
    ~MmaGroup() { close(); }
    MmaGroup(const MmaGroup&) = delete;
    MmaGroup& operator=(const MmaGroup&) = delete;

   private:
    friend void mma_16816(float* c, const unsigned* a, const unsigned* b, EMU_AT);
    static constexpr unsigned MOST = 32;
    void add(float* c, const unsigned* a, const unsigned* b);
    void flush();
    void close();

    Tiles* tiles_;
    unsigned lane_;
    unsigned count_ = 0, targets_ = 0;
    unsigned char to_[MOST];  // which target each product adds to
    uint64_t signature_ = 0;  // of that list
    uint64_t seen_ = 0;       // a bit per target's address, as a first answer
    float* target_[MOST];
    const char* file_;
    int line_;
};
void spin(EMU_AT);
void fence(EMU_AT);
[[noreturn]] void trap(const char* what, EMU_AT);

enum class Rmw { Add, Max, Min, Inc, Exch };
uint32_t atomic_u32(Rmw op, unsigned* p, unsigned v, EMU_AT);
int32_t atomic_i32(Rmw op, int* p, int v, EMU_AT);
uint64_t atomic_u64(Rmw op, unsigned long long* p, unsigned long long v, EMU_AT);
float atomic_f32(float* p, float v, EMU_AT);
uint32_t atomic_cas(unsigned* p, unsigned expected, unsigned v, EMU_AT);

// Shared memory of the running block: a static array is found by the address of a per-array key.
void* shared_array(const void* key, size_t bytes, size_t align, const char* name, EMU_AT);
unsigned char* shared_dynamic();

// The kernel table. `call` unpacks cuLaunchKernel's void** by the function's type.
struct Kernel {
    const char* name;
    const char* file;
    void (*function)();
    void (*call)(void (*function)(), void** args);
    unsigned params;
    const size_t* sizes;
    const size_t* aligns;
    Kernel* next;
};
void register_kernel(Kernel* kernel);

template <class F>
struct Signature;
template <class... A>
struct Signature<void (*)(A...)> {
    static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    static constexpr size_t aligns[sizeof...(A) + 1] = {alignof(A)..., 0};
    template <size_t... I>
    __attribute__((no_sanitize_thread)) static void unpack(void (*f)(A...), void** args, std::index_sequence<I...>) {
        f(*static_cast<std::remove_reference_t<A>*>(args[I])...);
    }
    __attribute__((no_sanitize_thread)) static void call(void (*f)(), void** args) {
        unpack(reinterpret_cast<void (*)(A...)>(f), args, std::index_sequence_for<A...>{});
    }
    static_assert((std::is_trivially_copyable<A>::value && ...), "kernel parameters are plain data");
    static constexpr unsigned count = sizeof...(A);
};

struct Registrar : Kernel {
    template <class F>
    Registrar(const char* name, F function, const char* file) {
        using S = Signature<F>;
        this->name = name;
        this->file = file;
        this->function = reinterpret_cast<void (*)()>(function);
        this->call = &S::call;
        this->params = S::count;
        this->sizes = S::sizes;
        this->aligns = S::aligns;
        register_kernel(this);
    }
};

}  // namespace emu

#define KERNEL(f) static emu::Registrar emu_registrar_##f{#f, &f, __FILE__};
#define SMEM(type, name, n)            \
    static const char emu_key_##name = 0; \
    type* const name = static_cast<type*>(emu::shared_array(&emu_key_##name, sizeof(type) * (n), alignof(type), #name, __FILE__, __LINE__))
#define DYN_SMEM(name) unsigned char* const name = emu::shared_dynamic()

#define threadIdx (static_cast<const emu::Dim&>(emu::self->tid))
#define blockIdx (static_cast<const emu::Dim&>(emu::block_index))
#define blockDim (static_cast<const emu::Dim&>(emu::block_dim))
#define gridDim (static_cast<const emu::Dim&>(emu::grid_dim))

inline void __syncthreads(EMU_SITE) { emu::barrier(0, 0, EMU_HERE); }
inline int __syncthreads_or(int p, EMU_SITE) { return emu::barrier(1, p != 0, EMU_HERE) != 0; }
inline int __syncthreads_count(int p, EMU_SITE) { return emu::barrier(2, p != 0, EMU_HERE); }
inline void __syncwarp(unsigned mask = ~0u, EMU_SITE) { emu::warp_sync(mask, EMU_HERE); }

template <class T>
inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMU_SITE) {
    return emu::from_bits<T>(emu::shuffle(emu::Shuffle::Index, mask, emu::to_bits(v), lane, width, EMU_HERE));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32, EMU_SITE) {
    return emu::from_bits<T>(emu::shuffle(emu::Shuffle::Xor, mask, emu::to_bits(v), lanes, width, EMU_HERE));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE) {
    return emu::from_bits<T>(emu::shuffle(emu::Shuffle::Up, mask, emu::to_bits(v), int(delta), width, EMU_HERE));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMU_SITE) {
    return emu::from_bits<T>(emu::shuffle(emu::Shuffle::Down, mask, emu::to_bits(v), int(delta), width, EMU_HERE));
}
inline unsigned __ballot_sync(unsigned mask, int p, EMU_SITE) { return emu::ballot(mask, p, EMU_HERE); }
inline int __any_sync(unsigned mask, int p, EMU_SITE) { return emu::ballot(mask, p, EMU_HERE) != 0; }
inline int __all_sync(unsigned mask, int p, EMU_SITE) { return emu::ballot(mask, p, EMU_HERE) == mask; }

inline unsigned atomicAdd(unsigned* p, unsigned v, EMU_SITE) { return emu::atomic_u32(emu::Rmw::Add, p, v, EMU_HERE); }
inline unsigned atomicMax(unsigned* p, unsigned v, EMU_SITE) { return emu::atomic_u32(emu::Rmw::Max, p, v, EMU_HERE); }
inline unsigned atomicMin(unsigned* p, unsigned v, EMU_SITE) { return emu::atomic_u32(emu::Rmw::Min, p, v, EMU_HERE); }
inline unsigned atomicInc(unsigned* p, unsigned v, EMU_SITE) { return emu::atomic_u32(emu::Rmw::Inc, p, v, EMU_HERE); }
inline unsigned atomicExch(unsigned* p, unsigned v, EMU_SITE) { return emu::atomic_u32(emu::Rmw::Exch, p, v, EMU_HERE); }
inline int atomicAdd(int* p, int v, EMU_SITE) { return emu::atomic_i32(emu::Rmw::Add, p, v, EMU_HERE); }
inline int atomicMax(int* p, int v, EMU_SITE) { return emu::atomic_i32(emu::Rmw::Max, p, v, EMU_HERE); }
inline int atomicMin(int* p, int v, EMU_SITE) { return emu::atomic_i32(emu::Rmw::Min, p, v, EMU_HERE); }
inline int atomicExch(int* p, int v, EMU_SITE) { return emu::atomic_i32(emu::Rmw::Exch, p, v, EMU_HERE); }
inline float atomicAdd(float* p, float v, EMU_SITE) { return emu::atomic_f32(p, v, EMU_HERE); }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v, EMU_SITE) {
    return emu::atomic_u64(emu::Rmw::Add, p, v, EMU_HERE);
}
inline unsigned long long atomicMax(unsigned long long* p, unsigned long long v, EMU_SITE) {
    return emu::atomic_u64(emu::Rmw::Max, p, v, EMU_HERE);
}
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long v, EMU_SITE) {
    return emu::atomic_u64(emu::Rmw::Min, p, v, EMU_HERE);
}
inline unsigned atomicCAS(unsigned* p, unsigned expected, unsigned v, EMU_SITE) {
    return emu::atomic_cas(p, expected, v, EMU_HERE);
}
inline int atomicCAS(int* p, int expected, int v, EMU_SITE) {
    return int(emu::atomic_cas(reinterpret_cast<unsigned*>(p), unsigned(expected), unsigned(v), EMU_HERE));
}
inline void __threadfence(EMU_SITE) { emu::fence(EMU_HERE); }
inline void __threadfence_system(EMU_SITE) { emu::fence(EMU_HERE); }
inline void __trap(EMU_SITE) { emu::trap("trap", EMU_HERE); }

template <class T>
inline T __ldg(const T* p) {
    return *p;
}
inline void prefetch_l2(const void*) {}
inline void spin_hint(EMU_SITE) { emu::spin(EMU_HERE); }

inline void cp_async16(void* smem, const void* gmem, EMU_SITE) { emu::copy_async(smem, gmem, 16, EMU_HERE); }
inline void cp_async16_zfill(void* smem, const void* gmem, int src_bytes, EMU_SITE) {
    emu::copy_async(smem, gmem, src_bytes, EMU_HERE);
}
inline void cp_async_commit(EMU_SITE) { emu::copy_commit(EMU_HERE); }
template <int N>
inline void cp_async_wait(EMU_SITE) {
    static_assert(N >= 0, "a number of groups that may stay in flight");
    emu::copy_wait(N, EMU_HERE);
}
inline void ldmatrix_x4(unsigned (&r)[4], const void* row, EMU_SITE) { emu::ldmatrix(r, row, false, EMU_HERE); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, EMU_SITE) { emu::ldmatrix(r, row, true, EMU_HERE); }
inline void mma_bf16_16816(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMU_SITE) {
    emu::mma_16816(c, a, b, EMU_HERE);
}
#define MMA_GROUP emu::MmaGroup emu_mma_group(__FILE__, __LINE__)
