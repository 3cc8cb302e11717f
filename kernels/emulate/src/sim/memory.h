// Address ranges that kernels may touch: one arena per device, one for pinned host memory.
#pragma once

#include <map>

#include "sim.h"

namespace emu {

// A reserved range of addresses. Allocations lie at least a page apart, are filled with 0xff, and an address is not
// given out again while fresh ones are left, so that stale pointers point at nothing.
class Arena {
   public:
    explicit Arena(const char* what) : what_(what) {}

    void* allocate(size_t bytes);
    // False when `p` is not the start of a live allocation.
    bool release(void* p);
    // The live allocation around p, or {0, 0}.
    struct Range {
        uintptr_t start = 0;
        size_t bytes = 0;
    };
    Range find(const void* p) const;
    bool contains(const void* p) const {
        auto a = reinterpret_cast<uintptr_t>(p);
        return a - base_ < RESERVED;
    }
    size_t offset(const void* p) const { return reinterpret_cast<uintptr_t>(p) - base_; }
    size_t used() const { return used_; }
    const char* what() const { return what_; }
    // "in freed memory" when p was once inside an allocation.
    bool was_freed(const void* p) const;
    // Frees everything.
    void clear();

    static constexpr size_t RESERVED = size_t(8) << 30;

   private:
    void reserve();

    const char* what_;
    uintptr_t base_ = 0;
    size_t next_ = 0, used_ = 0;
    std::map<uintptr_t, size_t> live_, freed_;
    // The last range found: kernels touch the same few arrays again and again.
    mutable Range last_;
};

constexpr int MAX_DEVICES = 16;
Arena& device_arena(int device);
Arena& pinned_arena();
// The arena of the address, or null.
Arena* arena_of(const void* p);
// The index of the device that owns the address, -1 for pinned memory, -2 for neither.
int owner_of(const void* p);
// May kernels on `device` touch memory of `owner`? Set by peer access.
bool may_touch(int device, int owner);
void allow_peer(int device, int owner, bool allowed);
// Empty when kernels on `device` may access [p, p + n), otherwise why not. Only for addresses inside an arena.
std::string range_error(int device, const void* p, size_t n);

}  // namespace emu
