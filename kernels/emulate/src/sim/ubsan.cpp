// The handlers of -fsanitize=undefined, written here so that a report is a launch error with kernel, block and thread,
// and no sanitizer runtime is needed. The kernel goes on to its next wait, as with any recoverable report.
#include "sim.h"

#ifdef EMU_ASAN

namespace {

struct Place {
    const char* file;
    uint32_t line, column;
};

struct Type {
    uint16_t kind, info;
    char name[1];
};

struct TypeMismatch {
    Place place;
    const Type* type;
    unsigned char log_alignment, check;
};

void report(const Place& place, const char* what) {
    if (!emu::in_kernel()) return;
    emu::fail_later("%s at %s", what, emu::show({place.file, int(place.line)}).c_str());
}

}  // namespace

#define HANDLER(name, ...) extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_##name(__VA_ARGS__)
#define SIMPLE(name, what, ...) \
    HANDLER(name, Place* place, ##__VA_ARGS__) { report(*place, what); }

HANDLER(type_mismatch_v1, TypeMismatch* data, uintptr_t pointer) {
    uintptr_t alignment = uintptr_t(1) << data->log_alignment;
    if (pointer == 0) {
        report(data->place, "null pointer access");
    } else if (pointer % alignment != 0) {
        report(data->place, "misaligned access");
    } else {
        report(data->place, "access to an object that is too small for its type");
    }
}
SIMPLE(add_overflow, "signed addition overflows", uintptr_t, uintptr_t)
SIMPLE(sub_overflow, "signed subtraction overflows", uintptr_t, uintptr_t)
SIMPLE(mul_overflow, "signed multiplication overflows", uintptr_t, uintptr_t)
SIMPLE(negate_overflow, "signed negation overflows", uintptr_t)
SIMPLE(divrem_overflow, "division by zero or overflow", uintptr_t, uintptr_t)
SIMPLE(shift_out_of_bounds, "shift by more bits than the type has, or of a negative value", uintptr_t, uintptr_t)
SIMPLE(out_of_bounds, "index outside an array", uintptr_t)
SIMPLE(pointer_overflow, "pointer arithmetic overflows", uintptr_t, uintptr_t)
SIMPLE(load_invalid_value, "a value that the type does not have", uintptr_t)
SIMPLE(vla_bound_not_positive, "array bound is not positive", uintptr_t)
SIMPLE(nonnull_arg, "null passed where it must not be")
SIMPLE(invalid_builtin, "zero passed to a bit count that is undefined for it")
SIMPLE(builtin_unreachable, "unreachable code was reached")
SIMPLE(missing_return, "a function ended without returning its value")

#endif
