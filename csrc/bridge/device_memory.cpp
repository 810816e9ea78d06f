#include "device_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "../native/error.hpp"
#include "storage_access.hpp"

namespace pinferry::bridge {
namespace {

// Tells the allocator that the stream uses the memory, so that it is not dealt out before that use.
void record_use(const c10::DataPtr& memory, std::int64_t stream_id) {
    const c10::Device device = memory.device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.recordDataPtrOnStream(memory, c10::Stream(c10::Stream::UNSAFE, device, stream_id));
}

void drop_owner(void* owner) { delete static_cast<std::shared_ptr<void>*>(owner); }

// Pointers to memory (or to none: 0) that is not the storages' own, each keeping its owner alive.
std::vector<c10::DataPtr> owned_pointers(const std::vector<StoragePtr>& storages,
                                         const std::vector<std::uintptr_t>& addresses,
                                         const Owners& owners) {
    if (owners.size() != 1) require_same_length(storages.size(), owners.size());
    std::vector<c10::DataPtr> pointers;
    pointers.reserve(storages.size());
    for (std::size_t i = 0; i < storages.size(); ++i) {
        const auto& shared = owners[owners.size() == 1 ? 0 : i];
        auto owner = std::make_unique<std::shared_ptr<void>>(shared);
        pointers.emplace_back(reinterpret_cast<void*>(addresses[i]), owner.release(), &drop_owner,
                              storages[i]->device());
    }
    return pointers;
}

}  // namespace

void require_same_length(std::size_t storages, std::size_t others) {
    if (storages == others) return;
    throw Error("InvalidArgument", std::to_string(storages) + " storages, but " +
                                       std::to_string(others) + " values to go with them");
}

bool FreshMemory::packed() const noexcept {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const FreshPart& part) { return static_cast<bool>(part.slab); });
}

std::vector<std::uintptr_t> FreshMemory::addresses() const {
    std::vector<std::uintptr_t> addresses;
    addresses.reserve(parts_.size());
    for (const FreshPart& part : parts_) {
        const c10::DataPtr& memory = part.slab ? part.slab->memory() : part.own;
        addresses.push_back(reinterpret_cast<std::uintptr_t>(memory.get()));
    }
    return addresses;
}

void FreshMemory::install() noexcept {
    const auto give = [](c10::StorageImpl& storage, c10::DataPtr memory) {
        unguard(storage);
        storage.set_data_ptr_noswap(std::move(memory));
    };
    for (FreshPart& part : parts_) {
        if (!part.slab) {
            give(*storages_[part.first], std::move(part.own));
            continue;
        }
        for (std::size_t i = 0; i < part.layout->offsets.size(); ++i) {
            give(*storages_[part.first + i], make_slice(part.slab, part.layout->offsets[i]));
        }
    }
    parts_.clear();
}

std::unique_ptr<ReleasedMemory> release(const std::vector<StoragePtr>& storages,
                                        std::vector<std::string> messages, const Owners& owners,
                                        std::optional<std::int64_t> stream_id,
                                        const ReadableAt& readable_at) {
    require_same_length(storages.size(), messages.size());
    if (readable_at) require_same_length(storages.size(), readable_at->size());
    const std::vector<std::uintptr_t> nowhere(readable_at ? 0 : storages.size(), 0);
    auto elsewhere = owned_pointers(storages, readable_at ? *readable_at : nowhere, owners);
    const Slab* recorded = nullptr;  // neighbours are slices of the same one
    for (const StoragePtr& storage : storages) {
        const Slab* slab = slab_of(data_of(*storage));
        if (!stream_id || (slab && slab == recorded)) continue;
        record_use(slab ? slab->memory() : data_of(*storage), *stream_id);
        recorded = slab;
    }
    auto memory = std::make_unique<ReleasedMemory>();
    memory->parts.reserve(storages.size());
    memory->slabs.reserve(storages.size());
    for (std::size_t i = 0; i < storages.size(); ++i) {
        c10::StorageImpl& storage = *storages[i];
        c10::DataPtr part = std::move(storage._mutable_data_ptr_no_checks());
        if (const Slab* slab = slab_of(part)) {
            SlabPtr held = release_slice(std::move(part));
            if (memory->slabs.empty() || memory->slabs.back().get() != slab) {
                memory->slabs.push_back(std::move(held));
            }
        } else {
            memory->parts.push_back(std::move(part));
        }
        storage.set_data_ptr_noswap(std::move(elsewhere[i]));
        if (!readable_at) guard(storage, std::move(messages[i]));
    }
    return memory;
}

std::shared_ptr<void> owner_of(c10::StorageImpl& storage) {
    if (!away(storage)) return nullptr;
    return *static_cast<std::shared_ptr<void>*>(data_of(storage).get_context());
}

bool away(c10::StorageImpl& storage) noexcept {
    return data_of(storage).get_deleter() == &drop_owner;
}

c10::Allocator& allocator_of(c10::StorageImpl& storage) {
    return storage.allocator() ? *storage.allocator() : *c10::GetCPUAllocator();
}

c10::DataPtr allocate_for(c10::StorageImpl& storage, std::size_t bytes,
                          std::optional<std::int64_t> stream_id) {
    try {
        c10::DataPtr memory = allocator_of(storage).allocate(bytes);
        if (stream_id) record_use(memory, *stream_id);
        return memory;
    } catch (const c10::Error& error) {
        throw Error("DeviceOutOfMemory", error.what_without_backtrace(),
                    {{"requested", static_cast<std::int64_t>(bytes)}});
    }
}

}  // namespace pinferry::bridge
