#include <pybind11/stl.h>

#include "bindings.hpp"
#include "driver.hpp"
#include "error.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

// The answer of one query of the driver, or nothing where there is no driver.
std::optional<int> ask(const char* call, cuda::Result (*cuda::Driver::*query)(int*)) {
    if (cuda::Driver::status() != "ok") return std::nullopt;
    const cuda::Driver& driver = cuda::Driver::get();
    int answer = 0;
    cuda::check(driver, call, (driver.*query)(&answer));
    return answer;
}

}  // namespace

void bind_driver(py::module_& module) {
    module.def("driver_status", &cuda::Driver::status,
               "\"ok\", or why the CUDA driver cannot be used.");
    module.def(
        "driver_version", [] { return ask("cuDriverGetVersion", &cuda::Driver::driver_version); },
        "CUDA version of the driver as 1000 * major + 10 * minor, or None without a driver.");
    module.def(
        "device_count",
        [] { return ask("cuDeviceGetCount", &cuda::Driver::device_count).value_or(0); },
        "Number of GPUs this process may use; 0 without a driver.");
    module.def("_use_driver_library", &cuda::Driver::use_library, py::arg("path"),
               "Load the driver from `path` from now on (tests); \"\" goes back to libcuda.so.1.");
}

}  // namespace pinferry
