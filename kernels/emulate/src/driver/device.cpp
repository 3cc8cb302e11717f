// Devices, contexts, errors and the settings that tests make.
#include <cstdio>
#include <cstdlib>

#include "../sim/sites.h"
#include "driver.h"

namespace drv {

Settings settings;
std::mutex lock;
std::condition_variable moved;
std::atomic<int> waiting_threads{0};
thread_local Context* current_context = nullptr;
thread_local bool inside_callback = false;
World world;

uint64_t draw() {
    world.random += 0x9e3779b97f4a7c15ull;
    uint64_t z = world.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t number_from(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != 0 ? std::strtoull(text, nullptr, 0) : otherwise;
}

static Settings from_environment() {
    Settings settings;
    settings.devices = int(number_from("TOKENROUTER_EMU_DEVICES", uint64_t(settings.devices)));
    settings.memory = number_from("TOKENROUTER_EMU_MEMORY", settings.memory);
    settings.seed = number_from("TOKENROUTER_EMU_SEED", settings.seed);
    settings.capability = int(number_from("TOKENROUTER_EMU_CAPABILITY", uint64_t(settings.capability)));
    settings.driver_version = int(number_from("TOKENROUTER_EMU_DRIVER", uint64_t(settings.driver_version)));
    settings.processors = int(number_from("TOKENROUTER_EMU_PROCESSORS", 0));
    settings.nccl_version = int(number_from("TOKENROUTER_EMU_NCCL", uint64_t(settings.nccl_version)));
    if (settings.devices > emu::MAX_DEVICES) settings.devices = emu::MAX_DEVICES;
    if (settings.devices < 0) settings.devices = 0;
    settings.nccl_hangs = number_from("TOKENROUTER_EMU_NCCL_HANGS", 0) != 0;
    return settings;
}

// The machine as the environment describes it.
static const Settings& machine() {
    static const Settings read = from_environment();
    return read;
}

// Once: what emu_configure() sets later stays.
static void read_settings() {
    static bool done = false;
    if (!done) settings = machine();
    done = true;
}

static void apply_seed() {
    emu::set_seed(settings.seed);
    world.random = settings.seed * 0x2545f4914f6cdd1dull;
}

static void destroy_context(Context& context) {
    for (auto& capture : world.captures) {
        if (capture->origin != nullptr && capture->origin->context == &context) capture->invalid = true;
    }
    for (Stream* s : context.streams) {
        world.streams.erase(s);
        delete s;
    }
    for (auto it = world.events.begin(); it != world.events.end();) {
        it = it->second->context == &context ? world.events.erase(it) : std::next(it);
    }
    emu::device_arena(context.device).clear();
    for (int d = 0; d < emu::MAX_DEVICES; d++) emu::allow_peer(context.device, d, false);
    int device = context.device;
    context = Context();
    context.device = device;
}

void reset() {
    for (int d = 0; d < emu::MAX_DEVICES; d++) {
        world.contexts[d].device = d;
        destroy_context(world.contexts[d]);
    }
    for (Graph* g : world.graphs) delete g;
    for (GraphExec* e : world.execs) delete e;
    emu::pinned_arena().clear();
    unsigned next = world.next_stream;
    bool initialized = world.initialized;
    world.graphs.clear();
    world.execs.clear();
    world.captures.clear();
    world.modules.clear();
    world.operations = world.launches = 0;
    world.fault_device = -1;
    world.last_message.clear();
    world.next_stream = next;
    world.initialized = initialized;
    apply_seed();
}

int context_error() {
    if (inside_callback) return NOT_PERMITTED;
    if (!world.initialized) return NOT_INITIALIZED;
    if (current_context == nullptr) return INVALID_CONTEXT;
    if (current_context->retained == 0) return CONTEXT_IS_DESTROYED;
    return current_context->sticky;
}

int unsafe_call_error() {
    int error = context_error();
    if (error) return error;
    for (auto& capture : world.captures) {
        bool mine = capture->thread == std::this_thread::get_id();
        // Global: no thread may; thread-local: the capturing one may not; relaxed: everybody may.
        if (capture->mode == 0 || (capture->mode == 1 && mine)) {
            capture->invalid = true;
            return CAPTURE_UNSUPPORTED;
        }
    }
    return SUCCESS;
}

static const char* name_of(int code) {
    switch (code) {
        case SUCCESS: return "CUDA_SUCCESS";
        case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
        case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
        case NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
        case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
        case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
        case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
        case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
        case INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
        case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
        case NOT_READY: return "CUDA_ERROR_NOT_READY";
        case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
        case LAUNCH_OUT_OF_RESOURCES: return "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
        case LAUNCH_TIMEOUT: return "CUDA_ERROR_LAUNCH_TIMEOUT";
        case PEER_ACCESS_ALREADY_ENABLED: return "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
        case PEER_ACCESS_NOT_ENABLED: return "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED";
        case CONTEXT_IS_DESTROYED: return "CUDA_ERROR_CONTEXT_IS_DESTROYED";
        case LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
        case NOT_PERMITTED: return "CUDA_ERROR_NOT_PERMITTED";
        case NOT_SUPPORTED: return "CUDA_ERROR_NOT_SUPPORTED";
        case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
        case CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
        case CAPTURE_UNMATCHED: return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
        case CAPTURE_UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
        case CAPTURE_ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
        case CAPTURE_IMPLICIT: return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
        case CAPTURED_EVENT: return "CUDA_ERROR_CAPTURED_EVENT";
        case CAPTURE_WRONG_THREAD: return "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
        default: return "CUDA_ERROR_UNKNOWN";
    }
}

// Strings handed out stay valid for the life of the process.
static const char* keep(const std::string& text) {
    static std::set<std::string> kept;
    return kept.insert(text).first->c_str();
}

static int find_device(int ordinal) {
    if (!world.initialized) return NOT_INITIALIZED;
    return ordinal >= 0 && ordinal < settings.devices ? SUCCESS : INVALID_DEVICE;
}

// What an A100 (8.0) or an H100-class card (9.0) answers, for the attributes that programs ask.
static int attribute(int which, int device) {
    bool hopper = capability_of(device) >= 90;
    switch (which) {
        case 1: return 1024;              // threads per block
        case 2: case 3: return 1024;      // block x, y
        case 4: return 64;                // block z
        case 5: return 0x7fffffff;        // grid x
        case 6: case 7: return 65535;     // grid y, z
        case 8: return 48 << 10;          // shared memory per block
        case 10: return 32;               // warp size
        case 12: return 65536;            // registers per block
        case 13: return 1410000;          // clock, kHz
        case 16: return settings.processors > 0 ? settings.processors : hopper ? 132 : 108;
        case 31: case 41: return 1;       // concurrent kernels, unified addressing
        case 36: return 1593000;          // memory clock, kHz
        case 37: return 5120;             // bus width
        case 38: return hopper ? 50 << 20 : 40 << 20;
        case 39: return 2048;             // threads per multiprocessor
        case 75: return capability_of(device) / 10;
        case 76: return capability_of(device) % 10;
        case 81: return hopper ? 228 << 10 : 164 << 10;
        case 82: return 65536;            // registers per multiprocessor
        case 97: return hopper ? 227 << 10 : 163 << 10;
        case 106: return 32;              // blocks per multiprocessor
        case 111: return 1 << 10;         // reserved shared memory
        case 115: return 1;               // memory pools
        default: return 0;
    }
}

}  // namespace drv

using namespace drv;

API int cuInit(unsigned) {
    Guard guard;
    if (!world.initialized) {
        read_settings();
        for (int d = 0; d < emu::MAX_DEVICES; d++) world.contexts[d].device = d;
        apply_seed();
    }
    if (settings.devices == 0) return NO_DEVICE;
    world.initialized = true;
    return SUCCESS;
}

API int cuDriverGetVersion(int* version) {
    Guard guard;
    if (!world.initialized) read_settings();
    *version = settings.driver_version;
    return SUCCESS;
}

API int cuDeviceGet(int* device, int ordinal) {
    Guard guard;
    int error = find_device(ordinal);
    if (!error) *device = ordinal;
    return error;
}

API int cuDeviceGetCount(int* count) {
    Guard guard;
    if (!world.initialized) return NOT_INITIALIZED;
    *count = settings.devices;
    return SUCCESS;
}

API int cuDeviceGetName(char* name, int bytes, int device) {
    Guard guard;
    int error = find_device(device);
    if (!error) std::snprintf(name, size_t(bytes), "TokenRouter CUDA emulation (no GPU), sm_%d", capability_of(device));
    return error;
}

API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    Guard guard;
    int error = find_device(device);
    if (error) return error;
    std::memcpy(uuid, "emulated device", 15);
    uuid[15] = static_cast<unsigned char>(device);
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    Guard guard;
    int error = find_device(device);
    if (!error) *bytes = memory_of(device);
    return error;
}

API int cuDeviceGetAttribute(int* value, int which, int device) {
    Guard guard;
    int error = find_device(device);
    if (!error) *value = attribute(which, device);
    return error;
}

API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    Guard guard;
    int error = find_device(device);
    if (!error) error = find_device(peer);
    if (!error) *can = device != peer;
    return error;
}

API int cuDevicePrimaryCtxRetain(void** context, int device) {
    Guard guard;
    int error = find_device(device);
    if (error) return error;
    Context& c = world.contexts[device];
    if (c.retained++ == 0) {
        c.legacy = new Stream;
        c.legacy->context = &c;
        c.legacy->id = world.next_stream++;
        world.streams.insert(c.legacy);
        c.streams.insert(c.legacy);
    }
    *context = &c;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
    Guard guard;
    int error = find_device(device);
    if (error) return error;
    Context& c = world.contexts[device];
    if (c.retained == 0) return INVALID_CONTEXT;
    if (--c.retained == 0) destroy_context(c);
    return SUCCESS;
}

API int cuCtxGetCurrent(void** context) {
    Guard guard;
    if (!world.initialized) return NOT_INITIALIZED;
    *context = current_context;
    return SUCCESS;
}

API int cuCtxSetCurrent(void* context) {
    Guard guard;
    if (!world.initialized) return NOT_INITIALIZED;
    auto* c = static_cast<Context*>(context);
    if (c != nullptr && (c < world.contexts || c >= world.contexts + emu::MAX_DEVICES)) return INVALID_CONTEXT;
    current_context = c;
    return SUCCESS;
}

API int cuCtxGetDevice(int* device) {
    Guard guard;
    if (current_context == nullptr) return INVALID_CONTEXT;
    *device = current_context->device;
    return SUCCESS;
}

API int cuCtxSynchronize() {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    Context* context = current_context;
    for (Stream* s : context->streams) {
        if (break_capture(s)) return CAPTURE_UNSUPPORTED;
    }
    return run_until(guard, context, nullptr, [context] {
        for (Stream* s : context->streams) {
            if (!drained(s)) return false;
        }
        return true;
    });
}

API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return SUCCESS;
}

API int cuCtxSetFlags(unsigned) {
    Guard guard;
    return context_error();
}

API int cuCtxEnablePeerAccess(void* peer, unsigned) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    int other = static_cast<Context*>(peer)->device;
    if (other == current_context->device) return INVALID_DEVICE;
    if (emu::may_touch(current_context->device, other)) return PEER_ACCESS_ALREADY_ENABLED;
    emu::allow_peer(current_context->device, other, true);
    return SUCCESS;
}

API int cuGetErrorName(int code, const char** name) {
    *name = name_of(code);
    return SUCCESS;
}

API int cuGetErrorString(int code, const char** text) {
    Guard guard;
    std::string what = name_of(code);
    Context* c = current_context;
    if (c != nullptr && c->sticky == code && code != SUCCESS) {
        what += ": " + c->message;
    } else if (code == LAUNCH_FAILED && !world.last_message.empty()) {
        what += ": " + world.last_message;
    }
    *text = keep(what);
    return SUCCESS;
}

// Ends every context and frees all memory, then starts anew with these settings.
API void emu_configure(int devices, size_t memory, uint64_t seed, int capability) {
    Guard guard;
    if (!world.initialized) read_settings();
    settings.devices = devices < 0 ? 0 : devices > emu::MAX_DEVICES ? emu::MAX_DEVICES : devices;
    settings.memory = memory;
    settings.seed = seed;
    settings.capability = capability;
    for (int d = 0; d < emu::MAX_DEVICES; d++) settings.memory_of[d] = settings.capability_of[d] = 0;
    settings.driver_version = machine().driver_version;
    settings.processors = machine().processors;
    settings.nccl_version = machine().nccl_version;
    settings.timeout_ms = Settings().timeout_ms;
    settings.nccl_hangs = false;
    moved.notify_all();
    reset();
    // cuInit() reads the environment only in a fresh library.
    world.initialized = settings.devices > 0;
}

// One device that differs from the others, until the next emu_configure(); 0: it does not.
API void emu_set_device(int device, size_t memory, int capability) {
    Guard guard;
    if (device < 0 || device >= emu::MAX_DEVICES) return;
    settings.memory_of[device] = memory;
    settings.capability_of[device] = capability;
}

// Other versions of the driver and of NCCL, until the next emu_configure(); 0: as before.
API void emu_set_versions(int driver, int nccl) {
    Guard guard;
    if (driver != 0) settings.driver_version = driver;
    if (nccl != 0) settings.nccl_version = nccl;
}

// How many multiprocessors devices have, until the next emu_configure(); 0: as many as the real card.
API void emu_set_processors(int count) {
    Guard guard;
    settings.processors = count;
}

// Whether joining a communicator hangs inside the library.
API void emu_hang_nccl(int hangs) {
    Guard guard;
    settings.nccl_hangs = hangs != 0;
    moved.notify_all();
}

// After `operations` more operations on the device its context fails with this error.
API void emu_inject(int device, uint64_t operations, int code) {
    Guard guard;
    world.fault_device = device;
    world.fault_after = operations;
    world.fault_code = code;
}

// How long a thread waits for another one's half of a collective before its context fails.
API void emu_set_timeout(uint64_t milliseconds) {
    Guard guard;
    settings.timeout_ms = milliseconds;
}

// What went wrong in the last failed operation; empty when nothing did.
API const char* emu_message() {
    Guard guard;
    return keep(world.last_message);
}

// Operations run (0) and kernels run (1) since the last reset.
API uint64_t emu_count(int which) {
    Guard guard;
    return which == 0 ? world.operations : world.launches;
}

// Starts to remember the lines of barriers, syncs, waits and fences that run.
API void emu_watch_sites() {
    Guard guard;
    emu::watch_sites();
}

// "file.cu:12 barrier" of the i-th line remembered, empty past the end.
API const char* emu_site(unsigned i) {
    Guard guard;
    return keep(emu::site_number(i));
}

// From now on the operation at "file.cu:12" is left out; empty: none is.
API void emu_remove_site(const char* site) {
    Guard guard;
    emu::remove_site(site);
}
