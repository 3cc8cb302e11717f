#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(p, n) ((void)(p), (void)(n))
#define __asan_unpoison_memory_region(p, n) ((void)(p), (void)(n))
#endif

namespace emu {

static constexpr size_t PAGE = 4096;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

uintptr_t arena_base = ~uintptr_t(0);

// Arena 0 is pinned memory, arena d + 1 belongs to device d.
static Arena arenas[MAX_DEVICES + 1];

static void reserve() {
    void* p = mmap(nullptr, ARENA_BYTES * (MAX_DEVICES + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        std::fprintf(stderr, "emulation: cannot reserve addresses for device memory\n");
        std::abort();
    }
    arena_base = reinterpret_cast<uintptr_t>(p);
}

void* Arena::allocate(size_t bytes) {
    if (arena_base == ~uintptr_t(0)) reserve();
    if (base_ == 0) {
        base_ = arena_base + ARENA_BYTES * size_t(this - arenas);
        next_ = PAGE;
    }
    size_t span = round_up(bytes ? bytes : 1, PAGE);
    uintptr_t start = 0;
    if (next_ + span + PAGE <= ARENA_BYTES) {
        start = base_ + next_;
        next_ += span + PAGE;
    } else {
        for (auto it = freed_.begin(); it != freed_.end(); ++it) {
            if (round_up(it->second, PAGE) < span) continue;
            start = it->first;
            freed_.erase(it);
            break;
        }
        if (start == 0) return nullptr;
    }
    void* p = reinterpret_cast<void*>(start);
    if (mprotect(p, span, PROT_READ | PROT_WRITE) != 0) return nullptr;
    __asan_unpoison_memory_region(p, span);
    std::memset(p, 0xff, span);
    __asan_poison_memory_region(reinterpret_cast<char*>(p) - PAGE, PAGE);
    __asan_poison_memory_region(reinterpret_cast<char*>(p) + bytes, span - bytes + PAGE);
    live_[start] = {start, bytes, race_shadow(bytes)};
    used_ += bytes;
    return p;
}

bool Arena::release(void* p) {
    auto it = live_.find(reinterpret_cast<uintptr_t>(p));
    if (it == live_.end()) return false;
    size_t bytes = it->second.bytes, span = round_up(bytes ? bytes : 1, PAGE);
    // The pages go back to the system; touching them again faults.
    madvise(p, span, MADV_DONTNEED);
    mprotect(p, span, PROT_NONE);
    __asan_poison_memory_region(p, span);
    race_shadow_free(it->second.shadow, bytes);
    used_ -= bytes;
    freed_[it->first] = bytes;
    live_.erase(it);
    last_ = {};
    return true;
}

void Arena::clear() {
    while (!live_.empty()) release(reinterpret_cast<void*>(live_.begin()->first));
}

void Arena::look_up(const void* p) const {
    auto a = reinterpret_cast<uintptr_t>(p);
    last_ = {};
    auto it = live_.upper_bound(a);
    if (it == live_.begin()) return;
    --it;
    if (a - it->first < it->second.bytes) last_ = it->second;
}

bool Arena::was_freed(const void* p) const {
    auto a = reinterpret_cast<uintptr_t>(p);
    auto it = freed_.upper_bound(a);
    if (it == freed_.begin()) return false;
    --it;
    return a - it->first < it->second;
}

Arena& device_arena(int device) { return arenas[device + 1]; }

Arena& pinned_arena() { return arenas[0]; }

static bool peers[MAX_DEVICES][MAX_DEVICES];

bool may_touch(int device, int owner) { return owner < 0 || owner == device || peers[device][owner]; }

void allow_peer(int device, int owner, bool allowed) { peers[device][owner] = allowed; }

// The frequent answer, without a text.
static bool range_good(int device, const void* p, size_t n) {
    int owner = owner_of(p);
    const Arena::Range& range = arenas[owner + 1].find(p);
    return reinterpret_cast<uintptr_t>(p) - range.start + n <= range.bytes && may_touch(device, owner);
}

std::string range_error(int device, const void* p, size_t n) {
    int owner = owner_of(p);
    Arena& arena = owner == -1 ? pinned_arena() : device_arena(owner);
    const Arena::Range& range = arena.find(p);
    if (range.bytes == 0) {
        return arena.was_freed(p) ? "in memory that was freed" : "outside every device allocation";
    }
    size_t into = reinterpret_cast<uintptr_t>(p) - range.start;
    if (into + n > range.bytes) return "across the end of a device allocation";
    if (!may_touch(device, owner)) return "in memory of a device without peer access";
    return "";
}

void check_range(const void* p, size_t n, const char* what, const Site& site) {
    if (in_shared_region(p)) {
        if (!shared_holds(p, n)) fail(site, "%s of %zu bytes outside every shared array", what, n);
        return;
    }
    if (owner_of(p) == -2) {
        // Neither device nor pinned nor shared memory: a kernel's own variables, or nonsense.
        fail(site, "%s of %zu bytes at an address that is no device memory", what, n);
    }
    if (range_good(launch_now().device, p, n)) return;
    std::string why = range_error(launch_now().device, p, n);
    if (!why.empty()) fail(site, "%s of %zu bytes %s", what, n, why.c_str());
}

}  // namespace emu
