// Which thread runs next, and the life of one block and one launch.
#include <cstdarg>
#include <cstdio>

#include "sched.h"

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

Thread* self = nullptr;
Dim block_index, block_dim, grid_dim;
Scheduler sched;

namespace {

uint64_t seed_value = 0;
unsigned long launches = 0;

std::vector<Fiber> fibers;
unsigned threads = 0, done = 0;
std::vector<Fiber*> spinners;
bool running = false;
#ifdef EMU_ASAN
bool stacks_dirty = false;
#endif
std::string failure;
Launch now;

uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void to_host() {
    void* unused;
    switch_stack(&unused, sched.host_sp);
}

// Runs the thread of the current fiber, and on the same stack every thread after it that has not begun yet.
void fiber_main() {
    for (;;) {
        now.kernel->call(now.kernel->function, now.args);
        Fiber* me = current();
        if (!me->copies.empty()) copies_end(me);
        me->state = State::Done;
        done++;
        warp_lane_left(me->index);
        barrier_thread_left();
        Fiber* next = sched.failed ? nullptr : pick();
        if (next == nullptr) to_host();
        self = next;
        if (next->sp == nullptr) {
            std::swap(me->stack, next->stack);
            continue;
        }
        void* unused;
        switch_stack(&unused, next->sp);
    }
}

std::string place() {
    char text[160];
    const Fiber* me = current();
    if (me == nullptr) return "";
    std::snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", block_index.x, block_index.y,
                  block_index.z, me->tid.x, me->tid.y, me->tid.z);
    return text;
}

void record(const std::string& what) {
    if (!sched.failed) failure = std::string(now.kernel->name) + ": " + what + ", " + place();
    sched.failed = true;
}

void start_fiber(unsigned i) {
    Fiber& f = fibers[i];
    f.index = i;
    f.tid = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    f.copies.clear();
    f.group = f.waited = 0;
    f.products = nullptr;
    f.state = State::Ready;
    // Its stack is prepared when another one waits for the first time.
    f.sp = nullptr;
}

std::string deadlock() {
    const Fiber* first = nullptr;
    unsigned waiting = 0;
    for (unsigned i = 0; i < threads; i++) {
        if (fibers[i].state == State::Done) continue;
        waiting++;
        if (first == nullptr) first = &fibers[i];
    }
    self = const_cast<Fiber*>(first);
    warp_wait(const_cast<Fiber*>(first));
    char text[256];
    std::snprintf(text, sizeof text, "deadlock: %u of %u threads wait, the first in %s at %s", waiting, threads,
                  first->waits_for, show(first->site).c_str());
    return text;
}

void run_block(unsigned number) {
    block_index = {number % grid_dim.x, number / grid_dim.x % grid_dim.y, number / (grid_dim.x * grid_dim.y)};
    done = 0;
    sched.head = sched.tail = 0;
    spinners.clear();
    sched.idle_spins = 0;
    shared_begin(now.dynamic_bytes);
    warps_begin(threads);
    barrier_begin();
    race_block_begin(number);
    for (unsigned i = 0; i < threads; i++) start_fiber(i);
    // Under policy 1 the last fiber pushed runs first, so thread order is reversed there.
    for (unsigned i = 0; i < threads; i++) make_ready(&fibers[i]);
    Fiber* first = pick();
    prepare(first);
    self = first;
    running = true;
    switch_stack(&sched.host_sp, first->sp);
    running = false;
    if (!sched.failed && done < threads) record(deadlock());
    std::string overrun = shared_end();
    if (!sched.failed && !overrun.empty()) record(overrun);
    self = nullptr;
}

}  // namespace

std::string show(const Site& site) {
    if (site.file == nullptr) return "an unknown line";
    const char* slash = std::strrchr(site.file, '/');
    return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

void set_seed(uint64_t seed) {
    seed_value = seed;
    launches = 0;
    sched.policy = unsigned(seed < 2 ? seed : 2);
}

void prepare(Fiber* fiber) {
    // Stacks lie a power of two apart; without an offset their tops would all fight for the same cache sets.
    fiber->sp = prepare_stack(fiber->stack, stack_bytes() - fiber->index % 61 * 128, fiber_main);
}

bool wake_spinners() {
    // Everybody who is left waits for a flag: let them look again, but not for ever.
    if (spinners.empty() || ++sched.idle_spins > 1000) return false;
    for (Fiber* f : spinners) sched.ready[sched.tail++ % Scheduler::RING] = f;
    spinners.clear();
    return true;
}

void wait_here(State state, const char* what, const Site& site) {
    Fiber* me = current();
    me->state = state;
    me->waits_for = what;
    me->site = site;
    if (state == State::Spinning) spinners.push_back(me);
    sleep_here(me);
}

void spin(EMU_AT) { wait_here(State::Spinning, "spin_hint", {emu_file, emu_line}); }

void trap(const char* what, EMU_AT) { fail({EMU_HERE}, "%s", what); }

Fiber* fiber_at(unsigned index) { return &fibers[index]; }
unsigned block_threads() { return threads; }
unsigned threads_alive() { return threads - done; }
bool in_kernel() { return running; }

bool is_thread_record(const void* p) {
    return size_t(static_cast<const char*>(p) - reinterpret_cast<const char*>(fibers.data())) <
           fibers.size() * sizeof(Fiber);
}

void fail_later(const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    record(text);
}

void fail(const Site& site, const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    record(std::string(text) + " at " + show(site));
    leave_kernel();
}

void leave_kernel() {
    // The fibers are abandoned where they are; their stacks are prepared afresh for the next block.
    to_host();
    __builtin_unreachable();
}

const Launch& launch_now() { return now; }

std::string run_launch(const Launch& launch) {
    now = launch;
    grid_dim = launch.grid;
    block_dim = launch.block;
    threads = block_dim.x * block_dim.y * block_dim.z;
    while (fibers.size() < threads) {
        fibers.emplace_back();
        fibers.back().stack = fiber_stack(unsigned(fibers.size() - 1));
    }
    catch_faults();
#ifdef EMU_ASAN
    // Frames that a failed launch abandoned have left their red zones behind.
    if (stacks_dirty) {
        for (Fiber& f : fibers) __asan_unpoison_memory_region(f.stack, stack_bytes());
        stacks_dirty = false;
    }
#endif
    sched.failed = false;
    failure.clear();
    launches++;
    sched.random = mix(seed_value * 0x100000001b3ull + launches);
    race_launch_begin();
    unsigned blocks = grid_dim.x * grid_dim.y * grid_dim.z;
    std::vector<unsigned> order(blocks);
    for (unsigned i = 0; i < blocks; i++) order[i] = sched.policy == 1 ? blocks - 1 - i : i;
    if (sched.policy >= 2) {
        for (unsigned i = blocks; i > 1; i--) std::swap(order[i - 1], order[draw_below(i)]);
    }
    for (unsigned i = 0; i < blocks && !sched.failed; i++) run_block(order[i]);
#ifdef EMU_ASAN
    stacks_dirty = sched.failed;
#endif
    return failure;
}

static Kernel* kernels = nullptr;

void register_kernel(Kernel* kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

const Kernel* first_kernel() { return kernels; }

const Kernel* find_kernel(const char* name) {
    for (const Kernel* k = kernels; k != nullptr; k = k->next) {
        if (std::strcmp(k->name, name) == 0) return k;
    }
    return nullptr;
}

}  // namespace emu
