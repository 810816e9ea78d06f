#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "slab.hpp"
#include "storage_handle.hpp"

namespace pinferry::bridge {

// Device memory taken from storages. Dropping it gives it back to the allocators it came from.
struct ReleasedMemory {
    std::vector<c10::DataPtr> parts;
    std::vector<SlabPtr> slabs;  // of which storages had slices
};

// Consecutive storages of a group that share a slab after a reload, and where each begins in it.
struct SlabLayout {
    std::size_t first = 0;
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;
};

// Memory for one storage, or a slab for those of its layout.
struct FreshPart {
    std::size_t first = 0;
    c10::DataPtr own;
    SlabPtr slab;
    std::shared_ptr<const SlabLayout> layout;
};

// Device memory made for storages, which it keeps alive, and not yet theirs.
class FreshMemory {
  public:
    FreshMemory(std::vector<StoragePtr> storages, std::vector<FreshPart> parts)
        : storages_(std::move(storages)), parts_(std::move(parts)) {}

    // Whether each slab of the group is one part.
    bool packed() const noexcept;
    // Where each part begins.
    std::vector<std::uintptr_t> addresses() const;

    // Gives each storage its memory and lifts its guard. Cannot fail; a second call does nothing.
    // The storages are kept alive until this object dies: a copy may still run into their memory.
    void install() noexcept;

  private:
    std::vector<StoragePtr> storages_;
    std::vector<FreshPart> parts_;
};

using Owners = std::vector<std::shared_ptr<void>>;
using ReadableAt = std::optional<std::vector<std::uintptr_t>>;

// Takes the memory from every storage and guards it: any access through any view then raises
// RuntimeError(messages[i]). With `readable_at`, addresses that the owners keep alive, each storage
// is pointed there instead, and access reads and writes what is there. Sizes, shapes and identities
// stay. Each storage keeps owners[i], or the only one, alive until it is given memory again or
// dies. With `stream_id` (torch.Stream's) the allocator is told that this stream uses the memory,
// so it may be dropped while a copy still runs. Either all storages or none are changed.
std::unique_ptr<ReleasedMemory> release(const std::vector<StoragePtr>& storages,
                                        std::vector<std::string> messages, const Owners& owners,
                                        std::optional<std::int64_t> stream_id,
                                        const ReadableAt& readable_at);

// What the storage keeps alive since release() took its memory; null once it has other memory.
std::shared_ptr<void> owner_of(c10::StorageImpl& storage);

// Whether release() took the memory of the storage and nobody has given it other memory since.
bool away(c10::StorageImpl& storage) noexcept;

// Where memory for a storage comes from: its allocator or, where it names none, that of the CPU.
c10::Allocator& allocator_of(c10::StorageImpl& storage);

// `bytes` of memory from the storage's own allocator, on the current device and stream of PyTorch.
// With `stream_id` the allocator is told that this stream uses it too. Throws
// Error("DeviceOutOfMemory").
c10::DataPtr allocate_for(c10::StorageImpl& storage, std::size_t bytes,
                          std::optional<std::int64_t> stream_id);

// Throws Error("InvalidArgument") unless there are as many values as storages.
void require_same_length(std::size_t storages, std::size_t others);

}  // namespace pinferry::bridge
