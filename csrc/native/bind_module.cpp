#include "bindings.hpp"
#include "raise_python.hpp"

PYBIND11_MODULE(_native, module) {
    module.doc() = "The native core: pinned arena, copy streams, events, batches of copies.";
    pinferry::register_error_translator();
    pinferry::bind_driver(module);
    pinferry::bind_device(module);
    pinferry::bind_arena(module);
    pinferry::bind_transfer(module);
    pinferry::bind_free_list(module);
    pinferry::bind_measure(module);
}
