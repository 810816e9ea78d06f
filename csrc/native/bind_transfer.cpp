#include <pybind11/stl.h>

#include "bindings.hpp"
#include "seconds.hpp"
#include "transfer.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

}  // namespace

void bind_transfer(py::module_& module) {
    py::class_<Ticket>(module, "Ticket", "One submitted batch of copies.")
        .def(py::init<>())
        .def("done", &Ticket::done)
        .def("wait", &Ticket::wait, py::arg("stream"), Unlocked())
        .def(
            "synchronize",
            [](const Ticket& ticket, std::optional<double> timeout) {
                return ticket.synchronize(timeout_from_seconds(timeout));
            },
            py::arg("timeout"), Unlocked())
        .def_property_readonly("elapsed_ms", &Ticket::elapsed_ms)
        .def_property_readonly("nbytes", &Ticket::bytes);

    py::class_<Piece>(module, "Piece", "A block and the address of its bytes on the device.")
        .def(py::init([](std::shared_ptr<Block> block, Address address) {
                 const std::size_t bytes = block->bytes();
                 return Piece{std::move(block), address, bytes};
             }),
             py::arg("block").none(false), py::arg("address"))
        .def_readonly("nbytes", &Piece::bytes);

    module.def("submit", &submit, py::kw_only(), py::arg("device").none(false),
               py::arg("direction"), py::arg("pieces"), py::arg("streams"),
               py::arg("after") = std::vector<Ticket>{}, Unlocked(),
               "Queue copies behind all work queued so far on `streams` and behind the batches of "
               "`after`. "
               "Does not block the host.");
}

}  // namespace pinferry
