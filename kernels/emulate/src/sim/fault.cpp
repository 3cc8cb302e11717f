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

// The text from `from` on up to the first of the characters `until`.
static std::string piece(const char* from, const char* until) { return std::string(from, std::strcspn(from, until)); }

// The sanitizer goes on after a report (-fsanitize-recover); the launch fails where the kernel next waits or ends.
// A report reads "... ERROR: AddressSanitizer: KIND on address 0xADDRESS ...\n  #0 0xPC in FUNCTION FILE:LINE\n ...".
static void sanitizer_report(const char* text) {
    if (!in_kernel()) return;
    const char* start = std::strstr(text, "AddressSanitizer: ");
    std::string what = start != nullptr ? piece(start + 18, " \n") : "sanitizer report";
    if (const char* at = std::strstr(text, "address 0x")) {
        const void* p = reinterpret_cast<const void*>(std::strtoull(at + 8, nullptr, 16));
        std::string why = owner_of(p) != -2 ? range_error(launch_now().device, p, 1) : "";
        if (why.empty() && in_shared_region(p) && !shared_holds(p, 1)) why = "outside every shared array";
        if (!why.empty()) what += ", access " + why;
    }
    if (const char* frame = std::strstr(text, "#0 ")) {
        std::string line = piece(frame, "\n");
        what += " at " + line.substr(line.find_last_of("/ ") + 1);
    }
    fail_later("%s", what.c_str());
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
