// A pretend NCCL. A collective is an operation of a stream, so it is captured like a kernel; it can run when every rank
// has its half at the head of a stream, and then whoever gets there first does the work of all ranks. Until then a
// query says NOT_READY and a synchronize waits, up to a time limit.
#include "nccl.h"

namespace drv {

namespace {

const char* name(What what) {
    static const char* const names[] = {"all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter"};
    return names[int(what)];
}

size_t width(int type) {
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? widths[type] : 0;
}

std::string describe(const Collective& c) {
    static const char* const types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
    static const char* const ops[] = {"sum", "product", "maximum", "minimum", "average"};
    return "rank " + std::to_string(c.rank) + ": " + name(c.what) + " (" + ops[c.op] + ") of " + std::to_string(c.count) +
           " " + types[c.type] + ", root " + std::to_string(c.root);
}

// The stream at whose head the rank's half lies, or null.
Stream* half_of(const Clique& clique, int rank) {
    Stream* found = nullptr;
    for (Stream* s : world.streams) {
        if (s->queue.empty()) continue;
        const auto& c = s->queue.front().collective;
        if (!c || c->clique.get() != &clique || c->rank != rank) continue;
        if (found == nullptr || s->id < found->id) found = s;
    }
    return found;
}

// Elements as doubles would lose 64-bit integers; they go through T, and 16-bit floats through f32.
template <class T, class Wide, class Load, class Store>
void reduce(const std::vector<const char*>& from, char* to, size_t count, int op, Load load, Store store) {
    for (size_t i = 0; i < count; i++) {
        T value;
        std::memcpy(&value, from[0] + i * sizeof(T), sizeof(T));
        Wide sum = load(value);
        // In the order of the ranks, rounded once at the end.
        for (size_t r = 1; r < from.size(); r++) {
            std::memcpy(&value, from[r] + i * sizeof(T), sizeof(T));
            Wide other = load(value);
            switch (op) {
                case 1: sum = Wide(sum * other); break;
                case 2: sum = sum < other ? other : sum; break;
                case 3: sum = other < sum ? other : sum; break;
                default: sum = Wide(sum + other);
            }
        }
        if (op == 4) sum = Wide(sum / Wide(from.size()));
        value = store(sum);
        std::memcpy(to + i * sizeof(T), &value, sizeof(T));
    }
}

template <class T>
void reduce_plain(const std::vector<const char*>& from, char* to, size_t count, int op) {
    auto same = [](T v) { return v; };
    reduce<T, T>(from, to, count, op, same, same);
}

void reduce_any(const std::vector<const char*>& from, char* to, size_t count, int type, int op) {
    switch (type) {
        case 0: reduce_plain<int8_t>(from, to, count, op); break;
        case 1: reduce_plain<uint8_t>(from, to, count, op); break;
        case 2: reduce_plain<int32_t>(from, to, count, op); break;
        case 3: reduce_plain<uint32_t>(from, to, count, op); break;
        case 4: reduce_plain<int64_t>(from, to, count, op); break;
        case 5: reduce_plain<uint64_t>(from, to, count, op); break;
        case 6: reduce<f16, float>(from, to, count, op, f16_to_f32, f32_to_f16); break;
        case 7: reduce_plain<float>(from, to, count, op); break;
        case 8: reduce_plain<double>(from, to, count, op); break;
        default: reduce<bf16, float>(from, to, count, op, bf16_to_f32, f32_to_bf16);
    }
}

// Bytes that the rank reads and writes.
size_t sent_bytes(const Collective& c, size_t ranks) {
    if (c.what == What::Broadcast && c.rank != c.root) return 0;
    return c.count * width(c.type) * (c.what == What::ReduceScatter ? ranks : 1);
}
size_t received_bytes(const Collective& c, size_t ranks) {
    if (c.what == What::Reduce && c.rank != c.root) return 0;
    return c.count * width(c.type) * (c.what == What::AllGather ? ranks : 1);
}

std::string check_buffers(const Collective& c, size_t ranks) {
    for (int side = 0; side < 2; side++) {
        const char* p = side == 0 ? c.send : c.receive;
        size_t n = side == 0 ? sent_bytes(c, ranks) : received_bytes(c, ranks);
        if (n == 0) continue;
        std::string why = emu::owner_of(p) == -2 ? "outside device memory" : emu::range_error(c.device, p, n);
        if (!why.empty()) return describe(c) + ": buffer " + why;
    }
    return "";
}

// Does the work of all ranks. Inputs are copied first, since any of them may be somebody's output.
void perform(const std::vector<std::shared_ptr<Collective>>& parts) {
    size_t ranks = parts.size(), bytes = parts[0]->count * width(parts[0]->type);
    std::vector<std::vector<char>> inputs(ranks);
    for (size_t r = 0; r < ranks; r++) inputs[r].assign(parts[r]->send, parts[r]->send + sent_bytes(*parts[r], ranks));
    const Collective& first = *parts[0];
    std::vector<const char*> from(ranks);
    for (size_t r = 0; r < ranks; r++) {
        Collective& c = *parts[r];
        size_t slice = c.what == What::ReduceScatter ? r * bytes : 0;
        for (size_t i = 0; i < ranks; i++) from[i] = inputs[i].data() + slice;
        switch (c.what) {
            case What::Reduce:
                if (int(r) != c.root) break;
                [[fallthrough]];
            case What::AllReduce:
            case What::ReduceScatter: reduce_any(from, c.receive, c.count, c.type, c.op); break;
            case What::Broadcast: std::memcpy(c.receive, inputs[size_t(first.root)].data(), bytes); break;
            case What::AllGather:
                for (size_t i = 0; i < ranks; i++) std::memcpy(c.receive + i * bytes, inputs[i].data(), bytes);
        }
    }
}

int run(const std::shared_ptr<Collective>& mine, std::string& why) {
    Clique& clique = *mine->clique;
    if (clique.members[size_t(mine->rank)] == nullptr) {
        why = describe(*mine) + ": launched after its communicator has ended";
        return LAUNCH_FAILED;
    }
    std::vector<Stream*> streams;
    std::vector<std::shared_ptr<Collective>> parts;
    for (int r = 0; r < clique.size; r++) {
        streams.push_back(half_of(clique, r));
        parts.push_back(streams.back()->queue.front().collective);
    }
    for (int r = 0; r < clique.size; r++) {
        Context* other = streams[size_t(r)]->context;
        if (r == mine->rank || !fault_strikes(other)) continue;
        // The lost rank's half is gone; this one goes on waiting for it.
        make_sticky(other, world.fault_code, "injected fault before " + describe(*parts[size_t(r)]));
        return NOT_READY;
    }
    for (auto& part : parts) {
        bool same = part->what == parts[0]->what && part->count == parts[0]->count && part->type == parts[0]->type &&
                    part->op == parts[0]->op && part->root == parts[0]->root;
        why = same ? check_buffers(*part, parts.size()) : "ranks disagree: " + describe(*parts[0]) + ", " + describe(*part);
        if (why.empty()) continue;
        for (auto& other : parts) {
            if (other != mine) make_sticky(&world.contexts[other->device], LAUNCH_FAILED, why);
        }
        return LAUNCH_FAILED;
    }
    perform(parts);
    for (int r = 0; r < clique.size; r++) {
        if (parts[size_t(r)] == mine) continue;
        streams[size_t(r)]->queue.pop_front();
        streams[size_t(r)]->finished++;
        collect(streams[size_t(r)]);
    }
    return SUCCESS;
}

int start(What what, const void* send, void* receive, size_t count, int type, int op, int root, Comm* comm, void* handle) {
    if (comms.count(comm) == 0) return fail(NCCL_BAD_ARGUMENT, "no such communicator");
    if (comm->clique->joined < comm->clique->size) return fail(NCCL_BAD_USAGE, "not all ranks have joined yet");
    if (comm->connecting) return fail(NCCL_BAD_USAGE, "the call before this one is still in progress");
    if (width(type) == 0 || op < 0 || op > 4 || root < 0 || root >= comm->clique->size) {
        return fail(NCCL_BAD_ARGUMENT, "type, operation or root out of range");
    }
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return fail(NCCL_CUDA_ERROR, "CUDA error " + std::to_string(error));
    if (stream->context != comm->context) return fail(NCCL_BAD_USAGE, "the stream belongs to another device");
    if (count == 0) return NCCL_OK;
    auto half = std::make_shared<Collective>(Collective{comm->clique, comm->rank, comm->context->device, what,
                                                        static_cast<const char*>(send), static_cast<char*>(receive), count,
                                                        type, op, root});
    Op queued;
    queued.what = describe(*half);
    queued.collective = half;
    queued.ready = [half] {
        if (half->clique->members[size_t(half->rank)] == nullptr) return true;
        for (int r = 0; r < half->clique->size; r++) {
            if (half_of(*half->clique, r) == nullptr) return false;
        }
        return true;
    };
    queued.run = [half](std::string& why) { return run(half, why); };
    error = enqueue(stream, std::move(queued));
    if (error) return fail(NCCL_CUDA_ERROR, "CUDA error " + std::to_string(error));
    comm->connecting = comm->collectives++ == 0 && !comm->blocking;
    return comm->connecting ? NCCL_IN_PROGRESS : NCCL_OK;
}

}  // namespace
}  // namespace drv

using namespace drv;

// Calls between these two are queued one by one, which is one of the orders that a group allows.
API int ncclGroupStart() { return NCCL_OK; }
API int ncclGroupEnd() { return NCCL_OK; }

API int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op, void* comm, void* stream) {
    Guard guard;
    return start(What::AllReduce, send, receive, count, type, op, 0, static_cast<Comm*>(comm), stream);
}

API int ncclReduce(const void* send, void* receive, size_t count, int type, int op, int root, void* comm, void* stream) {
    Guard guard;
    return start(What::Reduce, send, receive, count, type, op, root, static_cast<Comm*>(comm), stream);
}

API int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root, void* comm, void* stream) {
    Guard guard;
    return start(What::Broadcast, send, receive, count, type, 0, root, static_cast<Comm*>(comm), stream);
}

API int ncclAllGather(const void* send, void* receive, size_t count, int type, void* comm, void* stream) {
    Guard guard;
    return start(What::AllGather, send, receive, count, type, 0, 0, static_cast<Comm*>(comm), stream);
}

API int ncclReduceScatter(const void* send, void* receive, size_t count, int type, int op, void* comm, void* stream) {
    Guard guard;
    return start(What::ReduceScatter, send, receive, count, type, op, 0, static_cast<Comm*>(comm), stream);
}
