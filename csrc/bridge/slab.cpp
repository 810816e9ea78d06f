#include "slab.hpp"

#include <Python.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pinferry::bridge {
namespace {

// A slice's context is the slab itself, of which it counts as one reference.
void drop_slice(void* context) {
    const auto slab = SlabPtr::reclaim(static_cast<Slab*>(context));
    slab->wait_before_free();
}

// Blocks until the device is idle, without Python's lock.
void synchronize(c10::Device device) noexcept {
    if (device.type() == c10::DeviceType::CPU) return;
    PyThreadState* state = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    try {
        const c10::impl::VirtualGuardImpl guard(device.type());
        guard.synchronizeDevice(device.index());
    } catch (const std::exception&) {
        // A device that is lost has nothing left to overwrite.
    }
    if (state) PyEval_RestoreThread(state);
}

}  // namespace

Slab::~Slab() {
    if (waits_) synchronize(memory_.device());
}

c10::DataPtr make_slice(const SlabPtr& slab, std::size_t offset) noexcept {
    SlabPtr reference = slab;
    const c10::Device device = slab->memory().device();
    std::byte* data = slab->data() + offset;
    return {data, reference.release(), &drop_slice, device};
}

const Slab* slab_of(const c10::DataPtr& memory) noexcept {
    return memory.get_deleter() == &drop_slice ? static_cast<const Slab*>(memory.get_context())
                                               : nullptr;
}

SlabPtr release_slice(c10::DataPtr memory) noexcept {
    return SlabPtr::reclaim(static_cast<Slab*>(memory.release_context()));
}

}  // namespace pinferry::bridge
