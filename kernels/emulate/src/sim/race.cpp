// Races and bounds. Kernel files of the race build are compiled with -fsanitize=thread, which makes the compiler call
// __tsan_read4(p) and the like before every access; libtsan is not linked, these are ours.
//
// A record per two bytes keeps the last write and two last reads by different threads. Two accesses race when they
// come from different threads, one of them writes, and nothing orders them: no barrier of the block (barrier epoch),
// no __syncwarp of the whole warp (warp epoch), and for different blocks no fence + atomic on one side and atomic on
// the same address on the other. So a race shows whatever the schedule was and whether or not the result is wrong.
#include "sim.h"

#ifndef EMU_RACE

namespace emu {

void race_launch_begin() {}
void race_block_begin(unsigned) {}
void race_barrier() {}
void race_warp_sync(unsigned) {}
const bool race_build = false;
void race_note(const void*, size_t, bool, Fiber*, const Site&) {}
void race_unset(const void*, size_t) {}
void race_atomic(const void*, size_t, const Site&) {}
void race_fence() {}
void* race_shadow(size_t) { return nullptr; }
void race_shadow_free(void*, size_t) {}

}  // namespace emu

#else

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <map>

#include "memory.h"

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

namespace emu {

namespace {

// Who accessed: block tag 28 bits, barrier epoch 16, warp epoch 10, thread 10. Zero: nobody.
// The tag is launch (14) and block (14) for device memory, a running block number for shared memory.
using Access = uint64_t;
constexpr unsigned LAST_EPOCH = 65535, LAST_WARP_EPOCH = 1023, TAG_HALF = 1u << 14;

inline unsigned tag_of(Access a) { return unsigned(a >> 36); }
inline unsigned epoch_of(Access a) { return unsigned(a >> 20) & 65535; }
inline unsigned warp_epoch_of(Access a) { return unsigned(a >> 10) & 1023; }
inline unsigned thread_of(Access a) { return unsigned(a) & 1023; }

// Where: which bytes of the pair (2 bits), then a code offset or the number of a known site.
using Where = uint32_t;
constexpr Where SITE_FLAG = 1u << 29, WHERE_MASK = SITE_FLAG - 1;

struct Cell {
    Access write, read[2];
    Where write_at, read_at[2];
};

Cell* shared_cells = nullptr;
std::vector<unsigned char> shared_set(SHARED_BYTES);
// How far the last block set bytes, for both regions.
size_t set_from = 0, set_to = 0;

unsigned launch_serial = 0, block_serial = 0, block_number = 0;
unsigned barrier_epoch = 0;
std::vector<unsigned> warp_epochs;

struct Release {
    unsigned epoch, thread;
};
// What each block has made visible, by truncated block number.
using Clock = std::map<unsigned, Release>;
std::map<const void*, Clock> released;
Clock acquired;
unsigned fenced_at = 0;
bool fenced = false;

std::vector<Site> sites;

Where remember(const Site& site) {
    for (size_t i = 0; i < sites.size(); i++) {
        if (sites[i].file == site.file && sites[i].line == site.line) return SITE_FLAG | Where(i);
    }
    sites.push_back(site);
    return SITE_FLAG | Where(sites.size() - 1);
}

// "file.cu:12" of a code offset, by addr2line when it is there.
std::string show_where(Where where) {
    if (where & SITE_FLAG) return show(sites[where & WHERE_MASK]);
    Where offset = where & WHERE_MASK;
    char text[512];
    Dl_info info;
    if (dladdr(&__ehdr_start, &info) != 0 && info.dli_fname != nullptr) {
        // One byte back: the return address belongs to the next line sometimes.
        std::snprintf(text, sizeof text, "addr2line -s -e '%s' 0x%x 2>/dev/null", info.dli_fname, offset - 1);
        if (FILE* pipe = popen(text, "r")) {
            char line[256] = "";
            char* got = std::fgets(line, sizeof line, pipe);
            pclose(pipe);
            if (got != nullptr && line[0] != '?' && line[0] != 0) {
                std::string found = line;
                return found.substr(0, found.find_first_of(" \n"));
            }
        }
    }
    std::snprintf(text, sizeof text, "code offset 0x%x", offset);
    return text;
}

Access access_now(bool shared, const Fiber* by) {
    unsigned tag = shared ? block_serial : launch_serial << 14 | (block_number % TAG_HALF);
    return Access(tag) << 36 | Access(barrier_epoch) << 20 | Access(warp_epochs[by->index / 32]) << 10 | by->index;
}

// Did the earlier access happen without anything that orders it before the present one?
bool unordered(Access before, Access now, bool shared) {
    if (before == 0) return false;
    unsigned tag = tag_of(before), own = tag_of(now);
    if (tag != own) {
        if (shared || tag >> 14 != own >> 14) return false;
        auto it = acquired.find(tag % TAG_HALF);
        if (it == acquired.end()) return true;
        return epoch_of(before) > it->second.epoch ||
               (epoch_of(before) == it->second.epoch && thread_of(before) != it->second.thread);
    }
    if (thread_of(before) == thread_of(now)) return false;
    if (epoch_of(before) != epoch_of(now) || epoch_of(now) == LAST_EPOCH) return false;
    if (thread_of(before) / 32 != thread_of(now) / 32) return true;
    return warp_epoch_of(before) == warp_epoch_of(now) && warp_epoch_of(now) != LAST_WARP_EPOCH;
}

[[noreturn]] void report(const char* what, size_t n, bool write, Where at, Access before, Where before_at, bool shared) {
    std::string other;
    unsigned block = tag_of(before) % TAG_HALF;
    if (!shared && block != block_number % TAG_HALF) other = " of block " + std::to_string(block);
    std::string here = show_where(at), there = show_where(before_at);
    fail_later("race in %s memory: %s of %zu bytes at %s, unordered with the %s at %s by thread %u%s",
               shared ? "shared" : "device", write ? "write" : "read", n, here.c_str(), what, there.c_str(),
               thread_of(before), other.c_str());
    leave_kernel();
}

void check_cells(Cell* cells, size_t from, size_t n, bool write, bool shared, Fiber* by, Where at) {
    Access now = access_now(shared, by);
    for (size_t i = from / 2; i <= (from + n - 1) / 2; i++) {
        Cell& cell = cells[i];
        // Bytes 2i and 2i + 1: which of them this access covers.
        Where bytes = (2 * i >= from ? 1u : 0u) | (2 * i + 1 < from + n ? 2u : 0u);
        Where mark = bytes << 30 | at;
        if ((cell.write_at >> 30 & bytes) && unordered(cell.write, now, shared)) {
            report("write", n, write, at, cell.write, cell.write_at, shared);
        }
        if (write) {
            for (int r = 0; r < 2; r++) {
                if ((cell.read_at[r] >> 30 & bytes) && unordered(cell.read[r], now, shared)) {
                    report("read", n, write, at, cell.read[r], cell.read_at[r], shared);
                }
            }
            cell.write = now;
            cell.write_at = mark;
        } else {
            // Keep two readers that a later write could still race with, from different threads.
            bool first_spent = cell.read[0] == 0 || tag_of(cell.read[0]) != tag_of(now) ||
                               epoch_of(cell.read[0]) != epoch_of(now) || thread_of(cell.read[0]) == thread_of(now);
            int slot = first_spent ? 0 : 1;
            cell.read[slot] = now;
            cell.read_at[slot] = mark;
        }
    }
}

[[noreturn]] void bad(const char* kind, size_t n, const std::string& why, Where at) {
    std::string here = show_where(at);
    fail_later("%s of %zu bytes %s at %s", kind, n, why.c_str(), here.c_str());
    leave_kernel();
}

void check(const void* p, size_t n, bool write, Fiber* by, Where at) {
    const char* kind = write ? "write" : "read";
    if (in_shared_region(p)) {
        if (!shared_holds(p, n)) bad(kind, n, "outside every shared array", at);
        size_t offset = shared_offset(p);
        if (write) {
            std::memset(&shared_set[offset], 1, n);
            if (offset < set_from) set_from = offset;
            if (offset + n > set_to) set_to = offset + n;
        } else {
            for (size_t i = 0; i < n; i++) {
                if (!shared_set[offset + i]) bad(kind, n, "of uninitialised shared memory", at);
            }
        }
        check_cells(shared_cells, offset, n, write, true, by, at);
        return;
    }
    int owner = owner_of(p);
    if (owner == -2) {
        // The thread's own variables, its indices, and constants of the library are fine; other host memory is not.
        auto a = static_cast<const char*>(p);
        auto stack = static_cast<const char*>(by->stack);
        if (size_t(a - stack) < stack_bytes() || (a >= &__ehdr_start && a < &_end) || is_thread_record(p)) return;
        bad(kind, n, "of host memory", at);
    }
    Arena& arena = owner == -1 ? pinned_arena() : device_arena(owner);
    const Arena::Range& range = arena.find(p);
    size_t offset = reinterpret_cast<uintptr_t>(p) - range.start;
    if (range.bytes == 0 || offset + n > range.bytes || !may_touch(launch_now().device, owner)) {
        bad(kind, n, range_error(launch_now().device, p, n), at);
    }
    check_cells(static_cast<Cell*>(range.shadow), offset, n, write, false, by, at);
}

constexpr size_t shadow_size(size_t bytes) { return (bytes / 2 + 1) * sizeof(Cell); }

}  // namespace

void* race_shadow(size_t bytes) {
    void* p = mmap(nullptr, shadow_size(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    if (p == MAP_FAILED) {
        std::fprintf(stderr, "emulation: no memory for the race records of %zu bytes\n", bytes);
        std::abort();
    }
    return p;
}

void race_shadow_free(void* shadow, size_t bytes) { munmap(shadow, shadow_size(bytes)); }

void race_launch_begin() {
    if (shared_cells == nullptr) shared_cells = static_cast<Cell*>(race_shadow(SHARED_BYTES));
    if (++launch_serial == TAG_HALF) {
        // The numbers start again: forget what the old ones meant.
        launch_serial = 1;
        auto forget = [](const Arena::Range& r) { madvise(r.shadow, shadow_size(r.bytes), MADV_DONTNEED); };
        pinned_arena().each(forget);
        for (int d = 0; d < MAX_DEVICES; d++) device_arena(d).each(forget);
    }
    released.clear();
}

void race_block_begin(unsigned block) {
    if (++block_serial == 1u << 28) {
        block_serial = 1;
        madvise(shared_cells, shadow_size(SHARED_BYTES), MADV_DONTNEED);
    }
    block_number = block;
    barrier_epoch = 0;
    warp_epochs.assign((block_threads() + 31) / 32, 0);
    acquired.clear();
    fenced = false;
    if (set_to > set_from) std::memset(&shared_set[set_from], 0, set_to - set_from);
    set_from = SHARED_BYTES;
    set_to = 0;
}

void race_barrier() {
    if (barrier_epoch < LAST_EPOCH) barrier_epoch++;
    for (unsigned& e : warp_epochs) e = 0;
}

void race_warp_sync(unsigned warp) {
    if (warp_epochs[warp] < LAST_WARP_EPOCH) warp_epochs[warp]++;
}

const bool race_build = true;

void race_note(const void* p, size_t n, bool write, Fiber* by, const Site& site) {
    check(p, n, write, by, remember(site));
}

void race_unset(const void* p, size_t n) { std::memset(&shared_set[shared_offset(p)], 0, n); }

void race_fence() {
    fenced = true;
    fenced_at = barrier_epoch;
}

void race_atomic(const void* p, size_t n, const Site& site) {
    Fiber* me = current();
    if (in_shared_region(p)) {
        // An atomic does not race with atomics, but it does with plain accesses.
        size_t offset = shared_offset(p);
        for (size_t i = 0; i < n; i++) {
            if (!shared_set[offset + i]) bad("atomic access", n, "of uninitialised shared memory", remember(site));
        }
        Cell& cell = shared_cells[offset / 2];
        if (unordered(cell.write, access_now(true, me), true)) {
            report("write", n, true, remember(site), cell.write, cell.write_at, true);
        }
        return;
    }
    // Take over what others released here, then release what a fence of this block has ordered.
    Clock& clock = released[p];
    for (auto& entry : clock) {
        Release& mine = acquired.emplace(entry.first, entry.second).first->second;
        if (mine.epoch < entry.second.epoch) mine = entry.second;
    }
    if (fenced && fenced_at + 1 >= barrier_epoch) {
        for (auto& entry : acquired) {
            Release& theirs = clock.emplace(entry.first, entry.second).first->second;
            if (theirs.epoch < entry.second.epoch) theirs = entry.second;
        }
        // Everything of this block before its last barrier, and this thread's own accesses since.
        clock[block_number % TAG_HALF] = {barrier_epoch, me->index};
    }
}

static void hook(const void* p, size_t n, bool write, const void* pc) {
    if (!in_kernel()) return;
    // Variables on the thread's own stack are by far the most frequent.
    Fiber* me = current();
    auto stack = static_cast<const char*>(me->stack);
    if (size_t(static_cast<const char*>(p) - stack) < stack_bytes()) return;
    check(p, n, write, me, Where(static_cast<const char*>(pc) - &__ehdr_start) & WHERE_MASK);
}

}  // namespace emu

#define HOOK extern "C" __attribute__((visibility("hidden"))) void
#define PAIR(suffix, bytes)                                                                                    \
    HOOK __tsan_read##suffix(void* p) { emu::hook(p, bytes, false, __builtin_return_address(0)); }              \
    HOOK __tsan_write##suffix(void* p) { emu::hook(p, bytes, true, __builtin_return_address(0)); }              \
    HOOK __tsan_volatile_read##suffix(void* p) { emu::hook(p, bytes, false, __builtin_return_address(0)); }     \
    HOOK __tsan_volatile_write##suffix(void* p) { emu::hook(p, bytes, true, __builtin_return_address(0)); }     \
    HOOK __tsan_unaligned_read##suffix(void* p) { emu::hook(p, bytes, false, __builtin_return_address(0)); }    \
    HOOK __tsan_unaligned_write##suffix(void* p) { emu::hook(p, bytes, true, __builtin_return_address(0)); }
PAIR(1, 1)
PAIR(2, 2)
PAIR(4, 4)
PAIR(8, 8)
PAIR(16, 16)

HOOK __tsan_read_range(void* p, unsigned long n) { emu::hook(p, n, false, __builtin_return_address(0)); }
HOOK __tsan_write_range(void* p, unsigned long n) { emu::hook(p, n, true, __builtin_return_address(0)); }
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void*) {}
HOOK __tsan_func_exit() {}
HOOK __tsan_vptr_read(void**) {}
HOOK __tsan_vptr_update(void**, void*) {}

extern "C" __attribute__((visibility("hidden"))) void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
    emu::hook(from, n, false, __builtin_return_address(0));
    emu::hook(to, n, true, __builtin_return_address(0));
    return std::memcpy(to, from, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memmove(void* to, const void* from, unsigned long n) {
    emu::hook(from, n, false, __builtin_return_address(0));
    emu::hook(to, n, true, __builtin_return_address(0));
    return std::memmove(to, from, n);
}
extern "C" __attribute__((visibility("hidden"))) void* __tsan_memset(void* to, int value, unsigned long n) {
    emu::hook(to, n, true, __builtin_return_address(0));
    return std::memset(to, value, n);
}

#endif
