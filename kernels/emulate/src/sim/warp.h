// How the lanes of a warp meet: the one mechanism behind shuffles, votes, syncs, ldmatrix and mma.
#pragma once

#include "sched.h"

#pragma GCC visibility push(hidden)

namespace emu {

struct Warp;

// What is done once all lanes have come, by the last of them.
using Combine = void (*)(Warp& warp, unsigned mask, const Site& site);

// The products of a group, up to 32: A and B as pairs of 16-bit values; D starts as C. Several may share a D.
struct Tiles {
    static constexpr unsigned MOST = 32;
    // As the lanes hold it, four registers each.
    alignas(64) unsigned a[MOST][32][4];
    // By rows.
    alignas(64) unsigned b[MOST][8][8];
    alignas(64) float d[MOST][16][8];
    // As the first lane has them; the others must have the same.
    unsigned count = 0;
    uint64_t signature = 0;
    unsigned char to[MOST];
};

// Lanes of one mask on their way to the same operation.
struct Meeting {
    unsigned mask = 0, arrived = 0;
    Combine combine = nullptr;
    const char* what = "";
    Site site;
};

// The operands of the running operation lie here and not on the lanes' stacks: a lane writes and reads its own part
// while that is in the cache, and a part is not used again before all lanes have taken theirs.
struct Warp {
    unsigned lanes = 0;    // at the start
    unsigned present = 0;  // still running
    // The whole warp's meeting; those of parts of it are rare.
    Meeting whole;
    std::vector<Meeting> parts;
    unsigned votes = 0, vote_result = 0;
    unsigned char sources[32];
    uint64_t values[32], results[32];
    const void* rows[32];
    unsigned transposed = 0;
    alignas(64) unsigned short matrix[4][8][8];
    Tiles tiles;
};

extern std::vector<Warp> warps;

[[noreturn]] void overlap(const char* what, unsigned mask, const Meeting& other, const Site& site);
// The meeting of a mask that is not the whole warp, or of a warp that has lost lanes.
void meet_part(Warp& warp, unsigned lane, unsigned mask, const char* what, Combine combine, const Site& site);

// Fails when the others are elsewhere.
inline void same_operation(const Meeting& m, const char* what, Combine combine, const Site& site) {
    if (m.combine == combine && same_site(m.site, site)) return;
    fail(site, "warp divergence: %s here, but other lanes are in %s at %s", what, m.what, show(m.site).c_str());
}

// Comes back when all lanes of the mask are here and `combine` has run over what they have deposited.
inline void meet(Fiber* me, Warp& warp, unsigned lane, unsigned mask, const char* what, Combine combine,
                 const Site& site) {
    if ((mask & warp.present) != ~0u) {
        meet_part(warp, lane, mask, what, combine, site);
        return;
    }
    Meeting& m = warp.whole;
    if (m.arrived == 0) {
        if (!warp.parts.empty()) overlap(what, mask, warp.parts[0], site);
        m.mask = ~0u;
        m.combine = combine;
        m.what = what;
        m.site = site;
    } else {
        same_operation(m, what, combine, site);
    }
    m.arrived |= 1u << lane;
    if (m.arrived != ~0u) {
        // What it waits for stands in the meeting: warp_wait().
        me->state = State::InWarp;
        me->waits_for = nullptr;
        sleep_here(me);
        return;
    }
    m.arrived = 0;
    combine(warp, ~0u, site);
    Fiber* first = me - lane;
    for (unsigned l = 0; l < 32; l++) {
        if (l != lane) make_ready(first + l);
    }
}

}  // namespace emu

#pragma GCC visibility pop
