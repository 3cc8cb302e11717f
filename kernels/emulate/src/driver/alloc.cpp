// Memory: budgets, copies that wait in their stream, and the difference between pinned and pageable host memory.
#include "driver.h"

namespace drv {

size_t device_used(const Context& context) {
    return emu::device_arena(context.device).used() + context.graph_bytes;
}

static int allocate(void** out, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    Context* context = current_context;
    if (device_used(*context) + bytes > memory_of(context->device)) {
        // Frees that wait in a stream would make room: the driver waits for them.
        while (step(nullptr)) {
        }
        if (context->sticky) return context->sticky;
        if (device_used(*context) + bytes > memory_of(context->device)) return OUT_OF_MEMORY;
    }
    *out = emu::device_arena(context->device).allocate(bytes);
    return *out != nullptr ? SUCCESS : OUT_OF_MEMORY;
}

// Is [p, p + n) device or pinned memory that this context may use?
static bool valid_range(const void* p, size_t n) {
    return emu::owner_of(p) != -2 && emu::range_error(current_context->device, p, n).empty();
}

static bool pinned(const void* p) { return emu::owner_of(p) == -1; }

// Run-time check and move; the ranges may have been freed since the call.
static int move(int device, void* to, const void* from, size_t n, const char* what, std::string& why) {
    for (const void* p : {static_cast<const void*>(to), from}) {
        if (emu::owner_of(p) == -2) continue;
        std::string error = emu::range_error(device, p, n);
        if (!error.empty()) {
            why = std::string(what) + ": " + std::to_string(n) + " bytes " + error;
            return ILLEGAL_ADDRESS;
        }
    }
    std::memmove(to, from, n);
    return SUCCESS;
}

static Op copy_op(Context* context, void* to, const void* from, size_t n, const char* what) {
    Op op;
    op.what = std::string(what) + ", " + std::to_string(n) + " bytes";
    int device = context->device;
    op.run = [=](std::string& why) { return move(device, to, from, n, what, why); };
    return op;
}

static int to_device(Guard& guard, void* to, const void* from, size_t n, void* handle, bool wait) {
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (n == 0) return SUCCESS;
    if (!valid_range(to, n)) return INVALID_VALUE;
    if (pinned(from) && !valid_range(from, n)) return INVALID_VALUE;
    if (wait) {
        error = unsafe_call_error();
        if (error) return error;
    }
    Op op = copy_op(stream->context, to, from, n, "copy to the device");
    if (!pinned(from)) {
        // A graph would read the host's memory at every replay; nobody means that.
        if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
        // Pageable memory is staged: the caller may reuse it at once.
        auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                          static_cast<const char*>(from) + n);
        int device = stream->context->device;
        op.run = [=](std::string& why) { return move(device, to, staged->data(), n, "copy to the device", why); };
    }
    error = enqueue(stream, std::move(op));
    if (error || !wait) return error;
    return run_until(guard, stream->context, stream, [stream] { return drained(stream); });
}

static int to_host(Guard& guard, void* to, const void* from, size_t n, void* handle, bool wait) {
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (n == 0) return SUCCESS;
    if (!valid_range(from, n)) return INVALID_VALUE;
    if (pinned(to) && !valid_range(to, n)) return INVALID_VALUE;
    bool blocks = wait || !pinned(to);
    if (blocks) {
        if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
        if (wait) error = unsafe_call_error();
        if (error) return error;
    }
    error = enqueue(stream, copy_op(stream->context, to, from, n, "copy to the host"));
    if (error || !blocks) return error;
    return run_until(guard, stream->context, stream, [stream] { return drained(stream); });
}

static int fill(void* to, size_t count, unsigned value, size_t width, void* handle, Guard& guard, bool wait) {
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (count == 0) return SUCCESS;
    size_t bytes = count * width;
    if (!valid_range(to, bytes) || reinterpret_cast<uintptr_t>(to) % width != 0) return INVALID_VALUE;
    if (wait) {
        error = unsafe_call_error();
        if (error) return error;
    }
    Op op;
    op.what = "fill " + std::to_string(bytes) + " bytes";
    int device = stream->context->device;
    op.run = [=](std::string& why) {
        std::string error = emu::range_error(device, to, bytes);
        if (!error.empty()) {
            why = "fill: " + std::to_string(bytes) + " bytes " + error;
            return int(ILLEGAL_ADDRESS);
        }
        if (width == 1) {
            std::memset(to, int(value), count);
            return int(SUCCESS);
        }
        for (size_t i = 0; i < count; i++) std::memcpy(static_cast<char*>(to) + i * width, &value, width);
        return int(SUCCESS);
    };
    error = enqueue(stream, std::move(op));
    if (error || !wait) return error;
    return run_until(guard, stream->context, stream, [stream] { return drained(stream); });
}

}  // namespace drv

using namespace drv;

API int cuMemAlloc_v2(void** out, size_t bytes) {
    Guard guard;
    int error = unsafe_call_error();
    return error ? error : allocate(out, bytes);
}

API int cuMemFree_v2(void* p) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    if (p == nullptr) return SUCCESS;
    return emu::device_arena(current_context->device).release(p) ? SUCCESS : INVALID_VALUE;
}

API int cuMemAllocAsync(void** out, size_t bytes, void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    // Graphs here own no memory.
    if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
    error = unsafe_call_error();
    return error ? error : allocate(out, bytes);
}

API int cuMemFreeAsync(void* p, void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
    const auto& range = emu::device_arena(current_context->device).find(p);
    if (range.bytes == 0 || range.start != reinterpret_cast<uintptr_t>(p)) return INVALID_VALUE;
    Op op;
    op.what = "free";
    int device = current_context->device;
    op.run = [device, p](std::string& why) {
        if (emu::device_arena(device).release(p)) return int(SUCCESS);
        why = "memory was freed twice";
        return int(ILLEGAL_ADDRESS);
    };
    return enqueue(stream, std::move(op));
}

API int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    if (bytes == 0) return INVALID_VALUE;
    *out = emu::pinned_arena().allocate(bytes);
    return *out != nullptr ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

API int cuMemFreeHost(void* p) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    return emu::pinned_arena().release(p) ? SUCCESS : INVALID_VALUE;
}

API int cuMemHostGetDevicePointer_v2(void** out, void* p, unsigned) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    if (!valid_range(p, 1)) return INVALID_VALUE;
    *out = p;
    return SUCCESS;
}

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    size_t used = device_used(*current_context);
    *total = memory_of(current_context->device);
    *free_bytes = used < *total ? *total - used : 0;
    return SUCCESS;
}

API int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t n, void* stream) {
    Guard guard;
    return to_device(guard, to, from, n, stream, false);
}

API int cuMemcpyHtoD_v2(void* to, const void* from, size_t n) {
    Guard guard;
    return to_device(guard, to, from, n, nullptr, true);
}

API int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t n, void* stream) {
    Guard guard;
    return to_host(guard, to, from, n, stream, false);
}

API int cuMemcpyDtoH_v2(void* to, const void* from, size_t n) {
    Guard guard;
    return to_host(guard, to, from, n, nullptr, true);
}

API int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t n, void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (n == 0) return SUCCESS;
    if (!valid_range(to, n) || !valid_range(from, n)) return INVALID_VALUE;
    return enqueue(stream, copy_op(stream->context, to, from, n, "copy on the device"));
}

API int cuMemcpyDtoD_v2(void* to, const void* from, size_t n) {
    // Unlike the other synchronous copies this one does not wait for its end.
    return cuMemcpyDtoDAsync_v2(to, from, n, nullptr);
}

API int cuMemcpyPeerAsync(void* to, void* to_context, const void* from, void* from_context, size_t n, void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (n == 0) return SUCCESS;
    int to_device = static_cast<Context*>(to_context)->device, from_device = static_cast<Context*>(from_context)->device;
    if (emu::owner_of(to) != to_device || emu::owner_of(from) != from_device) return INVALID_VALUE;
    Op op;
    op.what = "copy between devices, " + std::to_string(n) + " bytes";
    // This call needs no peer access: each side is checked for its own device.
    op.run = [=](std::string& why) {
        why = emu::range_error(to_device, to, n) + emu::range_error(from_device, from, n);
        if (!why.empty()) return int(ILLEGAL_ADDRESS);
        std::memcpy(to, from, n);
        return int(SUCCESS);
    };
    return enqueue(stream, std::move(op));
}

API int cuMemsetD8Async(void* to, unsigned char value, size_t n, void* stream) {
    Guard guard;
    return fill(to, n, value, 1, stream, guard, false);
}

API int cuMemsetD32Async(void* to, unsigned value, size_t n, void* stream) {
    Guard guard;
    return fill(to, n, value, 4, stream, guard, false);
}

API int cuMemsetD8_v2(void* to, unsigned char value, size_t n) {
    Guard guard;
    return fill(to, n, value, 1, nullptr, guard, true);
}
