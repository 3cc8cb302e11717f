// Stacks and context switches. x86-64 has a hand-written switch; other machines use ucontext, about ten times slower.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "sim.h"

#if !defined(__x86_64__) || defined(EMU_UCONTEXT)
#define EMU_PORTABLE_SWITCH 1
#include <ucontext.h>

#endif

namespace emu {

#ifndef EMU_PORTABLE_SWITCH

// rdi: where to keep the old stack pointer, rsi: the new one. Only callee-saved registers live across the call.
asm(R"(
    .text
    .p2align 4
    .globl emu_switch_stack
    .hidden emu_switch_stack
    .type emu_switch_stack, @function
emu_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch_stack, . - emu_switch_stack
)");

void* prepare_stack(void* stack, size_t bytes, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack) + bytes;
    // At entry rsp must be 8 modulo 16, as after a call, or aligned SSE spills fault.
    auto* words = reinterpret_cast<uint64_t*>(top & ~uintptr_t(15));
    *--words = 0;  // where a return address would be
    *--words = reinterpret_cast<uint64_t>(entry);
    for (int i = 0; i < 6; i++) *--words = 0;
    return words;
}

#else

// Here a stack pointer stands for a ucontext.
void* prepare_stack(void* stack, size_t bytes, void (*entry)()) {
    // The context lives at the stack's low end, out of the running frames' way.
    auto* context = static_cast<ucontext_t*>(stack);
    getcontext(context);
    size_t used = (sizeof(ucontext_t) + 15) & ~size_t(15);
    context->uc_stack.ss_sp = static_cast<char*>(stack) + used;
    context->uc_stack.ss_size = bytes - used;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

extern "C" void emu_switch_stack(void** save, void* to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

#endif

#ifdef EMU_ASAN
static constexpr size_t STACK = 256 << 10;
#else
static constexpr size_t STACK = 64 << 10;
#endif

size_t stack_bytes() { return STACK; }

void* fiber_stack(unsigned i) {
    static std::vector<char*> stacks;
    while (stacks.size() <= i) {
        void* p = mmap(nullptr, STACK_GUARD + STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (p == MAP_FAILED || mprotect(p, STACK_GUARD, PROT_NONE) != 0) {
            std::fprintf(stderr, "emulation: no memory for fiber stacks\n");
            std::abort();
        }
        stacks.push_back(static_cast<char*>(p) + STACK_GUARD);
    }
    return stacks[i];
}

}  // namespace emu
