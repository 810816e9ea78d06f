#include <pybind11/stl.h>

#include "bindings.hpp"
#include "error.hpp"
#include "free_list.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Extent = std::pair<std::size_t, std::size_t>;  // offset, size

std::optional<Extent> to_extent(const std::optional<Range>& range) {
    if (!range) return std::nullopt;
    return Extent{range->offset, range->size};
}

std::unique_ptr<FreeList> create(std::size_t capacity, std::size_t chunk, std::size_t alignment) {
    try {
        return std::make_unique<FreeList>(capacity, chunk, alignment);
    } catch (const std::invalid_argument& error) {
        throw Error("InvalidSize", error.what());
    }
}

void release(FreeList& list, std::size_t offset, std::size_t size) {
    try {
        list.release({offset, size});
    } catch (const std::logic_error& error) {
        throw Error("InvalidArgument", std::to_string(size) + " bytes at " +
                                           std::to_string(offset) +
                                           " cannot be given back: " + error.what());
    }
}

}  // namespace

void bind_free_list(py::module_& module) {
    py::class_<FreeList>(module, "FreeList",
                         "The arena's free ranges alone, for tests and benchmarks: it deals in "
                         "offsets and touches no memory. Not for several threads at once.")
        .def(py::init(&create), py::kw_only(), py::arg("capacity"), py::arg("chunk"),
             py::arg("alignment"))
        .def(
            "allocate",
            [](FreeList& list, std::size_t nbytes) { return to_extent(list.allocate(nbytes)); },
            py::arg("nbytes"), "(offset, size) of the smallest range that holds `nbytes`, or None.")
        .def(
            "allocate_largest",
            [](FreeList& list, std::size_t nbytes) {
                return to_extent(list.allocate_largest(nbytes));
            },
            py::arg("nbytes"),
            "(offset, size) of the largest range cut to `nbytes`; None if all is taken.")
        .def("release", &release, py::arg("offset"), py::arg("size"))
        .def_property_readonly("capacity_bytes", &FreeList::capacity)
        .def_property_readonly("free_bytes", &FreeList::free_bytes)
        .def_property_readonly("largest_free_bytes", &FreeList::largest_free)
        .def_property_readonly("free_ranges", &FreeList::free_ranges, "How many there are.");
}

}  // namespace pinferry
