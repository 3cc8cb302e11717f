// What the two halves of the pretend NCCL share: communicators (communicator.cpp) and their collectives (nccl.cpp).
#pragma once

#include "driver.h"

namespace drv {

enum NcclResult : int {
    NCCL_OK,
    NCCL_CUDA_ERROR,
    NCCL_SYSTEM_ERROR,
    NCCL_INTERNAL,
    NCCL_BAD_ARGUMENT,
    NCCL_BAD_USAGE,
    NCCL_REMOTE_ERROR,
    NCCL_IN_PROGRESS,
};

struct Comm;

// All ranks that joined under one id. A rank that has left again, or not joined yet, has no member.
struct Clique {
    int size = 0;
    std::vector<Comm*> members;
    int joined = 0;
};

struct Comm {
    std::shared_ptr<Clique> clique;
    int rank = 0;
    Context* context = nullptr;
    bool blocking = true;
    // Collectives so far: the first one connects the ranks, which a communicator that does not block does in the
    // background.
    uint64_t collectives = 0;
    bool connecting = false;
};

enum class What { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter };

struct Collective {
    // Shared, so that an operation in a graph outlives its communicator.
    std::shared_ptr<Clique> clique;
    int rank;
    int device;
    What what;
    const char* send;
    char* receive;
    size_t count;
    int type, op, root;
};

extern std::set<Comm*> comms;
// Records why a call failed.
int fail(int code, const std::string& why);

}  // namespace drv
