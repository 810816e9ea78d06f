#include "driver.hpp"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <vector>

#include "error.hpp"

namespace pinferry::cuda {
namespace {

using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);
using GetProcAddressLegacy = Result (*)(const char*, void**, int, std::uint64_t);

// Tables and libraries are never unloaded: a stream or event may outlive the last reference to its
// device, and the driver must not be unmapped while its own threads run.
struct Loader {
    std::mutex mutex;
    std::string path = "libcuda.so.1";
    const Driver* table = nullptr;
    std::vector<std::unique_ptr<const Driver>> tables;  // all that were ever in use
    std::string failure;
};

Loader& loader() {
    static auto* instance = new Loader;
    return *instance;
}

void* find_symbol(void* library, const char* symbol, int version = api_version) {
    void* found = nullptr;
    if (auto* get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"))) {
        int status = 0;
        if (get(symbol, &found, version, proc_address_default, &status) == success && found)
            return found;
    } else if (auto* legacy =
                   reinterpret_cast<GetProcAddressLegacy>(dlsym(library, "cuGetProcAddress"))) {
        if (legacy(symbol, &found, version, proc_address_default) == success && found) return found;
    }
    return nullptr;
}

std::unique_ptr<const Driver> load(const std::string& path, std::string& failure) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char* reason = dlerror();
        failure = "the NVIDIA driver library " + path + " cannot be loaded (" +
                  (reason ? reason : "unknown reason") +
                  "); install the driver, or use device='cpu'";
        return nullptr;
    }
    auto table = std::make_unique<Driver>();
#define PINFERRY_RESOLVE(field, symbol, parameters)                                           \
    table->field = reinterpret_cast<Result(*) parameters>(find_symbol(library, #symbol));     \
    if (!table->field) {                                                                      \
        failure =                                                                             \
            path + " has no entry point " #symbol " for CUDA 12.0; update the NVIDIA driver"; \
        return nullptr;                                                                       \
    }
    PINFERRY_DRIVER_CALLS(PINFERRY_RESOLVE)
#undef PINFERRY_RESOLVE
#define PINFERRY_RESOLVE_OPTIONAL(field, symbol, version, parameters) \
    table->field = reinterpret_cast<Result(*) parameters>(find_symbol(library, #symbol, version));
    PINFERRY_OPTIONAL_DRIVER_CALLS(PINFERRY_RESOLVE_OPTIONAL)
#undef PINFERRY_RESOLVE_OPTIONAL
    if (const Result result = table->init(0); result != success) {
        failure =
            describe_failure(*table, "cuInit", result) + "; check nvidia-smi, or use device='cpu'";
        return nullptr;
    }
    return table;
}

}  // namespace

const Driver& Driver::get() {
    Loader& state = loader();
    const std::lock_guard lock(state.mutex);
    if (!state.table) {
        state.failure.clear();
        if (auto table = load(state.path, state.failure)) {
            state.table = table.get();
            state.tables.push_back(std::move(table));
        }
    }
    if (!state.table) throw Error("DriverUnavailable", state.failure);
    return *state.table;
}

std::string Driver::status() {
    try {
        get();
        return "ok";
    } catch (const Error& error) {
        return error.what();
    }
}

void Driver::use_library(const std::string& path) {
    Loader& state = loader();
    const std::lock_guard lock(state.mutex);
    state.path = path.empty() ? "libcuda.so.1" : path;
    state.table = nullptr;
}

std::string describe_failure(const Driver& driver, const char* call, Result result) {
    const char* name = nullptr;
    const char* text = nullptr;
    driver.error_name(result, &name);
    driver.error_string(result, &text);
    return std::string(call) + " failed: " + (name ? name : "unknown error") + " (" +
           std::to_string(result) + ")" + (text ? std::string(": ") + text : "");
}

void check(const Driver& driver, const char* call, Result result) {
    if (result == success) return;
    const char* kind = result == error_out_of_memory ? "DeviceOutOfMemory" : "DriverCallFailed";
    throw Error(kind, describe_failure(driver, call, result), {{"code", result}});
}

}  // namespace pinferry::cuda
