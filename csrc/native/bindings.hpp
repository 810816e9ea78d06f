#pragma once

#include <pybind11/pybind11.h>

namespace pinferry {

void bind_driver(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_block(pybind11::module_& module);
void bind_arena(pybind11::module_& module);
void bind_free_list(pybind11::module_& module);
void bind_measure(pybind11::module_& module);
void bind_transfer(pybind11::module_& module);

}  // namespace pinferry
