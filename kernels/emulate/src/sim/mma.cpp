// Products of small matrices. A group of them costs one meeting of the warp's lanes instead of one each.
#include "warp.h"

namespace emu {

namespace {

using Row = float __attribute__((vector_size(32)));
using Bits = unsigned __attribute__((vector_size(32)));
using Four = unsigned __attribute__((vector_size(16)));

// Register r of the four lanes that hold a row of A, for all four registers: rows g and g + 8, columns 0.. and 8.. .
inline void transpose(const unsigned (*lanes)[4], Four (&out)[4]) {
    Four v[4];
    std::memcpy(v, lanes, sizeof v);
    Four low01 = __builtin_shuffle(v[0], v[1], Four{0, 4, 1, 5}), high01 = __builtin_shuffle(v[0], v[1], Four{2, 6, 3, 7});
    Four low23 = __builtin_shuffle(v[2], v[3], Four{0, 4, 1, 5}), high23 = __builtin_shuffle(v[2], v[3], Four{2, 6, 3, 7});
    out[0] = __builtin_shuffle(low01, low23, Four{0, 1, 4, 5});
    out[1] = __builtin_shuffle(low01, low23, Four{2, 3, 6, 7});
    out[2] = __builtin_shuffle(high01, high23, Four{0, 1, 4, 5});
    out[3] = __builtin_shuffle(high01, high23, Four{2, 3, 6, 7});
}

// One row of D: two chained groups of eight products. The order of the sum matters here as it does on the device, so
// that code which relies on another order shows. The last bits are not those of a tensor core.
inline void multiply_row(Four left, Four right, const Row (&rows)[16], float* d) {
    float a[16];
    for (unsigned p = 0; p < 4; p++) {
        a[2 * p] = __uint_as_float(left[p] << 16);
        a[2 * p + 1] = __uint_as_float(left[p] & 0xffff0000u);
        a[2 * p + 8] = __uint_as_float(right[p] << 16);
        a[2 * p + 9] = __uint_as_float(right[p] & 0xffff0000u);
    }
    Row first = a[0] * rows[0], second = a[8] * rows[8], sum;
    for (unsigned k = 1; k < 8; k++) {
        first += a[k] * rows[k];
        second += a[k + 8] * rows[k + 8];
    }
    std::memcpy(&sum, d, sizeof sum);
    sum += first;
    sum += second;
    std::memcpy(d, &sum, sizeof sum);
}

// D += A B for 16 x 16 and 16 x 8.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
// Wider vectors where the machine has them: the same operations on the same elements, hence the same bits.
__attribute__((target_clones("avx2", "default")))
#endif
void multiply(const unsigned (&a)[32][4], const unsigned (&b)[8][8], float (&d)[16][8]) {
    Row rows[16];
    for (unsigned p = 0; p < 8; p++) {
        Bits pairs;
        std::memcpy(&pairs, b[p], sizeof pairs);
        rows[2 * p] = Row(pairs << 16);
        rows[2 * p + 1] = Row(pairs & 0xffff0000u);
    }
    for (unsigned g = 0; g < 8; g++) {
        Four part[4];
        transpose(a + 4 * g, part);
        multiply_row(part[0], part[2], rows, d[g]);
        multiply_row(part[1], part[3], rows, d[g + 8]);
    }
}

void combine_mma(Warp& warp, unsigned, const Site&) {
    Tiles& t = warp.tiles;
    for (unsigned i = 0; i < t.count; i++) multiply(t.a[i], t.b[i], t.d[t.to[i]]);
}

inline void put_factors(Tiles& tiles, unsigned i, unsigned lane, const unsigned* a, const unsigned* b) {
    std::memcpy(tiles.a[i][lane], a, 16);
    tiles.b[i][lane % 4][lane / 4] = b[0];
    tiles.b[i][lane % 4 + 4][lane / 4] = b[1];
}

inline void put_sum(Tiles& tiles, unsigned i, unsigned lane, const float* c) {
    std::memcpy(&tiles.d[i][lane / 4][lane % 4 * 2], c, 8);
    std::memcpy(&tiles.d[i][lane / 4 + 8][lane % 4 * 2], c + 2, 8);
}

inline void take_sum(const Tiles& tiles, unsigned i, unsigned lane, float* c) {
    std::memcpy(c, &tiles.d[i][lane / 4][lane % 4 * 2], 8);
    std::memcpy(c + 2, &tiles.d[i][lane / 4 + 8][lane % 4 * 2], 8);
}

}  // namespace

MmaGroup::MmaGroup(EMU_AT) : file_(emu_file), line_(emu_line) {
    Fiber* me = current();
    if (me->products != nullptr) fail({EMU_HERE}, "a group of mma inside another one");
    me->products = this;
    tiles_ = &warps[me->index / 32].tiles;
    lane_ = me->index % 32;
}

void MmaGroup::close() {
    flush();
    current()->products = nullptr;
}

inline void MmaGroup::add(float* c, const unsigned* a, const unsigned* b) {
    if (count_ == MOST) flush();
    uint64_t bit = uint64_t(1) << (reinterpret_cast<uintptr_t>(c) / 16 % 64);
    unsigned target = targets_;
    if (seen_ & bit) {
        // Mostly the one after the last one's.
        unsigned next = to_[count_ - 1] + 1u;
        target = next < targets_ && target_[next] == c ? next : 0;
        while (target < targets_ && target_[target] != c) target++;
    }
    if (target == targets_) {
        seen_ |= bit;
        target_[targets_++] = c;
        put_sum(*tiles_, target, lane_, c);
        // Nobody may read it before the group ends.
        for (unsigned i = 0; i < 4; i++) c[i] = __builtin_nanf("");
    }
    put_factors(*tiles_, count_, lane_, a, b);
    to_[count_++] = static_cast<unsigned char>(target);
    signature_ = signature_ * 37 + target + 1;
}

void mma_16816(float* c, const unsigned* a, const unsigned* b, EMU_AT) {
    Fiber* me = current();
    if (me->products != nullptr) {
        me->products->add(c, a, b);
        return;
    }
    Warp& warp = warps[me->index / 32];
    unsigned lane = me->index % 32;
    put_factors(warp.tiles, 0, lane, a, b);
    put_sum(warp.tiles, 0, lane, c);
    if (warp.whole.arrived == 0) {
        warp.tiles.count = 1;
        warp.tiles.to[0] = 0;
    }
    meet(me, warp, lane, ~0u, "mma", combine_mma, {EMU_HERE});
    take_sum(warp.tiles, 0, lane, c);
}


void MmaGroup::flush() {
    if (count_ == 0) return;
    Fiber* me = current();
    Warp& warp = warps[me->index / 32];
    Tiles& tiles = warp.tiles;
    unsigned lane = me->index % 32;
    Site site{file_, line_};
    if (warp.whole.arrived == 0) {
        tiles.count = count_;
        tiles.signature = signature_;
        std::memcpy(tiles.to, to_, sizeof to_);
    } else if (tiles.count != count_ || tiles.signature != signature_) {
        fail(site, "warp divergence: the lanes of a group of mma have different products");
    }
    meet(me, warp, lane, ~0u, "mma", combine_mma, site);
    for (unsigned i = 0; i < targets_; i++) take_sum(tiles, i, lane, target_[i]);
    count_ = targets_ = 0;
    signature_ = seen_ = 0;
}

}  // namespace emu
