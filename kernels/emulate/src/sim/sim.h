// The SIMT runtime behind emu.h: one block at a time, one fiber per thread, every choice drawn from a seed.
// All of it runs under the pretend driver's lock, so plain globals are enough.
#pragma once

#include <string>
#include <vector>

#include "emu.h"

namespace emu {

struct Site {
    const char* file = nullptr;
    int line = 0;
};

inline bool same_site(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// "kernel.cu:12", without folders.
std::string show(const Site& site);

struct PendingCopy {
    unsigned char* to;
    const unsigned char* from;
    int bytes;
    unsigned group;
    Site site;
};

enum class State : unsigned char { Ready, AtBarrier, InWarp, Spinning, Done };

// What every switch touches lies in the first cache line.
struct alignas(64) Fiber : Thread {
    unsigned index = 0;
    void* sp = nullptr;
    State state = State::Done;
    // cp.async: groups are numbered per thread; `group` is the one being filled.
    unsigned group = 0;
    // Those before `waited` are done.
    unsigned waited = 0;
    // The group of products that the thread is in, if it is.
    MmaGroup* products = nullptr;
    std::vector<PendingCopy> copies;
    const char* waits_for = "";
    Site site;
    void* stack = nullptr;  // its lowest byte
};

inline Fiber* current() { return static_cast<Fiber*>(self); }

// Context switch: saves the callee-saved registers and the stack pointer, then continues at `to`.
extern "C" __attribute__((visibility("hidden"))) void emu_switch_stack(void** save, void* to);
inline void switch_stack(void** save, void* to) { emu_switch_stack(save, to); }
// A stack pointer that switch_stack() can enter: `entry` starts on a fresh stack whose top is `top`.
void* prepare_stack(void* stack, size_t bytes, void (*entry)());
// Stack number i of the pool, with a guard area below; grows the pool as needed.
void* fiber_stack(unsigned i);
size_t stack_bytes();
constexpr size_t STACK_GUARD = 64 << 10;

// The scheduler's choices. Policy 0: first in, first out. 1: last in, first out, blocks and threads in reverse.
// From 2 on: random from the seed.
void set_seed(uint64_t seed);

// Runs others until somebody makes this fiber ready again; the rest of the scheduler is in sched.h.
void wait_here(State state, const char* what, const Site& site);
Fiber* fiber_at(unsigned index);
unsigned block_threads();
bool in_kernel();
// The memory of the thread records, which kernels read for their indices.
bool is_thread_record(const void* p);
// Catches page faults and divisions by zero of the running kernel (fault.cpp).
void catch_faults();

// Back to the host without returning; the caller has recorded why.
[[noreturn]] void leave_kernel();
// Abandons the block: the launch fails with this text and the place of the calling thread.
[[noreturn]] void fail(const Site& site, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Records the text once and lets the thread run on to the next point where it can be stopped.
void fail_later(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Shared memory of the block: static arrays grow from the start, dynamic memory follows in a region of its own.
constexpr size_t SHARED_STATIC = 256 << 10;
constexpr size_t SHARED_DYNAMIC = 256 << 10;
constexpr size_t CANARY = 128;
void shared_begin(size_t dynamic_bytes);
// Empty, or what was overrun.
std::string shared_end();
// The region: static arrays, dynamic memory, and the bytes of that which the launch asked for.
struct SharedRegion {
    unsigned char* statics = nullptr;
    unsigned char* dynamic = nullptr;
    size_t dynamic_bytes = 0;
};
extern __attribute__((visibility("hidden"))) SharedRegion shared_region;
inline bool in_shared_region(const void* p) {
    auto a = static_cast<const unsigned char*>(p);
    return size_t(a - shared_region.statics) < SHARED_STATIC || size_t(a - shared_region.dynamic) < SHARED_DYNAMIC;
}
// Offset into the whole region, for shadows.
size_t shared_offset(const void* p);
constexpr size_t SHARED_BYTES = SHARED_STATIC + SHARED_DYNAMIC;
bool static_array_holds(const void* p, size_t n);
// True when [p, p + n) lies inside one live shared array.
inline bool shared_holds(const void* p, size_t n) {
    size_t at = size_t(static_cast<const unsigned char*>(p) - shared_region.dynamic);
    if (at < SHARED_DYNAMIC) return at + n <= shared_region.dynamic_bytes;
    return static_array_holds(p, n);
}
size_t shared_static_bytes();

// Warp state for barriers between lanes (warp.cpp). What a thread waits for there, into its record.
void warp_wait(Fiber* fiber);
void warps_begin(unsigned threads);
void warp_lane_left(unsigned index);
void barrier_begin();
void barrier_thread_left();
unsigned threads_alive();
void copies_end(Fiber* fiber);

// Hooks of the race build (race.cpp); elsewhere they do nothing.
void race_launch_begin();
void race_block_begin(unsigned block);
void race_barrier();
void race_warp_sync(unsigned warp);
extern __attribute__((visibility("hidden"))) const bool race_build;
void race_note(const void* p, size_t n, bool write, Fiber* by, const Site& site);
inline void race_access(const void* p, size_t n, bool write, Fiber* by, const Site& site) {
    if (race_build) race_note(p, n, write, by, site);
}
// The destination of a copy in flight: written, but nothing may read it.
void race_unset(const void* p, size_t n);
void race_atomic(const void* p, size_t n, const Site& site);
void race_fence();
// Records for an allocation of so many bytes, or null.
void* race_shadow(size_t bytes);
void race_shadow_free(void* shadow, size_t bytes);

struct Launch {
    const Kernel* kernel;
    Dim grid, block;
    size_t dynamic_bytes;
    void** args;
    int device;
    size_t shared_limit;  // static and dynamic bytes together
};
// Runs the whole grid. Empty on success, otherwise what went wrong and where.
std::string run_launch(const Launch& launch);
const Launch& launch_now();

const Kernel* find_kernel(const char* name);
const Kernel* first_kernel();

// Every access by a runtime function on a kernel's behalf: n bytes must lie inside one live device allocation,
// pinned block or shared array.
void check_range(const void* p, size_t n, const char* what, const Site& site);

}  // namespace emu
