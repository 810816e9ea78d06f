#include <pybind11/stl.h>

#include <cstring>
#include <string_view>

#include "bindings.hpp"
#include "copy_list.hpp"
#include "error.hpp"
#include "seconds.hpp"
#include "transfer.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Placements =
    std::vector<std::tuple<Blocks, std::vector<std::size_t>, std::vector<std::size_t>>>;

CopyList make_list(const Placements& placements) {
    std::vector<Placement> made;
    made.reserve(placements.size());
    for (const auto& [blocks, offsets, sizes] : placements)
        made.push_back({blocks, offsets, sizes});
    return CopyList(made);
}

// As the bytes of an array: see submit_list.
std::optional<py::bytes> host_addresses(const CopyList& list) {
    const auto addresses = list.host_addresses();
    if (!addresses) return std::nullopt;
    return py::bytes(reinterpret_cast<const char*>(addresses->data()),
                     addresses->size() * sizeof(Address));
}

void note_use(const std::shared_ptr<Device>& device, const Blocks& blocks, StreamHandle stream) {
    const std::shared_ptr<Event> use = device->record(stream, false);
    for (const auto& block : blocks) block->add_use(use);
}

Ticket submit_pieces(const std::shared_ptr<Device>& device, Direction direction,
                     const std::vector<Piece>& pieces, const std::vector<StreamHandle>& streams,
                     const std::vector<Ticket>& after, bool urgent) {
    return submit(device, {direction, urgent}, pieces, streams, after);
}

Ticket submit_list(const std::shared_ptr<Device>& device, Direction direction, const CopyList& list,
                   const py::bytes& addresses, const std::vector<StreamHandle>& streams,
                   const std::vector<Ticket>& after, const std::vector<std::size_t>& skip,
                   bool urgent) {
    const std::string_view packed = addresses;
    std::vector<Address> unpacked(packed.size() / sizeof(Address));
    std::memcpy(unpacked.data(), packed.data(), unpacked.size() * sizeof(Address));
    const py::gil_scoped_release unlocked;
    return submit_batch(device, {direction, urgent}, list.batch(unpacked, skip), streams, after);
}

bool is_over(const Ticket& ticket) {
    try {
        return ticket.synchronize(std::chrono::nanoseconds(0));
    } catch (const Error&) {
        return true;
    }
}

std::vector<bool> which_are_over(const std::vector<Ticket>& tickets) {
    std::vector<bool> over;
    over.reserve(tickets.size());
    for (const Ticket& ticket : tickets) over.push_back(is_over(ticket));
    return over;
}

}  // namespace

void bind_transfer(py::module_& module) {
    py::class_<Mark>(module, "Mark", "A moment on a device's own clock.")
        .def(
            "synchronize",
            [](const Mark& mark, std::optional<double> timeout) {
                return mark.synchronize(timeout_from_seconds(timeout));
            },
            py::arg("timeout"), Unlocked());

    module.def(
        "mark",
        [](std::shared_ptr<Device> device, StreamHandle stream) {
            return Mark(std::move(device), stream);
        },
        py::arg("device").none(false), py::arg("stream"), Unlocked(),
        "Note the moment when all work queued so far on `stream` has run. Does not block the "
        "host.");

    py::class_<Ticket>(module, "Ticket", "One submitted batch of copies.")
        .def(py::init<>())
        .def(py::init<const Mark&>(), py::arg("mark"))
        .def("done", &Ticket::done)
        .def("wait", &Ticket::wait, py::arg("stream"), Unlocked())
        .def(
            "synchronize",
            [](const Ticket& ticket, std::optional<double> timeout) {
                return ticket.synchronize(timeout_from_seconds(timeout));
            },
            py::arg("timeout"), Unlocked())
        .def_property_readonly("elapsed_ms", &Ticket::elapsed_ms)
        .def("span_ms", &Ticket::span_ms, py::arg("base"))
        .def_property_readonly("nbytes", &Ticket::bytes);

    module.def("over", &which_are_over, py::arg("tickets"), Unlocked(),
               "Tell which tickets are done, or never will be: synchronize raises what is wrong. "
               "Gives Python's lock up once for all of them. Does not block.");

    py::class_<Piece>(module, "Piece", "A block and the address of its bytes on the device.")
        .def(py::init([](std::shared_ptr<Block> block, Address address) {
                 const std::size_t bytes = block->bytes();
                 return Piece{std::move(block), address, bytes};
             }),
             py::arg("block").none(false), py::arg("address"))
        .def_readonly("nbytes", &Piece::bytes);

    py::class_<CopyList>(module, "CopyList",
                         "Where the bytes of storages lie in blocks, worked out once.")
        .def(py::init(&make_list), py::arg("placements"))
        .def_property_readonly("storages", &CopyList::storages)
        .def_property_readonly("nbytes", &CopyList::bytes)
        .def_property_readonly("host_addresses", &host_addresses,
                               "Where each storage begins, as the bytes of an array; None unless "
                               "each lies in one piece.");

    module.def("note_use", &note_use, py::arg("device").none(false), py::arg("blocks"),
               py::arg("stream"), Unlocked(),
               "Let the memory of blocks be dealt out again, once they are freed, only behind all "
               "work queued so far on `stream`.");
    module.def("submit", &submit_pieces, py::kw_only(), py::arg("device").none(false),
               py::arg("direction"), py::arg("pieces"), py::arg("streams"),
               py::arg("after") = std::vector<Ticket>{}, py::arg("urgent") = false, Unlocked(),
               "Queue copies behind all work queued so far on `streams` and behind the batches of "
               "`after`; urgent ones go between the pieces of others. Does not block the host.");
    module.def("submit_list", &submit_list, py::kw_only(), py::arg("device").none(false),
               py::arg("direction"), py::arg("copies"), py::arg("addresses"), py::arg("streams"),
               py::arg("after") = std::vector<Ticket>{},
               py::arg("skip") = std::vector<std::size_t>{}, py::arg("urgent") = false,
               "As submit, for storages whose device addresses are the bytes of an array; those of "
               "the placements in `skip` are not copied.");
}

}  // namespace pinferry
