#include <pybind11/stl.h>

#include <algorithm>
#include <array>

#include "arena.hpp"
#include "bindings.hpp"
#include "seconds.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Seconds = std::optional<double>;

// So that Ctrl-C ends a wait.
void heed_signals() {
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::shared_ptr<Arena> create(std::shared_ptr<Device> device, std::size_t nbytes,
                              std::size_t chunk_nbytes, std::optional<int> numa_node,
                              bool huge_pages, unsigned threads, Backend backend,
                              std::size_t max_nbytes, bool eager) {
    ChunkLayout layout = lay_out_chunks(nbytes, max_nbytes, chunk_nbytes);
    const std::size_t at_once = eager ? layout.initial : std::min<std::size_t>(layout.initial, 1);
    return Arena::create(std::move(device),
                         {std::move(layout), at_once, {numa_node, huge_pages, threads}, backend});
}

std::vector<std::tuple<const char*, std::size_t, std::size_t>> layout(Arena& arena) {
    constexpr std::array names{"used", "free", "retired", "absent", "making"};
    std::vector<std::tuple<const char*, std::size_t, std::size_t>> regions;
    for (const Region& region : arena.layout()) {
        regions.emplace_back(names[static_cast<std::size_t>(region.kind)], region.range.offset,
                             region.range.size);
    }
    return regions;
}

void bind_stats(py::module_& module) {
    py::class_<ArenaStats>(module, "ArenaStats", "Counters of an arena at one moment, in bytes.")
        .def_readonly("capacity_bytes", &ArenaStats::capacity_bytes)
        .def_readonly("max_capacity_bytes", &ArenaStats::max_capacity_bytes)
        .def_readonly("used_bytes", &ArenaStats::used_bytes)
        .def_readonly("peak_bytes", &ArenaStats::peak_bytes)
        .def_readonly("free_bytes", &ArenaStats::free_bytes)
        .def_readonly("largest_free_bytes", &ArenaStats::largest_free_bytes)
        .def_readonly("retired_bytes", &ArenaStats::retired_bytes)
        .def_readonly("locked_bytes", &ArenaStats::locked_bytes)
        .def_readonly("blocks", &ArenaStats::blocks)
        .def_readonly("allocations", &ArenaStats::allocations)
        .def_readonly("failures", &ArenaStats::failures);
}

}  // namespace

void bind_arena(py::module_& module) {
    py::enum_<Backend>(module, "Backend", "How host memory is made.")
        .value("AUTO", Backend::automatic)
        .value("REGISTERED", Backend::registered)
        .value("DRIVER", Backend::driver)
        .value("UNPINNED", Backend::unpinned);
    bind_stats(module);
    bind_block(module);
    py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena",
                                              "Host memory made once, dealt out as blocks.")
        .def(py::init(&create), py::kw_only(), py::arg("device").none(false), py::arg("nbytes"),
             py::arg("chunk_nbytes"), py::arg("numa_node"), py::arg("huge_pages"),
             py::arg("threads"), py::arg("backend") = Backend::automatic, py::arg("max_nbytes") = 0,
             py::arg("eager") = true, Unlocked())
        // Keeps the GIL: it waits for nothing, and giving the GIL up takes as long as the call.
        .def("try_allocate", &Arena::try_allocate, py::arg("nbytes"), py::arg("alignment") = 1)
        .def(
            "allocate",
            [](Arena& arena, std::size_t nbytes, Seconds timeout, std::size_t alignment) {
                return arena.allocate(nbytes, timeout_from_seconds(timeout), alignment,
                                      &heed_signals);
            },
            py::arg("nbytes"), py::arg("timeout"), py::arg("alignment") = 1, Unlocked())
        .def(
            "allocate_extents",
            [](Arena& arena, const std::vector<std::size_t>& sizes, Seconds timeout) {
                return arena.allocate_extents(sizes, timeout_from_seconds(timeout), &heed_signals);
            },
            py::arg("sizes"), py::arg("timeout"), Unlocked())
        .def("try_allocate_extents", &Arena::try_allocate_extents, py::arg("sizes"), Unlocked())
        .def("would_fit_after_growth", &Arena::would_fit_after_growth, py::arg("sizes"),
             py::arg("contiguous"), py::arg("patient"), Unlocked())
        .def_property_readonly("next_chunk_nbytes", &Arena::next_chunk_bytes)
        .def("make_chunk", &Arena::make_chunk, Unlocked())
        .def("trim", &Arena::trim, py::arg("keep_nbytes"), Unlocked())
        .def("layout", &layout, Unlocked())
        .def("close", &Arena::close, py::arg("force") = true, Unlocked())
        .def_property_readonly("closed", &Arena::closed)
        .def_property_readonly("device", &Arena::device)
        .def_property_readonly("backend",
                               [](const Arena& arena) { return arena.memory().backend(); })
        .def_property_readonly("description", &Arena::describe)
        .def("stats", &Arena::stats, Unlocked());
}

}  // namespace pinferry
