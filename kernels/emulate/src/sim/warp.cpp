// Barriers of a block, and the one meeting mechanism behind every warp operation.
#include "sim.h"
#include "sites.h"

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
    for (unsigned i = 0; i < block_threads(); i++) {
        Fiber* f = fiber_at(i);
        if (f->state == State::AtBarrier) make_ready(f);
    }
}

// ---- warps

using Combine = void (*)(void* const* args, unsigned mask, const Site& site);

struct Meeting {
    unsigned mask = 0, arrived = 0;
    Combine combine = nullptr;
    const char* what = "";
    Site site;
    void* args[32];
};

struct Warp {
    unsigned lanes = 0;    // at the start
    unsigned present = 0;  // still running
    std::vector<Meeting*> open;
};

std::vector<Warp> warps;
std::vector<Meeting*> spare;

Meeting* new_meeting() {
    if (spare.empty()) return new Meeting;
    Meeting* m = spare.back();
    spare.pop_back();
    return m;
}

// Deposits `arg` and comes back when all lanes of the mask have done so and `combine` has run over their records.
void meet(unsigned mask, const char* what, Combine combine, void* arg, const Site& site) {
    Fiber* me = current();
    unsigned lane = me->index % 32;
    Warp& warp = warps[me->index / 32];
    if ((mask >> lane & 1) == 0) fail(site, "%s: lane %u is not in its own mask %08x", what, lane, mask);
    if ((mask & ~warp.present) != 0) {
        fail(site, "%s: mask %08x names lanes that have left or never were (%08x)", what, mask, mask & ~warp.present);
    }
    Meeting* m = nullptr;
    for (Meeting* other : warp.open) {
        if ((other->mask & mask) == 0) continue;
        if (other->mask != mask) {
            fail(site, "%s: mask %08x overlaps %08x of %s at %s", what, mask, other->mask, other->what,
                 show(other->site).c_str());
        }
        m = other;
    }
    if (m == nullptr) {
        m = new_meeting();
        m->mask = mask;
        m->arrived = 0;
        m->combine = combine;
        m->what = what;
        m->site = site;
        std::memset(m->args, 0, sizeof m->args);
        warp.open.push_back(m);
    } else if (m->combine != combine || !same_site(m->site, site)) {
        fail(site, "warp divergence: %s here, but other lanes are in %s at %s", what, m->what, show(m->site).c_str());
    }
    m->args[lane] = arg;
    m->arrived |= 1u << lane;
    if (m->arrived != mask) {
        wait_here(State::InWarp, what, site);
        return;
    }
    for (size_t i = 0; i < warp.open.size(); i++) {
        if (warp.open[i] == m) {
            warp.open[i] = warp.open.back();
            warp.open.pop_back();
            break;
        }
    }
    spare.push_back(m);
    combine(m->args, mask, site);
    unsigned base = me->index - lane;
    for (unsigned l = 0; l < 32; l++) {
        if (l != lane && (mask >> l & 1)) make_ready(fiber_at(base + l));
    }
}

struct ShuffleRecord {
    uint64_t value;
    unsigned source;
    uint64_t result;
};

void combine_shuffle(void* const* args, unsigned mask, const Site& site) {
    for (unsigned l = 0; l < 32; l++) {
        if ((mask >> l & 1) == 0) continue;
        auto* r = static_cast<ShuffleRecord*>(args[l]);
        if ((mask >> r->source & 1) == 0) {
            fail(site, "shuffle: lane %u reads lane %u, which is not in mask %08x", l, r->source, mask);
        }
        r->result = static_cast<ShuffleRecord*>(args[r->source])->value;
    }
}

struct VoteRecord {
    int predicate;
    unsigned result;
};

void combine_vote(void* const* args, unsigned mask, const Site&) {
    unsigned bits = 0;
    for (unsigned l = 0; l < 32; l++) {
        if ((mask >> l & 1) && static_cast<VoteRecord*>(args[l])->predicate) bits |= 1u << l;
    }
    for (unsigned l = 0; l < 32; l++) {
        if (mask >> l & 1) static_cast<VoteRecord*>(args[l])->result = bits;
    }
}

void combine_sync(void* const*, unsigned mask, const Site&) {
    // Only a sync of every lane that is there orders the whole warp's memory for the race checker.
    if (mask == warps[current()->index / 32].present) race_warp_sync(current()->index / 32);
}

struct MatrixRecord {
    unsigned* out;
    const void* row;
    bool transposed;
};

void combine_ldmatrix(void* const* args, unsigned, const Site& site) {
    unsigned short tile[4][8][8];
    unsigned base = current()->index / 32 * 32;
    bool transposed = static_cast<MatrixRecord*>(args[0])->transposed;
    for (unsigned l = 0; l < 32; l++) {
        auto* r = static_cast<MatrixRecord*>(args[l]);
        if (reinterpret_cast<uintptr_t>(r->row) % 16 != 0) {
            fail(site, "ldmatrix: the row address of lane %u is not 16-byte aligned", l);
        }
        if (!shared_holds(r->row, 16)) fail(site, "ldmatrix: the row of lane %u is outside every shared array", l);
        if (r->transposed != transposed) fail(site, "ldmatrix: lanes disagree about .trans");
        race_access(r->row, 16, false, fiber_at(base + l), site);
        std::memcpy(tile[l / 8][l % 8], r->row, 16);
    }
    for (unsigned l = 0; l < 32; l++) {
        auto* r = static_cast<MatrixRecord*>(args[l]);
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = l / 4, column = l % 4 * 2;
            unsigned low = transposed ? tile[i][column][row] : tile[i][row][column];
            unsigned high = transposed ? tile[i][column + 1][row] : tile[i][row][column + 1];
            r->out[i] = low | high << 16;
        }
    }
}

struct MmaRecord {
    float* c;
    const unsigned* a;
    const unsigned* b;
};

inline float low_half(unsigned pair) { return __uint_as_float(pair << 16); }
inline float high_half(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

using Row = float __attribute__((vector_size(32)));

// D += A B for 16 x 16 and 16 x 8, in two chained groups of eight products: the order of the sum matters here as it
// does on the device, so that code which relies on another order shows. The last bits are not those of a tensor core.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
// Wider vectors where the machine has them: the same operations on the same elements, hence the same bits.
__attribute__((target_clones("avx2", "default")))
#endif
void multiply(const float (&a)[16][16], const float (&b)[16][8], float (&d)[16][8]) {
    Row rows[16];
    std::memcpy(rows, b, sizeof rows);
    for (unsigned m = 0; m < 16; m++) {
        Row first = a[m][0] * rows[0], second = a[m][8] * rows[8], sum;
        for (unsigned k = 1; k < 8; k++) {
            first += a[m][k] * rows[k];
            second += a[m][k + 8] * rows[k + 8];
        }
        std::memcpy(&sum, d[m], sizeof sum);
        sum += first;
        sum += second;
        std::memcpy(d[m], &sum, sizeof sum);
    }
}

void combine_mma(void* const* args, unsigned, const Site&) {
    alignas(32) float a[16][16], b[16][8], d[16][8];
    for (unsigned l = 0; l < 32; l++) {
        auto* r = static_cast<MmaRecord*>(args[l]);
        unsigned g = l / 4, t = l % 4 * 2;
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = g + (i & 1) * 8, column = t + (i >> 1) * 8;
            a[row][column] = low_half(r->a[i]);
            a[row][column + 1] = high_half(r->a[i]);
        }
        for (unsigned i = 0; i < 2; i++) {
            b[t + i * 8][g] = low_half(r->b[i]);
            b[t + i * 8 + 1][g] = high_half(r->b[i]);
        }
        for (unsigned i = 0; i < 4; i++) d[g + (i >> 1) * 8][t + (i & 1)] = r->c[i];
    }
    multiply(a, b, d);
    for (unsigned l = 0; l < 32; l++) {
        auto* r = static_cast<MmaRecord*>(args[l]);
        unsigned g = l / 4, t = l % 4 * 2;
        for (unsigned i = 0; i < 4; i++) r->c[i] = d[g + (i >> 1) * 8][t + (i & 1)];
    }
}

}  // namespace

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
        wait_here(State::AtBarrier, "__syncthreads", site);
    } else {
        open_barrier();
    }
    return result;
}

void warps_begin(unsigned threads) {
    warps.resize((threads + 31) / 32);
    for (size_t w = 0; w < warps.size(); w++) {
        size_t lanes = threads - w * 32 < 32 ? threads - w * 32 : 32;
        warps[w].present = warps[w].lanes = lanes == 32 ? ~0u : (1u << lanes) - 1;
        for (Meeting* m : warps[w].open) spare.push_back(m);
        warps[w].open.clear();
    }
}

void warp_lane_left(unsigned index) {
    Warp& warp = warps[index / 32];
    unsigned bit = 1u << (index % 32);
    warp.present &= ~bit;
    for (Meeting* m : warp.open) {
        if (m->mask & bit) {
            fail_later("%s at %s waits for lane %u, which has left the kernel", m->what, show(m->site).c_str(),
                       index % 32);
        }
    }
}

void warp_sync(unsigned mask, EMU_AT) {
    if (left_out("syncwarp", {EMU_HERE})) return;
    // On the device a full mask is accepted in a warp that has fewer lanes; here too, and only for this operation.
    unsigned lanes = warps[current()->index / 32].lanes;
    meet(mask == ~0u ? lanes : mask, "__syncwarp", combine_sync, nullptr, {EMU_HERE});
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int arg, int width, EMU_AT) {
    int lane = int(current()->index % 32);
    if (width <= 0 || width > 32 || (width & (width - 1)) != 0) fail({EMU_HERE}, "shuffle: width %d", width);
    int first = lane / width * width, source = lane;
    switch (kind) {
        case Shuffle::Index: source = first + (arg & (width - 1)); break;
        case Shuffle::Xor: source = lane ^ arg; break;
        case Shuffle::Up: source = lane - arg; break;
        case Shuffle::Down: source = lane + arg; break;
    }
    // Up and down stay inside the segment; xor may reach an earlier segment but not a later one.
    bool outside = kind == Shuffle::Up ? source < first : source >= first + width;
    if (outside || source < 0 || source > 31) source = lane;
    ShuffleRecord record{value, unsigned(source), 0};
    meet(mask, "shuffle", combine_shuffle, &record, {EMU_HERE});
    return record.result;
}

unsigned ballot(unsigned mask, int predicate, EMU_AT) {
    VoteRecord record{predicate, 0};
    meet(mask, "vote", combine_vote, &record, {EMU_HERE});
    return record.result;
}

void ldmatrix(unsigned* out, const void* row, bool transposed, EMU_AT) {
    MatrixRecord record{out, row, transposed};
    meet(~0u, "ldmatrix", combine_ldmatrix, &record, {EMU_HERE});
}

void mma_16816(float* c, const unsigned* a, const unsigned* b, EMU_AT) {
    MmaRecord record{c, a, b};
    meet(~0u, "mma", combine_mma, &record, {EMU_HERE});
}

}  // namespace emu
