#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device_memory.hpp"
#include "storage_handle.hpp"

namespace pinferry::bridge {

// Storages that move together, held weakly: each question is one call for all of them.
class StorageGroup {
  public:
    // `names` are for what an access says while a storage is away; `sizes` are what the storages
    // must have. Slabs are in the order of the storages; a storage that is in none has memory of
    // its own.
    StorageGroup(const Handles& storages, std::vector<std::string> names,
                 std::vector<std::size_t> sizes, std::vector<SlabLayout> slabs);

    std::size_t alive() const noexcept;
    // Those of them that are away: a readable one may be given other memory meanwhile.
    std::size_t still_away() const noexcept;

    // The storages, if all are alive, of their sizes, here, and such that their memory can be given
    // back; null otherwise.
    std::unique_ptr<class ResidentStorages> hold() const;

    // Memory for all of them, which are away, on the current device and stream of PyTorch: each
    // slab by one allocation, or, with `slabs` false, each storage by its own. With `stream_id` the
    // allocator is told that this stream uses it too. Throws Error("DeviceOutOfMemory") having kept
    // nothing, Error("NotOffloaded") or Error("StorageChanged") if one of them is not as it was
    // left.
    std::unique_ptr<FreshMemory> allocate(std::optional<std::int64_t> stream_id, bool slabs) const;

    // From now on an access to those that are away raises and says that they are being reloaded.
    void announce_arrival() const;

  private:
    friend class ResidentStorages;
    StoragePtr lock_away(std::size_t index) const;

    std::vector<std::string> names_;
    std::vector<std::size_t> sizes_;
    std::vector<StorageHandle> storages_;
    std::vector<std::shared_ptr<const SlabLayout>> slabs_;
};

// The storages of a group, alive and here for as long as this object is.
class ResidentStorages {
  public:
    ResidentStorages(const StorageGroup& group, std::vector<StoragePtr> storages);

    // Whether the storages of each slab of the group lie in it.
    bool packed() const noexcept { return packed_; }
    // Where each storage begins; where they are packed, each slab counts as one.
    std::vector<std::uintptr_t> addresses() const;

    // Takes the memory, and guards the storages or points them at `readable_at`; see release(). One
    // owner for all, or one each.
    std::unique_ptr<ReleasedMemory> release(const Owners& owners,
                                            std::optional<std::int64_t> stream_id,
                                            const ReadableAt& readable_at);

  private:
    bool lie_in_slabs() const;

    const StorageGroup& group_;
    std::vector<StoragePtr> storages_;
    bool packed_;
};

}  // namespace pinferry::bridge
