// Stream capture and graphs. A graph is the list of captured operations in the order of the calls, which is one of the
// orders that its edges allow; a replay queues copies of them.
#include "driver.h"

namespace drv {

// What a node costs on the device once the graph is instantiated; of the size that drivers are known to take.
static constexpr size_t NODE_BYTES = 4096;

void forget_capture(const std::shared_ptr<Capture>& capture) {
    for (Stream* s : world.streams) {
        if (s->capture == capture) s->capture = nullptr;
    }
    for (size_t i = 0; i < world.captures.size(); i++) {
        if (world.captures[i] != capture) continue;
        world.captures.erase(world.captures.begin() + long(i));
        break;
    }
    capture->origin = nullptr;
}

}  // namespace drv

using namespace drv;

API int cuStreamBeginCapture_v2(void* handle, int mode) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (stream == stream->context->legacy) return CAPTURE_UNSUPPORTED;
    if (stream->capture) return INVALID_VALUE;
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    stream->capture = capture;
    world.captures.push_back(capture);
    return SUCCESS;
}

API int cuStreamEndCapture(void* handle, void** out) {
    Guard guard;
    *out = nullptr;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    auto capture = stream->capture;
    if (!capture) return INVALID_VALUE;
    if (capture->origin != stream) return CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    bool unjoined = false;
    for (auto& branch : capture->branches) unjoined |= !branch.merged || branch.joined < branch.last;
    bool invalid = capture->invalid;
    forget_capture(capture);
    if (invalid) return CAPTURE_INVALIDATED;
    if (unjoined) return CAPTURE_UNJOINED;
    auto* graph = new Graph{std::move(capture->nodes)};
    world.graphs.insert(graph);
    *out = graph;
    return SUCCESS;
}

API int cuStreamIsCapturing(void* handle, int* status) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return SUCCESS;
}

// Lets a thread make calls inside its own capture window that its mode would refuse.
API int cuThreadExchangeStreamCaptureMode(int* mode) {
    Guard guard;
    for (auto& capture : world.captures) {
        if (capture->thread == std::this_thread::get_id()) std::swap(capture->mode, *mode);
    }
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(void** out, void* handle, unsigned long long) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    auto* graph = static_cast<Graph*>(handle);
    if (world.graphs.count(graph) == 0) return INVALID_HANDLE;
    auto* exec = new GraphExec{current_context, graph->nodes};
    exec->bytes = exec->nodes.size() * NODE_BYTES;
    world.execs.insert(exec);
    *out = exec;
    return SUCCESS;
}

API int cuGraphUpload(void* handle, void* stream_handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle != nullptr ? stream_handle : nullptr, &stream);
    if (error) return error;
    auto* exec = static_cast<GraphExec*>(handle);
    if (world.execs.count(exec) == 0) return INVALID_HANDLE;
    if (exec->charged) return SUCCESS;
    if (device_used(*exec->context) + exec->bytes > memory_of(exec->context->device)) return OUT_OF_MEMORY;
    exec->context->graph_bytes += exec->bytes;
    exec->charged = true;
    return SUCCESS;
}

API int cuGraphLaunch(void* handle, void* stream_handle) {
    int error = cuGraphUpload(handle, stream_handle);
    if (error) return error;
    Guard guard;
    Stream* stream;
    error = find_stream(stream_handle, &stream);
    if (error) return error;
    auto* exec = static_cast<GraphExec*>(handle);
    if (exec->context != stream->context) return INVALID_CONTEXT;
    for (const Op& op : exec->nodes) {
        error = enqueue(stream, op);
        if (error) return error;
    }
    return SUCCESS;
}

API int cuGraphExecDestroy(void* handle) {
    Guard guard;
    auto* exec = static_cast<GraphExec*>(handle);
    if (world.execs.erase(exec) == 0) return INVALID_HANDLE;
    if (exec->charged && exec->context->graph_bytes >= exec->bytes) exec->context->graph_bytes -= exec->bytes;
    delete exec;
    return SUCCESS;
}

API int cuGraphDestroy(void* handle) {
    Guard guard;
    auto* graph = static_cast<Graph*>(handle);
    if (world.graphs.erase(graph) == 0) return INVALID_HANDLE;
    delete graph;
    return SUCCESS;
}

// The number of nodes; the nodes themselves are not handed out.
API int cuGraphGetNodes(void* handle, void** nodes, size_t* count) {
    Guard guard;
    auto* graph = static_cast<Graph*>(handle);
    if (world.graphs.count(graph) == 0) return INVALID_HANDLE;
    if (nodes != nullptr) return NOT_SUPPORTED;
    *count = graph->nodes.size();
    return SUCCESS;
}
