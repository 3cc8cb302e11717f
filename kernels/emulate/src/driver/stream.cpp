// Streams: lazy queues that run only when somebody waits, interleaved by the seed.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "driver.h"

namespace drv {

static bool tracing() {
    static const bool on = std::getenv("TOKENROUTER_EMU_TRACE") != nullptr;
    return on;
}

bool drained(const Stream* stream) { return stream->queue.empty(); }

int find_stream(void* handle, Stream** out) {
    int error = context_error();
    if (error) return error;
    auto number = reinterpret_cast<uintptr_t>(handle);
    if (number <= 2) {
        *out = current_context->legacy;
        return SUCCESS;
    }
    auto* stream = static_cast<Stream*>(handle);
    if (world.streams.count(stream) == 0 || stream->destroyed) return INVALID_HANDLE;
    if (stream->context != current_context) return INVALID_CONTEXT;
    *out = stream;
    return SUCCESS;
}

bool break_capture(Stream* stream) {
    if (!stream->capture) return false;
    stream->capture->invalid = true;
    return true;
}

// An operation that waits until the other stream has done what it had been given so far.
static void push_after(Stream* stream, Stream* other) {
    if (other->queue.empty()) return;
    Op op;
    op.what = "wait for the default stream";
    uint64_t count = other->pushed;
    unsigned id = other->id;
    op.ready = [id, count] {
        for (Stream* s : world.streams) {
            if (s->id == id) return s->finished >= count;
        }
        return true;
    };
    stream->queue.push_back(op);
    stream->pushed++;
}

int enqueue(Stream* stream, Op op) {
    if (stream->capture) {
        Capture& capture = *stream->capture;
        if (capture.invalid) return CAPTURE_INVALIDATED;
        capture.nodes.push_back(std::move(op));
        for (auto& branch : capture.branches) {
            if (branch.stream == stream) branch.last = capture.nodes.size();
        }
        return SUCCESS;
    }
    // The default stream and blocking streams wait for one another.
    Context* context = stream->context;
    if (stream == context->legacy) {
        for (Stream* other : context->streams) {
            if (!other->blocking) continue;
            if (other->capture) {
                other->capture->invalid = true;
                return CAPTURE_IMPLICIT;
            }
            push_after(stream, other);
        }
    } else if (stream->blocking) {
        push_after(stream, context->legacy);
    }
    stream->queue.push_back(std::move(op));
    stream->pushed++;
    return SUCCESS;
}

static void drop_work(Context* context) {
    for (Stream* s : world.streams) {
        if (s->context != context) continue;
        s->finished += s->queue.size();
        s->queue.clear();
    }
}

void make_sticky(Context* context, int code, const std::string& message) {
    if (context->sticky) return;
    context->sticky = code;
    context->message = message;
    world.last_message = message;
    drop_work(context);
}

void collect(Stream* stream) {
    if (!stream->destroyed || !stream->queue.empty()) return;
    world.streams.erase(stream);
    stream->context->streams.erase(stream);
    delete stream;
}

bool fault_strikes(const Context* context) {
    if (world.fault_device != context->device || world.fault_after-- != 0) return false;
    world.fault_device = -1;
    return true;
}

static void run_head(Stream* stream) {
    // A copy: the head stays in place while it runs, where the halves of a collective find one another.
    Op op = stream->queue.front();
    Context* context = stream->context;
    world.operations++;
    if (tracing()) {
        std::fprintf(stderr, "emulation: device %d stream %u: %s\n", context->device, stream->id, op.what.c_str());
    }
    std::string why;
    int code = SUCCESS;
    if (fault_strikes(context)) {
        code = world.fault_code;
        why = "injected fault before " + op.what;
    } else if (op.run) {
        code = op.run(why);
    }
    if (code == NOT_READY) {
        // It stays where it is.
    } else if (code) {
        make_sticky(context, code, why);
    } else {
        stream->queue.pop_front();
        stream->finished++;
    }
    collect(stream);
    moved.notify_all();
}

bool step(Stream* wanted) {
    Stream* chosen = nullptr;
    unsigned seen = 0;
    // In the order of creation, not of addresses, so that a seed means the same in every run.
    std::vector<Stream*> runnable;
    for (Stream* s : world.streams) {
        if (s->queue.empty() || s->capture || s->context->sticky) continue;
        const Op& op = s->queue.front();
        if (op.ready && !op.ready()) continue;
        runnable.push_back(s);
    }
    if (runnable.empty()) return false;
    for (size_t i = 1; i < runnable.size(); i++) {
        for (size_t k = i; k > 0 && runnable[k]->id < runnable[k - 1]->id; k--) std::swap(runnable[k], runnable[k - 1]);
    }
    if (settings.seed == 0) {
        // The laziest: nothing but what was asked for, as long as that can run.
        chosen = runnable.front();
        for (Stream* s : runnable) {
            if (s == wanted) chosen = s;
        }
    } else if (settings.seed == 1) {
        // The most eager: everything else first.
        for (Stream* s : runnable) {
            if (chosen == nullptr || s != wanted) chosen = s;
        }
    } else {
        for (Stream* s : runnable) {
            seen++;
            if (draw() % seen == 0) chosen = s;
        }
    }
    run_head(chosen);
    return true;
}

int run_until(Guard& guard, Context* context, Stream* wanted, const std::function<bool()>& done) {
    while (!context->sticky && !done()) {
        if (step(wanted)) {
            // Others may queue work or ask questions between two operations.
            if (waiting_threads > 0) {
                guard.held.unlock();
                std::this_thread::yield();
                guard.held.lock();
            }
            continue;
        }
        // Only another thread can help: its half of a collective is missing. Any move starts the clock anew.
        if (moved.wait_for(guard.held, std::chrono::milliseconds(settings.timeout_ms)) == std::cv_status::timeout) {
            make_sticky(context, LAUNCH_TIMEOUT, "nothing can run: an operation waits for one that never came");
        }
    }
    return context->sticky;
}

void advance(Stream* wanted) {
    uint64_t count = settings.seed == 0 ? 1 : settings.seed == 1 ? 2 : draw() % 4;
    while (count-- > 0 && step(wanted)) {
    }
}

static int create(void** out, unsigned flags, int priority) {
    int error = context_error();
    if (error) return error;
    if (flags > 1) return INVALID_VALUE;
    auto* stream = new Stream;
    stream->context = current_context;
    stream->id = world.next_stream++;
    stream->blocking = flags == 0;
    // Out of range priorities are clamped, as the driver does.
    stream->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    world.streams.insert(stream);
    current_context->streams.insert(stream);
    *out = stream;
    return SUCCESS;
}

}  // namespace drv

using namespace drv;

API int cuStreamCreate(void** out, unsigned flags) {
    Guard guard;
    return create(out, flags, 0);
}

API int cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
    Guard guard;
    return create(out, flags, priority);
}

API int cuStreamGetPriority(void* handle, int* priority) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (!error) *priority = stream->priority;
    return error;
}

API int cuStreamDestroy_v2(void* handle) {
    Guard guard;
    auto* stream = static_cast<Stream*>(handle);
    if (world.streams.count(stream) == 0 || stream->destroyed) return INVALID_HANDLE;
    if (stream == stream->context->legacy) return INVALID_HANDLE;
    // What was queued still runs.
    stream->destroyed = true;
    if (stream->capture) stream->capture->invalid = true;
    stream->capture = nullptr;
    collect(stream);
    return SUCCESS;
}

API int cuStreamSynchronize(void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
    error = unsafe_call_error();
    if (error) return error;
    return run_until(guard, stream->context, stream, [stream] { return drained(stream); });
}

API int cuStreamQuery(void* handle) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (break_capture(stream)) return CAPTURE_UNSUPPORTED;
    if (drained(stream)) return SUCCESS;
    advance(stream);
    return stream->context->sticky ? stream->context->sticky : NOT_READY;
}

API int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    std::shared_ptr<Event> event;
    error = find_event(event_handle, &event);
    if (error) return error;
    if (event->capture) {
        auto capture = event->capture;
        if (capture->invalid) return CAPTURE_INVALIDATED;
        if (capture->origin == nullptr) return INVALID_VALUE;
        if (stream->capture && stream->capture != capture) {
            capture->invalid = stream->capture->invalid = true;
            return CAPTURE_ISOLATION;
        }
        if (!stream->capture) {
            if (stream == stream->context->legacy) return CAPTURE_IMPLICIT;
            // Work that the stream already had stays outside the capture.
            stream->capture = capture;
            capture->branches.push_back({stream, capture->nodes.size(), 0, false});
        }
        // Whoever waits for a branch takes over everything up to the record.
        for (auto& branch : capture->branches) {
            if (branch.stream != event->capture_stream || branch.stream == stream) continue;
            branch.merged = true;
            if (branch.joined < event->capture_position) branch.joined = event->capture_position;
        }
        return SUCCESS;
    }
    if (stream->capture) {
        // The event was recorded outside: the graph would depend on work it does not contain.
        stream->capture->invalid = true;
        return CAPTURE_ISOLATION;
    }
    if (event->completed >= event->recorded) return SUCCESS;
    Op op;
    op.what = "wait for an event";
    uint64_t serial = event->recorded;
    op.ready = [event, serial] { return event->completed >= serial; };
    return enqueue(stream, op);
}

// Host functions run in stream order; they must not call the driver.
API int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    Guard guard;
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    if (function == nullptr) return INVALID_VALUE;
    Op op;
    op.what = "host function";
    op.run = [function, data](std::string&) {
        inside_callback = true;
        function(data);
        inside_callback = false;
        return int(SUCCESS);
    };
    return enqueue(stream, op);
}
