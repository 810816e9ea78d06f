#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string_view>

#include "../native/error.hpp"
#include "../native/raise_python.hpp"
#include "device_memory.hpp"
#include "storage_group.hpp"

namespace py = pybind11;

namespace pinferry::bridge {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

// A Python object held from C++; it may be let go of on any thread.
std::shared_ptr<void> hold(py::object object) {
    return {new py::object(std::move(object)), [](void* held) {
                auto* owner = static_cast<py::object*>(held);
                if (!Py_IsInitialized()) return;  // the interpreter is gone, and the object with it
                const py::gil_scoped_acquire locked;
                delete owner;
            }};
}

py::object owner_object(const StorageHandle& handle) {
    const std::shared_ptr<void> owner = owner_of(*handle.lock());
    return owner ? *static_cast<py::object*>(owner.get()) : py::none();
}

Owners hold_all(const std::vector<py::object>& objects) {
    Owners owners;
    owners.reserve(objects.size());
    for (const py::object& object : objects) owners.push_back(hold(object));
    return owners;
}

std::vector<std::uintptr_t> unpack_addresses(const py::bytes& packed) {
    const std::string_view bytes = packed;
    if (bytes.size() % sizeof(std::uintptr_t) != 0) {
        throw Error("InvalidArgument",
                    std::to_string(bytes.size()) + " bytes are no array of addresses");
    }
    std::vector<std::uintptr_t> addresses(bytes.size() / sizeof(std::uintptr_t));
    std::memcpy(addresses.data(), bytes.data(), addresses.size() * sizeof(std::uintptr_t));
    return addresses;
}

std::unique_ptr<ReleasedMemory> release_owned(ResidentStorages& storages,
                                              const std::vector<py::object>& owners,
                                              std::optional<std::int64_t> stream_id,
                                              const std::optional<py::bytes>& readable_at) {
    const Owners held = hold_all(owners);
    std::optional<std::vector<std::uintptr_t>> addresses;
    if (readable_at) addresses = unpack_addresses(*readable_at);
    const py::gil_scoped_release unlocked;
    return storages.release(held, stream_id, addresses);
}

// Addresses go from one module to the other as the bytes of an array: thousands of integers would
// cost more than the copies.
template <typename Memory>
py::bytes packed_addresses(const Memory& memory) {
    const std::vector<std::uintptr_t> addresses = memory.addresses();
    return {reinterpret_cast<const char*>(addresses.data()),
            addresses.size() * sizeof(std::uintptr_t)};
}

using Slabs = std::vector<std::tuple<std::size_t, std::vector<std::size_t>, std::size_t>>;

std::unique_ptr<StorageGroup> make_group(const Handles& storages, std::vector<std::string> names,
                                         std::vector<std::size_t> sizes, const Slabs& slabs) {
    std::vector<SlabLayout> layouts;
    layouts.reserve(slabs.size());
    for (const auto& [first, offsets, bytes] : slabs) layouts.push_back({first, offsets, bytes});
    return std::make_unique<StorageGroup>(storages, std::move(names), std::move(sizes),
                                          std::move(layouts));
}

void bind_group(py::module_& module) {
    py::class_<StorageGroup>(module, "StorageGroup", "Storages that move together, held weakly.",
                             py::module_local())
        .def(py::init(&make_group), py::arg("storages"), py::arg("names"), py::arg("sizes"),
             py::arg("slabs"))
        .def_property_readonly("alive", &StorageGroup::alive, "How many storages live.")
        .def_property_readonly("still_away", &StorageGroup::still_away,
                               "How many live, are away and were given no other memory.")
        .def("hold", &StorageGroup::hold, Unlocked(), py::keep_alive<0, 1>(),
             "Return the storages if all are here, movable and as large as they were, else None.")
        .def("allocate", &StorageGroup::allocate, py::arg("stream_id"), py::arg("slabs"),
             Unlocked(),
             "Allocate memory for all storages, which are away, on PyTorch's current device and "
             "stream. All or none.")
        .def("announce_arrival", &StorageGroup::announce_arrival, Unlocked(),
             "From now on an access says that the storages are being reloaded.");
    py::class_<ResidentStorages>(module, "ResidentStorages", "Storages kept alive for a move.",
                                 py::module_local())
        .def_property_readonly("packed", &ResidentStorages::packed,
                               "Whether each slab of the group is one range.")
        .def_property_readonly("addresses", &packed_addresses<ResidentStorages>,
                               "Device addresses, as the bytes of an array.")
        .def("release", &release_owned, py::arg("owners"), py::arg("stream_id"),
             py::arg("readable_at") = py::none(),
             "Take the memory from all storages and guard them, or point them at other addresses, "
             "the bytes of an array. Each keeps its owner (or the only one) alive until it is "
             "given memory again or dies. All or none.");
}

}  // namespace
}  // namespace pinferry::bridge

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    using namespace pinferry::bridge;
    module.doc() = "The bridge to PyTorch: release, guard, restore and re-point storages in place.";
    module.attr("TORCH_VERSION") = PINFERRY_TORCH_VERSION;
    pinferry::register_error_translator();

    // Local to the module: one built for another PyTorch may be loaded already, and is left alone.
    py::class_<StorageHandle>(module, "StorageHandle", "A weak reference to a storage.",
                              py::module_local())
        .def(py::init<std::uintptr_t>(), py::arg("cdata"))
        .def_property_readonly("key", &StorageHandle::key,
                               "Names the storage while the handle lives.")
        .def_property_readonly("alive", &StorageHandle::alive)
        .def_property_readonly("nbytes", &StorageHandle::bytes)
        .def_property_readonly("address", &StorageHandle::address,
                               "Device address; 0 while offloaded.")
        .def_property_readonly("device", &StorageHandle::device)
        .def_property_readonly("guarded", &StorageHandle::guarded, "Whether access raises.")
        .def_property_readonly("owner", &owner_object,
                               "What the storage keeps alive while its memory is away, else None.")
        .def_property_readonly("away", &StorageHandle::away,
                               "Whether the memory was taken and the storage has no other yet.")
        .def_property_readonly(
            "refusal", &StorageHandle::refusal,
            "\"\" if the memory can be given back and made again, else why not.");

    py::class_<ReleasedMemory>(module, "ReleasedMemory",
                               "Memory taken from storages; dropping it frees it.",
                               py::module_local());
    py::class_<FreshMemory>(module, "FreshMemory", "Memory made for storages, and not yet theirs.",
                            py::module_local())
        .def_property_readonly("packed", &FreshMemory::packed,
                               "Whether each slab of the group is one range.")
        .def_property_readonly("addresses", &packed_addresses<FreshMemory>,
                               "Device addresses, as the bytes of an array.")
        .def("install", &FreshMemory::install, Unlocked(),
             "Give each storage its part and lift its guard.");

    bind_group(module);
}
