#include "device_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "../native/error.hpp"
#include "storage_access.hpp"

namespace pinferry::bridge {
namespace {

// Strong references for the length of a call, so that nothing can go between its steps.
std::vector<StoragePtr> lock_all(const Handles& storages) {
    std::vector<StoragePtr> locked;
    locked.reserve(storages.size());
    for (const StorageHandle* storage : storages) locked.push_back(storage->lock());
    return locked;
}

void require_same_length(std::size_t storages, std::size_t others) {
    if (storages == others) return;
    throw Error("InvalidArgument", std::to_string(storages) + " storages, but " +
                                       std::to_string(others) + " values to go with them");
}

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
    require_same_length(storages.size(), owners.size());
    std::vector<c10::DataPtr> pointers;
    pointers.reserve(storages.size());
    for (std::size_t i = 0; i < storages.size(); ++i) {
        auto owner = std::make_unique<std::shared_ptr<void>>(owners[i]);
        pointers.emplace_back(reinterpret_cast<void*>(addresses[i]), owner.release(), &drop_owner,
                              storages[i]->device());
    }
    return pointers;
}

}  // namespace

std::vector<std::uintptr_t> FreshMemory::addresses() const {
    std::vector<std::uintptr_t> addresses;
    addresses.reserve(parts_.size());
    for (const c10::DataPtr& part : parts_)
        addresses.push_back(reinterpret_cast<std::uintptr_t>(part.get()));
    return addresses;
}

std::unique_ptr<ReleasedMemory> release(const Handles& storages, std::vector<std::string> messages,
                                        const Owners& owners,
                                        std::optional<std::int64_t> stream_id) {
    require_same_length(storages.size(), messages.size());
    const auto locked = lock_all(storages);
    auto empty = owned_pointers(locked, std::vector<std::uintptr_t>(locked.size(), 0), owners);
    if (stream_id) {
        for (const StoragePtr& storage : locked) record_use(data_of(*storage), *stream_id);
    }
    auto memory = std::make_unique<ReleasedMemory>();
    memory->parts.reserve(locked.size());
    for (std::size_t i = 0; i < locked.size(); ++i) {
        c10::StorageImpl& storage = *locked[i];
        memory->parts.push_back(std::move(storage._mutable_data_ptr_no_checks()));
        storage.set_data_ptr_noswap(std::move(empty[i]));
        guard(storage, std::move(messages[i]));
    }
    return memory;
}

std::unique_ptr<FreshMemory> allocate(const Handles& storages,
                                      std::optional<std::int64_t> stream_id) {
    auto locked = lock_all(storages);
    std::vector<c10::DataPtr> parts;
    parts.reserve(locked.size());
    for (const StoragePtr& storage : locked) {
        try {
            parts.push_back(storage->allocator()->allocate(storage->nbytes()));
        } catch (const c10::Error& error) {
            throw Error("DeviceOutOfMemory", error.what_without_backtrace(),
                        {{"requested", static_cast<std::int64_t>(storage->nbytes())}});
        }
    }
    if (stream_id) {
        for (const c10::DataPtr& part : parts) record_use(part, *stream_id);
    }
    return std::make_unique<FreshMemory>(std::move(locked), std::move(parts));
}

void FreshMemory::install() noexcept {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        unguard(*storages_[i]);
        storages_[i]->set_data_ptr_noswap(std::move(parts_[i]));
    }
    parts_.clear();
}

void point_at(const Handles& storages, const std::vector<std::uintptr_t>& addresses,
              const Owners& owners) {
    require_same_length(storages.size(), addresses.size());
    const auto locked = lock_all(storages);
    auto pointers = owned_pointers(locked, addresses, owners);
    for (std::size_t i = 0; i < locked.size(); ++i) {
        unguard(*locked[i]);
        locked[i]->set_data_ptr_noswap(std::move(pointers[i]));
    }
}

void set_messages(const Handles& storages, std::vector<std::string> messages) {
    require_same_length(storages.size(), messages.size());
    const auto locked = lock_all(storages);
    for (std::size_t i = 0; i < locked.size(); ++i) {
        if (!guarded(*locked[i])) continue;
        guard(*locked[i], std::move(messages[i]));
    }
}

}  // namespace pinferry::bridge
