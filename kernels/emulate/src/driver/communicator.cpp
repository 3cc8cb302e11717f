// Communicators of the pretend NCCL: how ranks meet, leave and are asked for their state.
#include <chrono>

#include "nccl.h"

namespace drv {

std::set<Comm*> comms;

namespace {

std::map<std::string, std::shared_ptr<Clique>> meeting_points;
uint64_t ids = 0;
thread_local std::string last_error;

}  // namespace

int fail(int code, const std::string& why) {
    last_error = why;
    return code;
}

}  // namespace drv

using namespace drv;

struct ncclUniqueId {
    char internal[128];
};

// The part of ncclConfig_t that every version has.
struct ncclConfig {
    size_t size;
    unsigned magic, version;
    int blocking;
};

API int ncclGetVersion(int* version) {
    Guard guard;
    *version = settings.nccl_version;
    return NCCL_OK;
}

API int ncclGetUniqueId(ncclUniqueId* id) {
    Guard guard;
    std::memset(id->internal, 0, sizeof id->internal);
    uint64_t number = ++ids;
    std::memcpy(id->internal, "emulated", 8);
    std::memcpy(id->internal + 8, &number, 8);
    return NCCL_OK;
}

static bool of(const Op& op, const Comm& comm) {
    return op.collective && op.collective->clique == comm.clique && op.collective->rank == comm.rank;
}

// Whether a graph that is still there holds a collective of this rank.
static bool in_a_graph(const Comm& comm) {
    for (const GraphExec* exec : world.execs) {
        for (const Op& op : exec->nodes) {
            if (of(op, comm)) return true;
        }
    }
    return false;
}

// This rank's halves that are queued do nothing any more; other ranks' halves wait until their communicators end too.
static void forget(Comm* comm) {
    for (Stream* s : world.streams) {
        for (Op& op : s->queue) {
            if (!of(op, *comm)) continue;
            op.collective = nullptr;
            op.ready = nullptr;
            op.run = nullptr;
        }
    }
    comm->clique->members[size_t(comm->rank)] = nullptr;
    comms.erase(comm);
    delete comm;
    moved.notify_all();
}

static int join(Guard& guard, void** out, int ranks, const ncclUniqueId& id, int rank, bool blocking) {
    // A library that never comes back.
    moved.wait(guard.held, [] { return !settings.nccl_hangs; });
    if (ranks < 1 || rank < 0 || rank >= ranks) return fail(NCCL_BAD_ARGUMENT, "rank out of range");
    if (int error = unsafe_call_error()) return fail(NCCL_CUDA_ERROR, "CUDA error " + std::to_string(error));
    std::string key(id.internal, sizeof id.internal);
    auto& meeting = meeting_points[key];
    if (!meeting) {
        meeting = std::make_shared<Clique>();
        meeting->size = ranks;
        meeting->members.resize(size_t(ranks));
    }
    auto clique = meeting;
    if (clique->size != ranks) return fail(NCCL_BAD_ARGUMENT, "ranks disagree about their number");
    if (clique->members[size_t(rank)] != nullptr) return fail(NCCL_BAD_ARGUMENT, "the rank has joined already");
    auto* comm = new Comm;
    comm->clique = clique;
    comm->rank = rank;
    comm->context = current_context;
    comm->blocking = blocking;
    clique->members[size_t(rank)] = comm;
    comms.insert(comm);
    if (++clique->joined == clique->size) meeting_points.erase(key);
    moved.notify_all();
    *out = comm;
    if (!blocking) return NCCL_IN_PROGRESS;
    auto limit = std::chrono::milliseconds(settings.timeout_ms);
    if (moved.wait_for(guard.held, limit, [&] { return clique->joined == clique->size; })) return NCCL_OK;
    clique->joined--;
    forget(comm);
    *out = nullptr;
    return fail(NCCL_SYSTEM_ERROR, "rank " + std::to_string(rank) + ": other ranks never joined");
}

// Comes back when all ranks have called it, or with an error after the time limit.
API int ncclCommInitRank(void** out, int ranks, ncclUniqueId id, int rank) {
    Guard guard;
    return join(guard, out, ranks, id, rank, true);
}

// With `blocking` off it comes back at once, and ncclCommGetAsyncError() says when all ranks are there.
API int ncclCommInitRankConfig(void** out, int ranks, ncclUniqueId id, int rank, const ncclConfig* config) {
    Guard guard;
    if (config == nullptr) return join(guard, out, ranks, id, rank, true);
    if (config->magic != 0xcafebeefu || config->size < sizeof(ncclConfig)) {
        return fail(NCCL_BAD_ARGUMENT, "the configuration was not initialised");
    }
    return join(guard, out, ranks, id, rank, config->blocking != 0);
}

// Waits for nobody. Real libraries free the communicator only when its graphs are gone, so the order is looked at.
API int ncclCommAbort(void* handle) {
    Guard guard;
    auto* comm = static_cast<Comm*>(handle);
    if (comms.count(comm) == 0) return NCCL_BAD_ARGUMENT;
    if (in_a_graph(*comm)) world.last_message = "a communicator ended while a graph held its collectives";
    forget(comm);
    return NCCL_OK;
}

API int ncclCommDestroy(void* handle) {
    Guard guard;
    auto* comm = static_cast<Comm*>(handle);
    if (comms.count(comm) == 0) return NCCL_BAD_ARGUMENT;
    if (in_a_graph(*comm)) return fail(NCCL_BAD_USAGE, "destroyed while a graph holds its collectives");
    forget(comm);
    return NCCL_OK;
}

API int ncclCommFinalize(void*) { return NCCL_OK; }

API int ncclCommCount(void* comm, int* count) {
    Guard guard;
    if (comms.count(static_cast<Comm*>(comm)) == 0) return NCCL_BAD_ARGUMENT;
    *count = static_cast<Comm*>(comm)->clique->size;
    return NCCL_OK;
}

API int ncclCommUserRank(void* comm, int* rank) {
    Guard guard;
    if (comms.count(static_cast<Comm*>(comm)) == 0) return NCCL_BAD_ARGUMENT;
    *rank = static_cast<Comm*>(comm)->rank;
    return NCCL_OK;
}

API int ncclCommCuDevice(void* comm, int* device) {
    Guard guard;
    if (comms.count(static_cast<Comm*>(comm)) == 0) return NCCL_BAD_ARGUMENT;
    *device = static_cast<Comm*>(comm)->context->device;
    return NCCL_OK;
}

// What is under way here, and whether this rank's device has failed. Within one machine NCCL knows nothing of other
// ranks' failures: they show as collectives that never end.
API int ncclCommGetAsyncError(void* handle, int* error) {
    Guard guard;
    auto* comm = static_cast<Comm*>(handle);
    if (comms.count(comm) == 0) return NCCL_BAD_ARGUMENT;
    *error = NCCL_OK;
    if (comm->context->sticky) {
        *error = fail(NCCL_CUDA_ERROR, comm->context->message);
    } else if (comm->clique->joined < comm->clique->size) {
        *error = NCCL_IN_PROGRESS;
    } else if (comm->connecting) {
        *error = NCCL_IN_PROGRESS;
        comm->connecting = false;
    }
    return NCCL_OK;
}

API const char* ncclGetLastError(void*) { return last_error.c_str(); }

API const char* ncclGetErrorString(int code) {
    static const char* const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return code >= 0 && code < 8 ? names[code] : "unknown result code";
}
