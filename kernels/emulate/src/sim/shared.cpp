// Shared memory of the running block: 0xff everywhere at the start, canaries between and behind the arrays.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "sim.h"

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(p, n) ((void)(p), (void)(n))
#define __asan_unpoison_memory_region(p, n) ((void)(p), (void)(n))
#endif

namespace emu {

SharedRegion shared_region;

namespace {

struct Array {
    const void* key;
    const char* name;
    size_t start, bytes, canary_end;
};

// A page that faults, static arrays, a page that faults, dynamic memory, a page that faults.
unsigned char*& statics = shared_region.statics;
unsigned char*& dynamic = shared_region.dynamic;
size_t& dynamic_bytes = shared_region.dynamic_bytes;
std::vector<Array> arrays;
size_t static_used = 0;
// What the last block may have touched, to be filled again.
size_t dirty_static = SHARED_STATIC, dirty_dynamic = SHARED_DYNAMIC;
constexpr unsigned char CANARY_BYTE = 0xff;
constexpr size_t SPACE = 64;

void map_region() {
    constexpr size_t page = 4096;
    size_t bytes = page + SHARED_STATIC + page + SHARED_DYNAMIC + page;
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        std::fprintf(stderr, "emulation: no memory for shared arrays\n");
        std::abort();
    }
    statics = static_cast<unsigned char*>(p) + page;
    dynamic = statics + SHARED_STATIC + page;
    mprotect(statics, SHARED_STATIC, PROT_READ | PROT_WRITE);
    mprotect(dynamic, SHARED_DYNAMIC, PROT_READ | PROT_WRITE);
}

size_t clipped(size_t n, size_t most) { return n < most ? n : most; }

// Empty, or the first changed byte's place.
std::string check_canary(const char* name, const unsigned char* start, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (start[i] != CANARY_BYTE) {
            return std::string("shared array '") + name + "' was overrun, byte " + std::to_string(i - from) +
                   " past its end was written";
        }
    }
    return "";
}

}  // namespace

void shared_begin(size_t bytes) {
    if (statics == nullptr) map_region();
    __asan_unpoison_memory_region(statics, SHARED_STATIC);
    __asan_unpoison_memory_region(dynamic, SHARED_DYNAMIC);
    std::memset(statics, 0xff, dirty_static);
    std::memset(dynamic, 0xff, dirty_dynamic);
    arrays.clear();
    static_used = 0;
    dynamic_bytes = bytes;
    dirty_dynamic = clipped(bytes + CANARY, SHARED_DYNAMIC);
    dirty_static = 0;
    __asan_poison_memory_region(statics, SHARED_STATIC);
    __asan_poison_memory_region(dynamic + bytes, SHARED_DYNAMIC - bytes);
}

std::string shared_end() {
    __asan_unpoison_memory_region(statics, SHARED_STATIC);
    __asan_unpoison_memory_region(dynamic, SHARED_DYNAMIC);
    std::string found = check_canary("dynamic", dynamic, dynamic_bytes, dirty_dynamic);
    for (const Array& a : arrays) {
        if (found.empty()) found = check_canary(a.name, statics, a.start + a.bytes, a.canary_end);
    }
    return found;
}

void* shared_array(const void* key, size_t bytes, size_t align, const char* name, EMU_AT) {
    for (const Array& a : arrays) {
        if (a.key == key) return statics + a.start;
    }
    if (align < 16) align = 16;
    size_t start = (static_used + align - 1) / align * align;
    size_t end = start + bytes + SPACE;
    if (end > SHARED_STATIC) fail({EMU_HERE}, "static shared arrays of more than %zu bytes", SHARED_STATIC);
    __asan_unpoison_memory_region(statics + start, bytes);
    arrays.push_back({key, name, start, bytes, end});
    static_used = end;
    dirty_static = end;
    size_t sum = shared_static_bytes();
    if (sum > (48u << 10) || sum + dynamic_bytes > launch_now().shared_limit) {
        fail({EMU_HERE}, "too much shared memory in a block: %zu bytes static, %zu dynamic", sum, dynamic_bytes);
    }
    return statics + start;
}

size_t shared_static_bytes() {
    size_t sum = 0;
    for (const Array& a : arrays) sum += a.bytes;
    return sum;
}

unsigned char* shared_dynamic() { return dynamic; }

size_t shared_offset(const void* p) {
    auto a = static_cast<const unsigned char*>(p);
    return size_t(a - statics) < SHARED_STATIC ? size_t(a - statics) : SHARED_STATIC + size_t(a - dynamic);
}

bool static_array_holds(const void* p, size_t n) {
    size_t at = size_t(static_cast<const unsigned char*>(p) - statics);
    for (const Array& array : arrays) {
        if (at >= array.start && at + n <= array.start + array.bytes) return true;
    }
    return false;
}

}  // namespace emu
