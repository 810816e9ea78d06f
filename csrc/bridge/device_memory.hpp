#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage_handle.hpp"

namespace pinferry::bridge {

// Device memory taken from storages. Dropping it gives it back to the allocators it came from.
struct ReleasedMemory {
    std::vector<c10::DataPtr> parts;
};

// Device memory made for storages, which it keeps alive, and not yet theirs.
class FreshMemory {
  public:
    FreshMemory(std::vector<StoragePtr> storages, std::vector<c10::DataPtr> parts)
        : storages_(std::move(storages)), parts_(std::move(parts)) {}

    std::vector<std::uintptr_t> addresses() const;

    // Gives each storage its part and lifts its guard. Cannot fail; a second call does nothing. The
    // storages are kept alive until this object dies: a copy may still run into their memory.
    void install() noexcept;

  private:
    std::vector<StoragePtr> storages_;
    std::vector<c10::DataPtr> parts_;
};

using Owners = std::vector<std::shared_ptr<void>>;

// Takes the memory from every storage and guards it: any access through any view then raises
// RuntimeError(messages[i]). Sizes, shapes and identities stay. Each storage keeps owners[i] alive
// until it is given memory again or dies. With `stream_id` (torch.Stream's) the allocator is told
// that this stream uses the memory, so it may be dropped while a copy still runs. Either all
// storages or none are changed.
std::unique_ptr<ReleasedMemory> release(const Handles& storages, std::vector<std::string> messages,
                                        const Owners& owners,
                                        std::optional<std::int64_t> stream_id);

// Allocates memory of each storage's size by its own allocator, on the current device and stream of
// PyTorch, and leaves the storages as they are. With `stream_id` the allocator is told that this
// stream uses the memory too. Throws Error("DeviceOutOfMemory") having kept nothing.
std::unique_ptr<FreshMemory> allocate(const Handles& storages,
                                      std::optional<std::int64_t> stream_id);

// Points each storage at memory that it does not own, `owners[i]` keeping it alive, and lifts the
// guards. What the storage had before goes back to its allocator.
void point_at(const Handles& storages, const std::vector<std::uintptr_t>& addresses,
              const Owners& owners);

// Changes what an access to guarded storages says.
void set_messages(const Handles& storages, std::vector<std::string> messages);

}  // namespace pinferry::bridge
