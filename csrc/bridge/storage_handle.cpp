#include "storage_handle.hpp"

#include "../native/error.hpp"
#include "device_memory.hpp"
#include "slab.hpp"
#include "storage_access.hpp"

namespace pinferry::bridge {
namespace {

c10::StorageImpl* from_cdata(std::uintptr_t cdata) {
    return reinterpret_cast<c10::StorageImpl*>(cdata);
}

}  // namespace

StorageHandle::StorageHandle(std::uintptr_t cdata)
    : key_(cdata), weak_(StoragePtr::unsafe_reclaim_from_nonowning(from_cdata(cdata))) {}

StoragePtr StorageHandle::lock() const {
    StoragePtr storage = weak_.lock();
    if (!storage) throw Error("StorageChanged", "a storage was freed while it was being moved");
    return storage;
}

std::uintptr_t StorageHandle::address() const {
    return reinterpret_cast<std::uintptr_t>(data_of(*lock()).get());
}

bool StorageHandle::guarded() const { return bridge::guarded(*lock()); }

bool StorageHandle::away() const { return bridge::away(*lock()); }

const char* refusal_of(c10::StorageImpl& storage) {
    if (storage.sym_nbytes().is_heap_allocated()) return "its size is symbolic";
    const c10::DataPtr& memory = data_of(storage);
    if (storage.nbytes() > 0 && !memory.get() && !bridge::guarded(storage)) {
        return "it has no memory (a wrapper, fake or meta tensor)";
    }
    if (storage.received_cuda()) return "it was received from another process";
    const c10::DeleterFnPtr deleter = allocator_of(storage).raw_deleter();
    const bool own = memory.get_deleter() == deleter || slab_of(memory) || away(storage);
    // torch.load() names no allocator for what it has read into PyTorch's own memory.
    if (!storage.allocator() && !(own && deleter))
        return "it has no allocator (made from foreign memory, DLPack, NumPy or a mapped file)";
    if (storage.nbytes() > 0 && deleter && !own) {
        return "its memory did not come from its own allocator (shared, mapped or copy-on-write "
               "memory)";
    }
    return "";
}

}  // namespace pinferry::bridge
