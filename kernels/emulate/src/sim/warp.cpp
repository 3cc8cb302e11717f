// Barriers of a block, and warp operations other than mma.
#include "sites.h"
#include "warp.h"

namespace emu {

namespace {

// ---- the block's barrier

unsigned waiting = 0;
int pending_value = 0, result = 0;
Site barrier_site;
unsigned barrier_first = 0;

void open_barrier() {
    result = pending_value;
    pending_value = 0;
    waiting = 0;
    race_barrier();
    Fiber* all = fiber_at(0);
    unsigned threads = block_threads();
    for (unsigned i = 0; i < threads; i++) {
        if (all[i].state == State::AtBarrier) make_ready(all + i);
    }
}

void combine_shuffle(Warp& warp, unsigned mask, const Site& site) {
    for (unsigned l = 0; l < 32; l++) {
        if ((mask >> l & 1) == 0) continue;
        unsigned source = warp.sources[l];
        if ((mask >> source & 1) == 0) {
            fail(site, "shuffle: lane %u reads lane %u, which is not in mask %08x", l, source, mask);
        }
        warp.results[l] = warp.values[source];
    }
}

void combine_vote(Warp& warp, unsigned mask, const Site&) {
    warp.vote_result = (warp.vote_result & ~mask) | (warp.votes & mask);
    warp.votes &= ~mask;
}

void combine_sync(Warp& warp, unsigned mask, const Site&) {
    // Only a sync of every lane that is there orders the whole warp's memory for the race checker.
    if (mask == warp.present) race_warp_sync(current()->index / 32);
}

void combine_ldmatrix(Warp& warp, unsigned, const Site& site) {
    unsigned base = current()->index / 32 * 32;
    if (warp.transposed != 0 && warp.transposed != ~0u) fail(site, "ldmatrix: lanes disagree about .trans");
    for (unsigned l = 0; l < 32; l++) {
        const void* row = warp.rows[l];
        if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
            fail(site, "ldmatrix: the row address of lane %u is not 16-byte aligned", l);
        }
        if (!shared_holds(row, 16)) fail(site, "ldmatrix: the row of lane %u is outside every shared array", l);
        race_access(row, 16, false, fiber_at(base + l), site);
        std::memcpy(warp.matrix[l / 8][l % 8], row, 16);
    }
}

}  // namespace

std::vector<Warp> warps;

[[noreturn]] void overlap(const char* what, unsigned mask, const Meeting& other, const Site& site) {
    fail(site, "%s: mask %08x overlaps %08x of %s at %s", what, mask, other.mask, other.what, show(other.site).c_str());
}

void meet_part(Warp& warp, unsigned lane, unsigned mask, const char* what, Combine combine,
               const Site& site) {
    Fiber* me = current();
    if ((mask >> lane & 1) == 0) fail(site, "%s: lane %u is not in its own mask %08x", what, lane, mask);
    if ((mask & ~warp.present) != 0) {
        fail(site, "%s: mask %08x names lanes that have left or never were (%08x)", what, mask, mask & ~warp.present);
    }
    if (warp.whole.arrived != 0) overlap(what, mask, warp.whole, site);
    size_t at = warp.parts.size();
    for (size_t i = 0; i < warp.parts.size(); i++) {
        if ((warp.parts[i].mask & mask) == 0) continue;
        if (warp.parts[i].mask != mask) overlap(what, mask, warp.parts[i], site);
        at = i;
    }
    if (at == warp.parts.size()) {
        warp.parts.push_back({mask, 0, combine, what, site});
    } else {
        same_operation(warp.parts[at], what, combine, site);
    }
    warp.parts[at].arrived |= 1u << lane;
    if (warp.parts[at].arrived != mask) {
        wait_here(State::InWarp, what, site);
        return;
    }
    warp.parts[at] = warp.parts.back();
    warp.parts.pop_back();
    combine(warp, mask, site);
    for (unsigned l = 0; l < 32; l++) {
        if (l != lane && (mask >> l & 1)) make_ready(me - lane + l);
    }
}

void barrier_begin() {
    waiting = 0;
    pending_value = result = 0;
}

void barrier_thread_left() {
    if (waiting > 0 && waiting == threads_alive()) open_barrier();
}

int barrier(int op, int value, EMU_AT) {
    Site site{EMU_HERE};
    if (left_out("barrier", site)) return value;
    Fiber* me = current();
    if (waiting == 0) {
        barrier_site = site;
        barrier_first = me->index;
    } else if (!same_site(site, barrier_site)) {
        fail(site, "barrier divergence: thread %u waits at %s, this one", barrier_first, show(barrier_site).c_str());
    }
    if (op == 1) pending_value |= value;
    if (op == 2) pending_value += value;
    if (++waiting < threads_alive()) {
        // What it waits for is the same for all of them: warp_wait().
        me->state = State::AtBarrier;
        me->waits_for = nullptr;
        sleep_here(me);
    } else {
        open_barrier();
    }
    return result;
}

void warps_begin(unsigned threads) {
    if (warps.size() < (threads + 31) / 32) warps.resize((threads + 31) / 32);
    for (size_t w = 0; w < warps.size(); w++) {
        size_t first = w * 32 < threads ? w * 32 : threads;
        size_t lanes = threads - first < 32 ? threads - first : 32;
        Warp& warp = warps[w];
        warp.present = warp.lanes = lanes == 32 ? ~0u : (1u << lanes) - 1;
        warp.whole.arrived = 0;
        warp.parts.clear();
        warp.votes = warp.transposed = 0;
    }
}

void warp_wait(Fiber* fiber) {
    if (fiber->waits_for != nullptr) return;
    if (fiber->state == State::AtBarrier) {
        fiber->waits_for = "__syncthreads";
        fiber->site = barrier_site;
    }
    if (fiber->state != State::InWarp) return;
    const Meeting& m = warps[fiber->index / 32].whole;
    fiber->waits_for = m.what;
    fiber->site = m.site;
}

static void left(const Meeting& m, unsigned lane) {
    fail_later("%s at %s waits for lane %u, which has left the kernel", m.what, show(m.site).c_str(), lane);
}

void warp_lane_left(unsigned index) {
    Warp& warp = warps[index / 32];
    unsigned bit = 1u << (index % 32);
    warp.present &= ~bit;
    if (warp.whole.arrived != 0) left(warp.whole, index % 32);
    for (const Meeting& m : warp.parts) {
        if (m.mask & bit) left(m, index % 32);
    }
}

void warp_sync(unsigned mask, EMU_AT) {
    if (left_out("syncwarp", {EMU_HERE})) return;
    Fiber* me = current();
    Warp& warp = warps[me->index / 32];
    // On the device a full mask is accepted in a warp that has fewer lanes; here too, and only for this operation.
    meet(me, warp, me->index % 32, mask == ~0u ? warp.lanes : mask, "__syncwarp", combine_sync, {EMU_HERE});
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int arg, int width, EMU_AT) {
    Fiber* me = current();
    int lane = int(me->index % 32);
    if (width <= 0 || width > 32 || (width & (width - 1)) != 0) fail({EMU_HERE}, "shuffle: width %d", width);
    int first = lane & -width, source = lane;
    switch (kind) {
        case Shuffle::Index: source = first + (arg & (width - 1)); break;
        case Shuffle::Xor: source = lane ^ arg; break;
        case Shuffle::Up: source = lane - arg; break;
        case Shuffle::Down: source = lane + arg; break;
    }
    // Up and down stay inside the segment; xor may reach an earlier segment but not a later one.
    bool outside = kind == Shuffle::Up ? source < first : source >= first + width;
    if (outside || source < 0 || source > 31) source = lane;
    Warp& warp = warps[me->index / 32];
    warp.values[lane] = value;
    warp.sources[lane] = static_cast<unsigned char>(source);
    meet(me, warp, unsigned(lane), mask, "shuffle", combine_shuffle, {EMU_HERE});
    return warp.results[lane];
}

unsigned ballot(unsigned mask, int predicate, EMU_AT) {
    Fiber* me = current();
    Warp& warp = warps[me->index / 32];
    unsigned lane = me->index % 32;
    if (predicate) warp.votes |= 1u << lane;
    meet(me, warp, lane, mask, "vote", combine_vote, {EMU_HERE});
    return warp.vote_result & mask;
}

void ldmatrix(unsigned* out, const void* row, bool transposed, EMU_AT) {
    Fiber* me = current();
    Warp& warp = warps[me->index / 32];
    unsigned lane = me->index % 32, bit = 1u << lane;
    warp.rows[lane] = row;
    warp.transposed = transposed ? warp.transposed | bit : warp.transposed & ~bit;
    meet(me, warp, lane, ~0u, "ldmatrix", combine_ldmatrix, {EMU_HERE});
    unsigned r = lane / 4, c = lane % 4 * 2;
    for (unsigned i = 0; i < 4; i++) {
        unsigned low = transposed ? warp.matrix[i][c][r] : warp.matrix[i][r][c];
        unsigned high = transposed ? warp.matrix[i][c + 1][r] : warp.matrix[i][r][c + 1];
        out[i] = low | high << 16;
    }
}

}  // namespace emu
