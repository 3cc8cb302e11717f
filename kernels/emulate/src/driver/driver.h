// A pretend CUDA driver over the SIMT runtime. One lock for everything; work runs in the thread that waits for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../sim/memory.h"
#include "../sim/sim.h"

#define API extern "C" __attribute__((visibility("default")))

namespace drv {

// CUresult, by the driver's numbers.
enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    CONTEXT_IS_DESTROYED = 709,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    UNKNOWN = 999,
};

struct Stream;
struct Capture;

struct Context {
    int device = 0;
    int retained = 0;
    // The error after which nothing works any more, and what happened.
    int sticky = SUCCESS;
    std::string message;
    Stream* legacy = nullptr;
    std::set<Stream*> streams;
    // Device bytes held by instantiated graphs.
    size_t graph_bytes = 0;
};

struct Event {
    Context* context = nullptr;
    bool timing = true;
    uint64_t recorded = 0, completed = 0;
    uint64_t time_ns = 0;
    // Set while the last record lies inside a capture.
    std::shared_ptr<Capture> capture;
    size_t capture_position = 0;
    Stream* capture_stream = nullptr;
};

struct Function {
    const emu::Kernel* kernel = nullptr;
    int dynamic_limit = 0;
    size_t static_bytes = 0;
};

struct Collective;

// One queued operation. `run` gets everything it needs by value.
struct Op {
    std::string what;
    // May it run now? Empty: always.
    std::function<bool()> ready;
    // SUCCESS, or the sticky error; the message goes into `why`.
    std::function<int(std::string& why)> run;
    // What nccl.cpp needs to find the other ranks' halves.
    std::shared_ptr<Collective> collective;
};

struct Stream {
    Context* context = nullptr;
    unsigned id = 0;
    bool blocking = true;
    int priority = 0;
    std::deque<Op> queue;
    uint64_t pushed = 0, finished = 0;
    std::shared_ptr<Capture> capture;
    bool destroyed = false;
};

struct Capture {
    Stream* origin = nullptr;
    int mode = 0;
    std::thread::id thread;
    bool invalid = false;
    std::vector<Op> nodes;
    // Streams that were pulled in by an event wait: position after their last node, and how far others waited for it.
    struct Branch {
        Stream* stream;
        size_t last, joined;
        bool merged;
    };
    std::vector<Branch> branches;
};

struct Graph {
    std::vector<Op> nodes;
};

struct GraphExec {
    Context* context;
    std::vector<Op> nodes;
    bool charged = false;
    size_t bytes = 0;
};

struct Settings {
    int devices = 1;
    size_t memory = size_t(512) << 20;
    uint64_t seed = 0;
    int capability = 80;
    // By device, where they differ from the two above; 0: they do not.
    size_t memory_of[emu::MAX_DEVICES] = {};
    int capability_of[emu::MAX_DEVICES] = {};
    // Multiprocessors, which grids are planned for; 0: as many as the real card has.
    int processors = 0;
    int driver_version = 13000;
    int nccl_version = 22809;
    // Joining a communicator never comes back.
    bool nccl_hangs = false;
    // How long a thread waits for work that only another thread can provide.
    uint64_t timeout_ms = 60000;
};

extern Settings settings;

inline size_t memory_of(int device) {
    return settings.memory_of[device] != 0 ? settings.memory_of[device] : settings.memory;
}
inline int capability_of(int device) {
    return settings.capability_of[device] != 0 ? settings.capability_of[device] : settings.capability;
}

extern std::mutex lock;
// Signalled when a queue moves, for threads that wait for another thread's half of a collective.
extern std::condition_variable moved;
extern thread_local Context* current_context;
extern thread_local bool inside_callback;

// Threads that want the lock.
extern std::atomic<int> waiting_threads;

struct Guard {
    std::unique_lock<std::mutex> held;
    Guard() : held(lock, std::defer_lock) {
        // A host function runs while its thread holds the lock.
        if (inside_callback) return;
        waiting_threads++;
        held.lock();
        waiting_threads--;
    }
};

// State of the whole library, behind the lock.
struct World {
    bool initialized = false;
    Context contexts[emu::MAX_DEVICES];
    std::set<Stream*> streams;
    // Queued operations share an event, so that destroying it early is harmless.
    std::map<Event*, std::shared_ptr<Event>> events;
    std::set<Graph*> graphs;
    std::set<GraphExec*> execs;
    std::vector<std::unique_ptr<std::vector<std::unique_ptr<Function>>>> modules;
    std::vector<std::shared_ptr<Capture>> captures;
    unsigned next_stream = 1;
    uint64_t random = 0;
    uint64_t operations = 0, launches = 0;
    // Injected fault: after this many more operations on the device, that error.
    int fault_device = -1, fault_code = 0;
    uint64_t fault_after = 0;
    std::string last_message;
};
extern World world;

uint64_t draw();
void reset();

// SUCCESS when the calling thread has a healthy context.
int context_error();
// Also refuses while a capture forbids calls that may synchronize or allocate; breaks that capture.
int unsafe_call_error();
// Finds the stream of a handle in the current context (0, 1 and 2 name the default stream).
int find_stream(void* handle, Stream** out);
// Whether the stream is being captured, by a call that no capture may hold: the capture is then invalid.
bool break_capture(Stream* stream);
int find_event(void* handle, std::shared_ptr<Event>* out);
void make_sticky(Context* context, int code, const std::string& message);

// Counts an operation of the device towards the injected fault; true when it is to fail with world.fault_code.
bool fault_strikes(const Context* context);

// Queues (or captures) an operation.
int enqueue(Stream* stream, Op op);
// Runs one operation of some stream; false when none can run. `wanted` is the stream somebody waits for.
bool step(Stream* wanted);
// Runs until done() holds. Other threads may move the queues meanwhile.
int run_until(Guard& guard, Context* context, Stream* wanted, const std::function<bool()>& done);
// What a query does: some operations, seeded.
void advance(Stream* wanted);
bool drained(const Stream* stream);
// Frees a stream that was destroyed while it had work, once that is done.
void collect(Stream* stream);
void forget_capture(const std::shared_ptr<Capture>& capture);
size_t device_used(const Context& context);

}  // namespace drv
