// Every barrier, warp sync, copy wait and fence by its source line: which ones ran, and running as if one were not
// there. A test suite that still passes without a barrier does not test that barrier (mutate.sh).
#include "sites.h"

#include <cstdio>
#include <cstdlib>
#include <set>

namespace emu {

bool sites_watched = false;

namespace {

struct Entry {
    const char* kind;
    Site site;
};

std::vector<Entry> seen;
std::set<std::pair<const void*, int>> known;
std::string removed;
bool recording = false;

void append_to_file() {
    const char* path = std::getenv("TOKENROUTER_EMU_SITES");
    FILE* file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    for (const Entry& e : seen) std::fprintf(file, "%s %s\n", show(e.site).c_str(), e.kind);
    std::fclose(file);
}

// What the environment asks for, once, when the library is loaded.
struct FromEnvironment {
    FromEnvironment() {
        if (const char* site = std::getenv("TOKENROUTER_EMU_REMOVE")) remove_site(site);
        if (std::getenv("TOKENROUTER_EMU_SITES") != nullptr) {
            watch_sites();
            std::atexit(append_to_file);
        }
    }
} from_environment;

}  // namespace

bool look_at_site(const char* kind, const Site& site) {
    if (recording && known.insert({site.file, site.line}).second) seen.push_back({kind, site});
    return !removed.empty() && removed == show(site);
}

void watch_sites() { sites_watched = recording = true; }

void remove_site(const char* site) {
    removed = site != nullptr ? site : "";
    sites_watched = recording || !removed.empty();
}

std::string site_number(size_t i) {
    return i < seen.size() ? show(seen[i].site) + " " + seen[i].kind : std::string();
}

}  // namespace emu
