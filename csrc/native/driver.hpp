#pragma once

#include <optional>
#include <string>

#include "driver_abi.hpp"

namespace pinferry::cuda {

// The driver's entry points, resolved once from libcuda.so.1. Nothing links against CUDA, so the
// module imports where there is no driver.
struct Driver {
#define PINFERRY_FIELD(field, symbol, parameters) Result(*field) parameters = nullptr;
    PINFERRY_DRIVER_CALLS(PINFERRY_FIELD)
#undef PINFERRY_FIELD
    // Null where the driver is older.
#define PINFERRY_OPTIONAL_FIELD(field, symbol, version, parameters) \
    Result(*field) parameters = nullptr;
    PINFERRY_OPTIONAL_DRIVER_CALLS(PINFERRY_OPTIONAL_FIELD)
#undef PINFERRY_OPTIONAL_FIELD

    // The loaded driver, initialised. Throws Error("DriverUnavailable") saying why there is none.
    static const Driver& get();

    // "ok", or why get() throws. Never throws.
    static std::string status();

    // Reads the library at `path` in place of libcuda.so.1 from now on, or goes back to it when
    // empty. For tests: objects made before keep the table they were made with.
    static void use_library(const std::string& path);
};

// "cuMemHostRegister failed: CUDA_ERROR_NOT_SUPPORTED (801): operation not supported"
std::string describe_failure(const Driver& driver, const char* call, Result result);

// Throws for any result but success: Error("DeviceOutOfMemory") or Error("DriverCallFailed").
void check(const Driver& driver, const char* call, Result result);

}  // namespace pinferry::cuda
