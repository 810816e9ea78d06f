#include "storage_group.hpp"

#include "../native/error.hpp"
#include "storage_access.hpp"

namespace pinferry::bridge {
namespace {

std::string numbers(std::size_t before, std::size_t now) {
    return "from " + std::to_string(before) + " to " + std::to_string(now) + " bytes";
}

}  // namespace

StorageGroup::StorageGroup(const Handles& storages, std::vector<std::string> names,
                           std::vector<std::size_t> sizes, std::vector<SlabLayout> slabs)
    : names_(std::move(names)), sizes_(std::move(sizes)) {
    require_same_length(storages.size(), names_.size());
    require_same_length(storages.size(), sizes_.size());
    storages_.reserve(storages.size());
    for (const StorageHandle* storage : storages) storages_.push_back(*storage);
    std::size_t end = 0;
    for (SlabLayout& slab : slabs) {
        if (slab.offsets.empty() || slab.first < end ||
            slab.offsets.size() > storages_.size() - slab.first) {
            throw Error("InvalidArgument",
                        "slabs hold consecutive storages of the group, in order");
        }
        end = slab.first + slab.offsets.size();
        for (std::size_t i = slab.first; i < end; ++i) {
            if (slab.offsets[i - slab.first] + sizes_[i] <= slab.bytes) continue;
            throw Error("InvalidArgument", names_[i] + " lies beyond the end of its slab");
        }
        slabs_.push_back(std::make_shared<const SlabLayout>(std::move(slab)));
    }
}

std::size_t StorageGroup::alive() const noexcept {
    std::size_t count = 0;
    for (const StorageHandle& storage : storages_) count += storage.alive() ? 1 : 0;
    return count;
}

std::size_t StorageGroup::still_away() const noexcept {
    std::size_t count = 0;
    for (const StorageHandle& handle : storages_) {
        const StoragePtr storage = handle.try_lock();
        count += storage && away(*storage) ? 1 : 0;
    }
    return count;
}

std::unique_ptr<ResidentStorages> StorageGroup::hold() const {
    std::vector<StoragePtr> held;
    held.reserve(storages_.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) {
        held.push_back(storages_[i].try_lock());
        if (!held.back() || guarded(*held.back()) || away(*held.back()) ||
            held.back()->nbytes() != sizes_[i] || *refusal_of(*held.back())) {
            return nullptr;
        }
    }
    return std::make_unique<ResidentStorages>(*this, std::move(held));
}

StoragePtr StorageGroup::lock_away(std::size_t index) const {
    StoragePtr storage = storages_[index].try_lock();
    if (!storage) {
        throw Error("StorageChanged", names_[index] + " was freed while it was being reloaded");
    }
    if (!away(*storage)) {
        throw Error("NotOffloaded",
                    names_[index] +
                        " was given other memory while it was offloaded, and what it "
                        "held then is gone");
    }
    if (storage->nbytes() != sizes_[index]) {
        throw Error("StorageChanged", names_[index] + " was resized " +
                                          numbers(sizes_[index], storage->nbytes()) +
                                          " while it was offloaded; size it back, then reload");
    }
    return storage;
}

std::unique_ptr<FreshMemory> StorageGroup::allocate(std::optional<std::int64_t> stream_id,
                                                    bool slabs) const {
    std::vector<StoragePtr> storages;
    storages.reserve(storages_.size());
    for (std::size_t i = 0; i < storages_.size(); ++i) storages.push_back(lock_away(i));

    std::vector<FreshPart> parts;
    parts.reserve(storages.size());
    auto slab = slabs ? slabs_.begin() : slabs_.end();
    for (std::size_t i = 0; i < storages.size();) {
        const bool begins = slab != slabs_.end() && (*slab)->first == i;
        const std::size_t bytes = begins ? (*slab)->bytes : sizes_[i];
        FreshPart part{i, allocate_for(*storages[i], bytes, stream_id), {}, {}};
        if (begins) {
            part.slab = c10::make_intrusive<Slab>(std::move(part.own), bytes);
            part.layout = *slab++;
        }
        i += begins ? part.layout->offsets.size() : 1;
        parts.push_back(std::move(part));
    }
    return std::make_unique<FreshMemory>(std::move(storages), std::move(parts));
}

void StorageGroup::announce_arrival() const {
    for (std::size_t i = 0; i < storages_.size(); ++i) {
        const StoragePtr storage = storages_[i].try_lock();
        if (!storage || !away(*storage)) continue;
        guard(*storage, names_[i] + " is being reloaded; call wait() on its ticket first");
    }
}

ResidentStorages::ResidentStorages(const StorageGroup& group, std::vector<StoragePtr> storages)
    : group_(group), storages_(std::move(storages)), packed_(lie_in_slabs()) {}

bool ResidentStorages::lie_in_slabs() const {
    for (const auto& layout : group_.slabs_) {
        const Slab* slab = slab_of(data_of(*storages_[layout->first]));
        if (!slab || slab->bytes() < layout->bytes) return false;
        for (std::size_t i = 0; i < layout->offsets.size(); ++i) {
            const c10::DataPtr& memory = data_of(*storages_[layout->first + i]);
            if (slab_of(memory) != slab || memory.get() != slab->data() + layout->offsets[i]) {
                return false;
            }
        }
    }
    return !group_.slabs_.empty();
}

std::vector<std::uintptr_t> ResidentStorages::addresses() const {
    std::vector<std::uintptr_t> addresses;
    addresses.reserve(storages_.size());
    auto layout = packed_ ? group_.slabs_.begin() : group_.slabs_.end();
    for (std::size_t i = 0; i < storages_.size();) {
        const c10::DataPtr& memory = data_of(*storages_[i]);
        const bool begins = layout != group_.slabs_.end() && (*layout)->first == i;
        const void* address = begins ? slab_of(memory)->data() : memory.get();
        addresses.push_back(reinterpret_cast<std::uintptr_t>(address));
        i += begins ? (*layout++)->offsets.size() : 1;
    }
    return addresses;
}

std::unique_ptr<ReleasedMemory> ResidentStorages::release(const Owners& owners,
                                                          std::optional<std::int64_t> stream_id,
                                                          const ReadableAt& readable_at) {
    std::vector<std::string> messages;
    messages.reserve(storages_.size());
    for (const std::string& name : group_.names_) {
        messages.push_back(name + " is offloaded to pinned host memory; call reload() first");
    }
    return bridge::release(storages_, std::move(messages), owners, stream_id, readable_at);
}

}  // namespace pinferry::bridge
