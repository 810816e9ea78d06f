#pragma once

#include <optional>
#include <vector>

#include "transfer.hpp"

namespace pinferry {

// Storages that lie one after the other in some blocks: storage i at `offsets[i]` of what the
// blocks are together, `sizes[i]` bytes long.
struct Placement {
    Blocks blocks;
    std::vector<std::size_t> offsets;
    std::vector<std::size_t> sizes;
};

// Where the bytes of storages lie in the arena, worked out once for many moves. It does not hold
// the blocks: a list that somebody forgot, in the traceback of an error, must not keep an arena
// open.
class CopyList {
  public:
    // Throws Error("InvalidArgument") unless every storage lies within its blocks.
    explicit CopyList(const std::vector<Placement>& placements);

    std::size_t storages() const noexcept { return storages_; }
    std::size_t bytes() const noexcept { return bytes_; }

    // Where each storage begins, if each lies in one piece that no chunk cuts; else nothing. One
    // without bytes begins at 0.
    std::optional<std::vector<Address>> host_addresses() const;

    // The copies that connect each storage with its device address, but for those of the placements
    // in `skip`. All blocks are named: later copies of them are ordered behind these. Throws
    // Error("InvalidArgument") unless there are as many addresses as storages and there is what is
    // to be skipped, and Error("BlockFreed") if a block is gone.
    Batch batch(const std::vector<Address>& addresses,
                const std::vector<std::size_t>& skip = {}) const;

  private:
    struct Part {
        std::byte* host;
        const std::byte* chunk;  // see CopyRanges
        std::size_t placement;
        std::size_t storage;
        std::size_t offset;  // in the storage
        std::size_t bytes;
    };

    void add_storage(const Blocks& blocks, std::size_t offset, std::size_t size);

    std::vector<std::weak_ptr<Block>> blocks_;  // each once
    std::vector<Part> parts_;
    std::size_t placements_ = 0;
    std::size_t storages_ = 0;
    std::size_t bytes_ = 0;
};

}  // namespace pinferry
