// Address ranges that kernels may touch: one arena per device, one for pinned host memory.
#pragma once

#include <map>

#include "sim.h"

namespace emu {

constexpr int MAX_DEVICES = 16;
// Every arena is one part of a single reservation, so that the owner of an address is a subtraction and a shift.
constexpr int ARENA_BITS = 33;
constexpr size_t ARENA_BYTES = size_t(1) << ARENA_BITS;
extern uintptr_t arena_base;

// A range of addresses. Allocations lie at least a page apart, are filled with 0xff, and an address is not given out
// again while fresh ones are left, so that stale pointers point at nothing.
class Arena {
   public:
    void* allocate(size_t bytes);
    // False when `p` is not the start of a live allocation.
    bool release(void* p);
    // The live allocation around p, or one of zero bytes.
    struct Range {
        uintptr_t start = 0;
        size_t bytes = 0;
        // The race build's records of this allocation.
        void* shadow = nullptr;
    };
    const Range& find(const void* p) const {
        if (reinterpret_cast<uintptr_t>(p) - last_.start >= last_.bytes) look_up(p);
        return last_;
    }
    size_t used() const { return used_; }
    // Was p once inside an allocation?
    bool was_freed(const void* p) const;
    // Frees everything.
    void clear();
    // Calls f with every live allocation.
    template <class F>
    void each(F f) const {
        for (auto& entry : live_) f(entry.second);
    }

   private:
    void look_up(const void* p) const;

    uintptr_t base_ = 0;
    size_t next_ = 0, used_ = 0;
    std::map<uintptr_t, Range> live_;
    std::map<uintptr_t, size_t> freed_;
    // The last range found: kernels touch the same few arrays again and again.
    mutable Range last_;
};

Arena& device_arena(int device);
Arena& pinned_arena();
// The index of the device that owns the address, -1 for pinned memory, -2 for neither.
inline int owner_of(const void* p) {
    uintptr_t part = (reinterpret_cast<uintptr_t>(p) - arena_base) >> ARENA_BITS;
    return part > uintptr_t(MAX_DEVICES) ? -2 : int(part) - 1;
}
// May kernels on `device` touch memory of `owner`? Set by peer access.
bool may_touch(int device, int owner);
void allow_peer(int device, int owner, bool allowed);
// Empty when kernels on `device` may access [p, p + n), otherwise why not. Only for addresses inside an arena.
std::string range_error(int device, const void* p, size_t n);

}  // namespace emu
