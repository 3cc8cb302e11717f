// Page faults, stack overflows and integer divisions by zero inside a kernel become launch errors instead of the end of
// the process. Only on x86-64; elsewhere, and outside kernels, the signal goes to whoever had it before.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#endif

#include "memory.h"
#include "sim.h"

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

#ifdef EMU_ASAN

// The sanitizer goes on after a report (-fsanitize-recover); the launch fails where the kernel next waits or ends.
static void sanitizer_report(const char* text) {
    if (!in_kernel()) return;
    // The line that starts with "==pid==ERROR: " says what; the first frame says where.
    const char* error = std::strstr(text, "ERROR: ");
    std::string what = error != nullptr ? error + 7 : text;
    what = what.substr(0, what.find('\n'));
    std::string where;
    if (const char* frame = std::strstr(text, "#0 ")) {
        where = std::string(frame).substr(0, std::string(frame).find('\n'));
    }
    fail_later("%s %s", what.c_str(), where.c_str());
}

#endif

#if defined(__x86_64__) && defined(__linux__)



static struct sigaction before_segv, before_bus, before_fpe;
static int fault_signal;
static const void* fault_address;
alignas(16) static char landing_stack[64 << 10];

// Runs on its own stack after the handler has returned, so that the signal is no longer blocked.
static void landed() {
    Fiber* me = current();
    if (fault_signal == SIGFPE) {
        fail_later("integer division by zero");
    } else {
        auto below = static_cast<const char*>(me->stack) - static_cast<const char*>(fault_address);
        if (below > 0 && below <= long(STACK_GUARD)) {
            fail_later("the thread's stack of %zu KiB overflowed", stack_bytes() >> 10);
        } else if (owner_of(fault_address) != -2) {
            fail_later("access %s", range_error(launch_now().device, fault_address, 1).c_str());
        } else if (in_shared_region(static_cast<const char*>(fault_address) - 4096) ||
                   in_shared_region(static_cast<const char*>(fault_address) + 4096)) {
            fail_later("access beyond shared memory");
        } else {
            fail_later("access at %p, which is no device memory", fault_address);
        }
    }
    leave_kernel();
}

static void handler(int signal, siginfo_t* info, void* data) {
    if (in_kernel() && current() != nullptr) {
        auto* context = static_cast<ucontext_t*>(data);
        fault_signal = signal;
        fault_address = info->si_addr;
        uintptr_t top = reinterpret_cast<uintptr_t>(landing_stack + sizeof landing_stack);
        context->uc_mcontext.gregs[REG_RSP] = greg_t(top - 8);
        context->uc_mcontext.gregs[REG_RIP] = greg_t(reinterpret_cast<uintptr_t>(&landed));
        return;
    }
    const struct sigaction& before = signal == SIGSEGV ? before_segv : signal == SIGBUS ? before_bus : before_fpe;
    if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction != nullptr) {
        before.sa_sigaction(signal, info, data);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        // The default action happens when the instruction faults again.
        std::signal(signal, SIG_DFL);
    }
}

// A signal needs a stack of its own: the fiber's may be the one that overflowed. Rust gives its threads one.
static void ensure_signal_stack() {
    stack_t now;
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    static thread_local std::vector<char> memory;
    memory.resize(64 << 10);
    stack_t mine = {};
    mine.ss_sp = memory.data();
    mine.ss_size = memory.size();
    sigaltstack(&mine, nullptr);
}

void catch_faults() {
    ensure_signal_stack();
    static bool installed = false;
    if (installed) return;
    installed = true;
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
    sigaction(SIGFPE, &action, &before_fpe);
#ifdef EMU_ASAN
    __asan_set_error_report_callback(sanitizer_report);
#endif
}

#else

void catch_faults() {
#ifdef EMU_ASAN
    __asan_set_error_report_callback(sanitizer_report);
#endif
}

#endif

}  // namespace emu
