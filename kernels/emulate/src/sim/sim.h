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

struct Fiber : Thread {
    void* sp = nullptr;
    void* stack = nullptr;  // its lowest byte
    unsigned index = 0;
    State state = State::Done;
    const char* waits_for = "";
    Site site;
    // cp.async: groups are numbered per thread; `group` is the one being filled.
    std::vector<PendingCopy> copies;
    unsigned group = 0;
};

inline Fiber* current() { return static_cast<Fiber*>(self); }

// Context switch: saves the callee-saved registers and the stack pointer, then continues at `to`.
void switch_stack(void** save, void* to);
// A stack pointer that switch_stack() can enter: `entry` starts on a fresh stack whose top is `top`.
void* prepare_stack(void* stack, size_t bytes, void (*entry)());
// Stack number i of the pool, with a guard area below; grows the pool as needed.
void* fiber_stack(unsigned i);
size_t stack_bytes();
constexpr size_t STACK_GUARD = 64 << 10;

// The scheduler's choices. Policy 0: first in, first out. 1: last in, first out, blocks and threads in reverse.
// From 2 on: random from the seed.
void set_seed(uint64_t seed);
uint64_t draw();
unsigned policy();

void make_ready(Fiber* fiber);
// Runs others until somebody makes this fiber ready again.
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
bool in_shared_region(const void* p);
// Offset into the whole region, for shadows.
size_t shared_offset(const void* p);
constexpr size_t SHARED_BYTES = SHARED_STATIC + SHARED_DYNAMIC;
// True when [p, p + n) lies inside one live shared array.
bool shared_holds(const void* p, size_t n);
size_t shared_static_bytes();

// Warp state for barriers between lanes (warp.cpp).
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
void race_access(const void* p, size_t n, bool write, Fiber* by, const Site& site);
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
