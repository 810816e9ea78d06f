#include <pybind11/stl.h>

#include "bindings.hpp"
#include "cuda_device.hpp"
#include "device_memory.hpp"
#include "host_device.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

void bind_streams(py::module_& module) {
    py::class_<OwnedStream>(
        module, "Stream",
        "A stream of its own, for tests and benchmarks: producers and consumers of state.")
        .def_property_readonly("handle", &OwnedStream::handle,
                               "CUstream, or the CPU stream's address.")
        .def("fill", &OwnedStream::fill, py::arg("address"), py::arg("value"), py::arg("nbytes"),
             "Queue setting `nbytes` bytes to `value`. Does not block.")
        .def("copy", &OwnedStream::copy, py::arg("target"), py::arg("source"), py::arg("nbytes"),
             "Queue a copy within device memory. Does not block.")
        .def("hold", &OwnedStream::hold, "Hold everything queued after this until release().")
        .def("release", &OwnedStream::release, "Let the held stream run on.")
        .def("synchronize", &OwnedStream::synchronize, Unlocked(),
             "Block until the stream is idle.");

    py::class_<DeviceMemory>(module, "DeviceMemory", "Device memory outside PyTorch's allocator.")
        .def_property_readonly("address", &DeviceMemory::address)
        .def_property_readonly("nbytes", &DeviceMemory::bytes);
}

}  // namespace

void bind_device(py::module_& module) {
    py::enum_<Direction>(module, "Direction", "Which way bytes move.")
        .value("TO_HOST", Direction::to_host)
        .value("TO_DEVICE", Direction::to_device);
    bind_streams(module);

    py::class_<Device, std::shared_ptr<Device>>(module, "Device",
                                                "A device whose memory can be offloaded.")
        .def_property_readonly("kind", &Device::kind, "\"cuda\" or \"cpu\".")
        .def_property_readonly("index", &Device::index)
        .def_property_readonly("name", &Device::name)
        .def_property_readonly("uuid", &Device::uuid, "\"GPU-…\"; empty on the CPU.")
        .def_property_readonly("pci_bus_id", &Device::pci_bus_id, "Empty on the CPU.")
        .def(
            "copy_stream",
            [](Device& device, Direction direction, bool urgent) {
                return device.copy_stream({direction, urgent});
            },
            py::arg("direction"), py::kw_only(), py::arg("urgent") = false,
            "Handle of the engine's own stream.")
        .def_property_readonly("copy_tier", &Device::copy_tier,
                               "How small pieces are copied: \"kernel\", \"batch\" or \"plain\".")
        .def_property_readonly("maps_host_memory", &Device::maps_host_memory,
                               "Whether kernels can use an arena's memory in place.")
        .def("create_stream", &Device::create_stream)
        .def(
            "allocate",
            [](std::shared_ptr<Device> device, std::size_t nbytes) {
                return std::make_unique<DeviceMemory>(std::move(device), nbytes);
            },
            py::arg("nbytes"));
    py::class_<HostDevice, Device, std::shared_ptr<HostDevice>>(
        module, "HostDevice", "The CPU: worker threads as copy streams.")
        .def(py::init<>());
    py::class_<CudaDevice, Device, std::shared_ptr<CudaDevice>>(module, "CudaDevice", "One GPU.")
        .def(py::init<int>(), py::arg("index"), Unlocked())
        .def(
            "use_kernel",
            [](CudaDevice& device, std::uintptr_t handle, unsigned blocks, unsigned threads) {
                device.use_kernel(reinterpret_cast<cuda::Function>(handle), blocks, threads);
            },
            py::arg("handle"), py::kw_only(), py::arg("blocks"), py::arg("threads"), Unlocked(),
            "Copy small pieces by a loaded kernel, a CUfunction, from now on.")
        .def(
            "tune_copies",
            [](CudaDevice& device, Direction direction, std::size_t threshold, unsigned blocks,
               std::size_t piece) { device.tune_copies(direction, {threshold, blocks, piece}); },
            py::arg("direction"), py::kw_only(), py::arg("threshold_nbytes"), py::arg("blocks"),
            py::arg("piece_nbytes") = CopyTuning().piece_bytes,
            "Set from which size on a range is copied by DMA on its own, the kernel's grid, and "
            "the "
            "largest piece that a range is copied in.")
        .def(
            "copy_tuning",
            [](const CudaDevice& device, Direction direction) {
                const CopyTuning tuning = device.copy_tuning(direction);
                return std::make_tuple(tuning.threshold_bytes, tuning.blocks, tuning.piece_bytes);
            },
            py::arg("direction"),
            "The threshold in bytes, the blocks of the kernel, and the bytes of a piece.");
}

}  // namespace pinferry
