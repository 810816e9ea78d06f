#include "bindings.hpp"
#include "blocking.hpp"
#include "raise_python.hpp"

namespace {

void* release_gil() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
void take_gil(void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "The native core: pinned arena, copy streams, events, batches of copies.";
    pinferry::register_error_translator();
    pinferry::blocking_hooks() = {&release_gil, &take_gil};
    pinferry::bind_driver(module);
    pinferry::bind_device(module);
    pinferry::bind_arena(module);
    pinferry::bind_transfer(module);
    pinferry::bind_free_list(module);
    pinferry::bind_measure(module);
}
