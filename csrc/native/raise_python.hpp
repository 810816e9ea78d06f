#pragma once

#include <pybind11/pybind11.h>

#include "error.hpp"

namespace pinferry {

// Sets the class of pinferry.errors that `error` names as the current Python exception.
inline void raise_in_python(const Error& error) {
    namespace py = pybind11;
    py::dict fields;
    for (const auto& [name, value] : error.fields()) fields[py::str(name)] = value;
    const py::object type = py::module_::import("pinferry.errors").attr(error.kind().c_str());
    PyErr_SetObject(type.ptr(), type(error.what(), **fields).ptr());
}

// To be called once by each extension module: a translator is local to the module that registers
// it.
inline void register_error_translator() {
    pybind11::register_local_exception_translator([](std::exception_ptr pending) {
        try {
            if (pending) std::rethrow_exception(pending);
        } catch (const Error& error) {
            try {
                raise_in_python(error);
            } catch (pybind11::error_already_set& interrupt) {
                interrupt.restore();  // a signal that came meanwhile, or no memory for the error
            }
        }
    });
}

}  // namespace pinferry
