// Source lines of the operations that order threads (sites.cpp).
#pragma once

#include "sim.h"

namespace emu {

// False almost always: then nobody asks.
extern bool sites_watched;
// Notes that this line ran; true when it is to be left out.
bool look_at_site(const char* kind, const Site& site);
inline bool left_out(const char* kind, const Site& site) { return sites_watched && look_at_site(kind, site); }

// From now on remember the lines that run.
void watch_sites();
// Leave out the operation at "file.cu:12"; null or empty: leave out nothing.
void remove_site(const char* site);
// "file.cu:12 kind" of the i-th line remembered, empty past the end.
std::string site_number(size_t i);

}  // namespace emu
