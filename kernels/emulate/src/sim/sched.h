// The part of the scheduler that runs at every switch: here, so that whatever waits has it inlined.
#pragma once

#include <utility>

#include "sim.h"

#pragma GCC visibility push(hidden)

namespace emu {

struct Scheduler {
    // Ready fibers in arrival order, a ring: a fiber is in it at most once.
    static constexpr unsigned RING = 1024;
    Fiber* ready[RING];
    unsigned head = 0, tail = 0;
    // 0: first in, first out; 1: last in, first out; 2: random.
    unsigned policy = 0;
    // Rounds in which only waiting loops ran.
    unsigned idle_spins = 0;
    bool failed = false;
    void* host_sp = nullptr;
    uint64_t random = 0;
};
extern Scheduler sched;

// Gives a fiber that has not begun yet (no stack pointer) its stack.
void prepare(Fiber* fiber);
// Lets the fibers in waiting loops look again; false when there are none, or they have looked too often.
bool wake_spinners();

inline uint64_t draw() {
    sched.random += 0x9e3779b97f4a7c15ull;
    uint64_t z = sched.random + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// A number below n, without a division.
inline unsigned draw_below(unsigned n) { return unsigned((draw() >> 32) * n >> 32); }

inline void make_ready(Fiber* fiber) {
    fiber->state = State::Ready;
    sched.ready[sched.tail++ % Scheduler::RING] = fiber;
    sched.idle_spins = 0;
}

inline Fiber* pick() {
    if (sched.head == sched.tail && !wake_spinners()) return nullptr;
    if (sched.policy == 0) return sched.ready[sched.head++ % Scheduler::RING];
    if (sched.policy >= 2) {
        unsigned chosen = sched.head + draw_below(sched.tail - sched.head);
        std::swap(sched.ready[chosen % Scheduler::RING], sched.ready[(sched.tail - 1) % Scheduler::RING]);
    }
    return sched.ready[--sched.tail % Scheduler::RING];
}

// Runs others until somebody makes this fiber ready again.
inline void sleep_here(Fiber* me) {
    Fiber* next = sched.failed ? nullptr : pick();
    if (next == me) {
        me->state = State::Ready;
        return;
    }
    if (next == nullptr) {
        switch_stack(&me->sp, sched.host_sp);
        return;
    }
    if (next->sp == nullptr) prepare(next);
    self = next;
    switch_stack(&me->sp, next->sp);
}

}  // namespace emu

#pragma GCC visibility pop
