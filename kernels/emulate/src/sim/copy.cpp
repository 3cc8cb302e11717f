// cp.async, as late as the rules allow: the destination reads 0xff from the call on, and the bytes move only in the
// wait that covers their group. Atomics and fences, which need no delay because only one fiber runs at a time.
#include "memory.h"
#include "sim.h"
#include "sites.h"

namespace emu {

// Copies that are done stay in the list until there are so many of them.
static constexpr unsigned KEPT = 64;

void copy_async(void* smem, const void* gmem, int src_bytes, EMU_AT) {
    Site site{EMU_HERE};
    if (src_bytes < 0 || src_bytes > 16) fail(site, "cp.async of %d source bytes", src_bytes);
    if (reinterpret_cast<uintptr_t>(smem) % 16 != 0) fail(site, "cp.async: the shared address is not 16-byte aligned");
    if (reinterpret_cast<uintptr_t>(gmem) % 16 != 0) fail(site, "cp.async: the global address is not 16-byte aligned");
    if (!shared_holds(smem, 16)) fail(site, "cp.async: 16 bytes outside every shared array");
    if (src_bytes > 0) {
        if (in_shared_region(gmem)) fail(site, "cp.async: the source is shared memory");
        check_range(gmem, size_t(src_bytes), "cp.async: read", site);
    }
    Fiber* me = current();
    if (me->waited >= KEPT) {
        me->copies.erase(me->copies.begin(), me->copies.begin() + me->waited);
        me->waited = 0;
    }
    race_access(smem, 16, true, me, site);
    if (race_build) race_unset(smem, 16);
    std::memset(smem, 0xff, 16);
    me->copies.push_back({static_cast<unsigned char*>(smem), static_cast<const unsigned char*>(gmem), src_bytes,
                          me->group, site});
}

void copy_commit(EMU_AT) {
    (void)emu_file;
    (void)emu_line;
    current()->group++;
}

void copy_wait(int groups, EMU_AT) {
    if (left_out("wait", {EMU_HERE})) return;
    Fiber* me = current();
    unsigned below = me->group > unsigned(groups) ? me->group - unsigned(groups) : 0;
    // Groups come in ascending order. No allocation ends while a kernel runs, so the sources are still there.
    while (me->waited < me->copies.size()) {
        const PendingCopy& c = me->copies[me->waited];
        if (c.group >= below) return;
        me->waited++;
        if (c.bytes > 0) race_access(c.from, size_t(c.bytes), false, me, c.site);
        race_access(c.to, 16, true, me, c.site);
        if (c.bytes == 16) {
            std::memcpy(c.to, c.from, 16);
            continue;
        }
        std::memcpy(c.to, c.from, size_t(c.bytes));
        std::memset(c.to + c.bytes, 0, size_t(16 - c.bytes));
    }
    me->copies.clear();
    me->waited = 0;
}

void copies_end(Fiber* fiber) {
    size_t pending = fiber->copies.size() - fiber->waited;
    if (pending > 0) {
        fail(fiber->copies[fiber->waited].site, "%zu asynchronous copies were never waited for, the first", pending);
    }
}

namespace {

template <class T>
void check_atomic(const T* p, const Site& site) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) fail(site, "atomic: misaligned address");
    check_range(p, sizeof(T), "atomic access", site);
    race_atomic(p, sizeof(T), site);
}

template <class T>
T apply(Rmw op, T* p, T v) {
    T old = *p;
    switch (op) {
        case Rmw::Add: *p = T(old + v); break;
        case Rmw::Max: *p = old < v ? v : old; break;
        case Rmw::Min: *p = v < old ? v : old; break;
        case Rmw::Inc: *p = old >= v ? 0 : T(old + 1); break;
        case Rmw::Exch: *p = v; break;
    }
    return old;
}

}  // namespace

uint32_t atomic_u32(Rmw op, unsigned* p, unsigned v, EMU_AT) {
    check_atomic(p, {EMU_HERE});
    return apply(op, p, v);
}

int32_t atomic_i32(Rmw op, int* p, int v, EMU_AT) {
    check_atomic(p, {EMU_HERE});
    if (op == Rmw::Add) return int(apply(op, reinterpret_cast<unsigned*>(p), unsigned(v)));
    return apply(op, p, v);
}

uint64_t atomic_u64(Rmw op, unsigned long long* p, unsigned long long v, EMU_AT) {
    check_atomic(p, {EMU_HERE});
    return apply(op, p, v);
}

float atomic_f32(float* p, float v, EMU_AT) {
    check_atomic(p, {EMU_HERE});
    float old = *p;
    *p = old + v;
    return old;
}

uint32_t atomic_cas(unsigned* p, unsigned expected, unsigned v, EMU_AT) {
    check_atomic(p, {EMU_HERE});
    unsigned old = *p;
    if (old == expected) *p = v;
    return old;
}

void fence(EMU_AT) {
    if (left_out("fence", {EMU_HERE})) return;
    race_fence();
}

}  // namespace emu
