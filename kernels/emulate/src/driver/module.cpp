// Modules and launches. A module's bytes are only looked at for their kind: the kernels come from the table that
// KERNEL() filled when the library was compiled.
#include "driver.h"

namespace drv {

static Function* find_function(void* handle) {
    for (auto& module : world.modules) {
        for (auto& f : *module) {
            if (f.get() == handle) return f.get();
        }
    }
    return nullptr;
}

static size_t opt_in_limit() {
    int device = current_context != nullptr ? current_context->device : 0;
    return size_t(capability_of(device) >= 90 ? 227 : 163) << 10;
}

// The parameters as cuLaunchKernel found them, copied by the kernel table's sizes. Slots of 16 bytes, because a
// parameter may be a struct of vectors.
struct alignas(16) Slot {
    char bytes[16];
};
struct Parameters {
    std::vector<std::vector<Slot>> values;
    std::vector<void*> pointers;
};

static std::shared_ptr<Parameters> copy_parameters(const emu::Kernel& kernel, void** from) {
    auto p = std::make_shared<Parameters>();
    for (unsigned i = 0; i < kernel.params; i++) {
        p->values.emplace_back(kernel.sizes[i] / sizeof(Slot) + 1);
        std::memcpy(p->values.back().data(), from[i], kernel.sizes[i]);
    }
    for (auto& value : p->values) p->pointers.push_back(value.data());
    return p;
}

static int launch(Function* f, emu::Dim grid, emu::Dim block, unsigned shared, void* handle, void** params) {
    Stream* stream;
    int error = find_stream(handle, &stream);
    if (error) return error;
    const emu::Kernel& kernel = *f->kernel;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0) return INVALID_VALUE;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return INVALID_VALUE;
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || block.x * block.y * block.z > 1024) return INVALID_VALUE;
    if (kernel.params > 0 && params == nullptr) return INVALID_VALUE;
    for (unsigned i = 0; i < kernel.params; i++) {
        if (params[i] == nullptr) return INVALID_VALUE;
    }
    size_t most = f->dynamic_limit > (48 << 10) ? size_t(f->dynamic_limit) : (48u << 10) - f->static_bytes;
    if (shared > most) return INVALID_VALUE;
    auto copied = copy_parameters(kernel, params);
    int device = stream->context->device;
    size_t total = f->dynamic_limit > (48 << 10) ? opt_in_limit() : size_t(48) << 10;
    Op op;
    op.what = kernel.name;
    op.run = [=](std::string& why) {
        world.launches++;
        emu::Launch l{f->kernel, grid, block, shared, copied->pointers.data(), device, total};
        why = emu::run_launch(l);
        f->static_bytes = emu::shared_static_bytes();
        return int(why.empty() ? SUCCESS : LAUNCH_FAILED);
    };
    return enqueue(stream, std::move(op));
}

}  // namespace drv

using namespace drv;

API int cuModuleLoadData(void** out, const void* image) {
    Guard guard;
    int error = unsafe_call_error();
    if (error) return error;
    if (image == nullptr) return INVALID_VALUE;
    unsigned magic;
    std::memcpy(&magic, image, 4);
    // A fat binary or an ELF cubin; PTX text would have to be compiled.
    if (magic != 0xba55ed50u && magic != 0x464c457fu) return INVALID_IMAGE;
    world.modules.push_back(std::make_unique<std::vector<std::unique_ptr<Function>>>());
    *out = world.modules.back().get();
    return SUCCESS;
}

API int cuModuleLoadDataEx(void** out, const void* image, unsigned, void*, void*) { return cuModuleLoadData(out, image); }

API int cuModuleUnload(void* handle) {
    Guard guard;
    for (auto& module : world.modules) {
        // Queued launches still name its functions, so they live until the library is reset.
        if (module.get() == handle) return SUCCESS;
    }
    return INVALID_HANDLE;
}

API int cuModuleGetFunction(void** out, void* handle, const char* name) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    for (auto& module : world.modules) {
        if (module.get() != handle) continue;
        const emu::Kernel* kernel = emu::find_kernel(name);
        if (kernel == nullptr) return NOT_FOUND;
        module->push_back(std::make_unique<Function>());
        module->back()->kernel = kernel;
        *out = module->back().get();
        return SUCCESS;
    }
    return INVALID_HANDLE;
}

API int cuFuncSetAttribute(void* handle, int which, int value) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    Function* f = find_function(handle);
    if (f == nullptr) return INVALID_HANDLE;
    if (which != 8) return SUCCESS;
    if (value < 0 || size_t(value) + f->static_bytes > opt_in_limit()) return INVALID_VALUE;
    f->dynamic_limit = value;
    return SUCCESS;
}

API int cuFuncGetAttribute(int* value, int which, void* handle) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    Function* f = find_function(handle);
    if (f == nullptr) return INVALID_HANDLE;
    switch (which) {
        case 0: *value = 1024; break;
        case 1: *value = int(f->static_bytes); break;
        case 4: *value = 32; break;
        case 8: *value = f->dynamic_limit > 0 ? f->dynamic_limit : int((48u << 10) - f->static_bytes); break;
        default: *value = 0;
    }
    return SUCCESS;
}

API int cuFuncSetCacheConfig(void*, int) { return SUCCESS; }

// Offset and size of one parameter in the launch buffer, by C layout rules; INVALID_VALUE past the last.
API int cuFuncGetParamInfo(void* handle, size_t index, size_t* offset, size_t* size) {
    Guard guard;
    int error = context_error();
    if (error) return error;
    Function* f = find_function(handle);
    if (f == nullptr) return INVALID_HANDLE;
    if (index >= f->kernel->params) return INVALID_VALUE;
    size_t at = 0;
    for (size_t i = 0;; i++) {
        size_t align = f->kernel->aligns[i];
        at = (at + align - 1) / align * align;
        if (i == index) break;
        at += f->kernel->sizes[i];
    }
    *offset = at;
    if (size != nullptr) *size = f->kernel->sizes[index];
    return SUCCESS;
}

API int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void* stream, void** params, void** extra) {
    Guard guard;
    Function* f = find_function(handle);
    if (f == nullptr) return context_error() ? context_error() : INVALID_HANDLE;
    // Parameters as one packed buffer are not served.
    if (extra != nullptr) return NOT_SUPPORTED;
    return launch(f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params);
}

API int cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                  void**) {
    return NOT_SUPPORTED;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t shared) {
    Guard guard;
    Function* f = find_function(handle);
    if (f == nullptr) return INVALID_HANDLE;
    if (threads <= 0 || threads > 1024) return INVALID_VALUE;
    size_t by_threads = 2048 / ((size_t(threads) + 31) / 32 * 32);
    size_t by_shared = opt_in_limit() / (shared + f->static_bytes + 1024);
    *blocks = int(by_threads < by_shared ? by_threads : by_shared);
    if (*blocks > 32) *blocks = 32;
    return SUCCESS;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* handle, int threads, size_t shared,
                                                             unsigned) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, shared);
}

// The kernel table, for tests that compare it with their own: name of kernel i, or null past the end.
API const char* emu_kernel_name(unsigned i) {
    const emu::Kernel* k = emu::first_kernel();
    while (k != nullptr && i-- > 0) k = k->next;
    return k != nullptr ? k->name : nullptr;
}
