// Events: a record is an operation of its stream, a query moves the queues a little.
#include <chrono>

#include "driver.h"

namespace drv {

int find_event(void* handle, std::shared_ptr<Event>* out) {
    int error = context_error();
    if (error) return error;
    auto it = world.events.find(static_cast<Event*>(handle));
    if (it == world.events.end()) return INVALID_HANDLE;
    *out = it->second;
    return SUCCESS;
}

static uint64_t now_ns() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

static int elapsed(float* ms, void* from_handle, void* to_handle) {
    std::shared_ptr<Event> from, to;
    int error = find_event(from_handle, &from);
    if (!error) error = find_event(to_handle, &to);
    if (error) return error;
    if (!from->timing || !to->timing || from->recorded == 0 || to->recorded == 0) return INVALID_HANDLE;
    if (from->capture || to->capture) return CAPTURED_EVENT;
    if (from->completed < from->recorded || to->completed < to->recorded) return NOT_READY;
    *ms = float(double(int64_t(to->time_ns - from->time_ns)) * 1e-6);
    return SUCCESS;
}

}  // namespace drv

using namespace drv;

API int cuEventCreate(void** out, unsigned flags) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    auto event = std::make_shared<Event>();
    event->context = current_context;
    event->timing = (flags & 2) == 0;
    world.events[event.get()] = event;
    *out = event.get();
    return SUCCESS;
}

API int cuEventDestroy_v2(void* handle) {
    Guard guard;
    return world.events.erase(static_cast<Event*>(handle)) != 0 ? SUCCESS : INVALID_HANDLE;
}

API int cuEventRecord(void* handle, void* stream_handle) {
    Guard guard;
    std::shared_ptr<Event> event;
    Stream* stream;
    int error = find_event(handle, &event);
    if (!error) error = find_stream(stream_handle, &stream);
    if (error) return error;
    if (event->context != stream->context) return INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->invalid) return CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->capture_position = stream->capture->nodes.size();
        event->capture_stream = stream;
        return SUCCESS;
    }
    event->capture = nullptr;
    uint64_t serial = ++event->recorded;
    Op op;
    op.what = "record an event";
    op.run = [event, serial](std::string&) {
        event->completed = serial;
        event->time_ns = now_ns();
        return int(SUCCESS);
    };
    return enqueue(stream, op);
}

API int cuEventRecordWithFlags(void* handle, void* stream_handle, unsigned) {
    return cuEventRecord(handle, stream_handle);
}

API int cuEventQuery(void* handle) {
    Guard guard;
    std::shared_ptr<Event> event;
    int error = find_event(handle, &event);
    if (error) return error;
    if (event->capture) return CAPTURED_EVENT;
    if (event->completed >= event->recorded) return SUCCESS;
    advance(nullptr);
    return event->context->sticky ? event->context->sticky : NOT_READY;
}

API int cuEventSynchronize(void* handle) {
    Guard guard;
    std::shared_ptr<Event> event;
    int error = find_event(handle, &event);
    if (error) return error;
    if (event->capture) return CAPTURED_EVENT;
    error = unsafe_call_error();
    if (error) return error;
    uint64_t serial = event->recorded;
    return run_until(guard, event->context, nullptr, [event, serial] { return event->completed >= serial; });
}

API int cuEventElapsedTime_v2(float* ms, void* from, void* to) {
    Guard guard;
    return elapsed(ms, from, to);
}

API int cuEventElapsedTime(float* ms, void* from, void* to) {
    Guard guard;
    return elapsed(ms, from, to);
}
