#include "copy_list.hpp"

#include <algorithm>
#include <string>

#include "error.hpp"

namespace pinferry {

CopyList::CopyList(const std::vector<Placement>& placements) {
    for (const Placement& placement : placements) {
        if (placement.offsets.size() != placement.sizes.size()) {
            throw Error("InvalidArgument",
                        "a placement has " + std::to_string(placement.offsets.size()) +
                            " offsets and " + std::to_string(placement.sizes.size()) + " sizes");
        }
        blocks_.insert(blocks_.end(), placement.blocks.begin(), placement.blocks.end());
        for (std::size_t i = 0; i < placement.sizes.size(); ++i) {
            add_storage(placement.blocks, placement.offsets[i], placement.sizes[i]);
        }
        ++placements_;
    }
}

void CopyList::add_storage(const Blocks& blocks, std::size_t offset, std::size_t size) {
    std::size_t done = 0;
    std::size_t skip = offset;
    for (const auto& block : blocks) {
        const std::size_t there = block->bytes();
        if (skip >= there) {
            skip -= there;
            continue;
        }
        if (done == size) break;
        const std::size_t bytes = std::min(size - done, there - skip);
        parts_.push_back(
            {block->data() + skip, block->chunk(), placements_, storages_, done, bytes});
        done += bytes;
        skip = 0;
    }
    if (done != size) {
        throw Error("InvalidArgument", "a storage of " + std::to_string(size) +
                                           " bytes at offset " + std::to_string(offset) +
                                           " ends beyond its blocks");
    }
    ++storages_;
    bytes_ += size;
}

std::optional<std::vector<Address>> CopyList::host_addresses() const {
    std::vector<Address> addresses(storages_, 0);
    const Part* last = nullptr;
    for (const Part& part : parts_) {
        if (!last || part.storage != last->storage) {
            addresses[part.storage] = reinterpret_cast<Address>(part.host);
        } else if (part.chunk != last->chunk || part.host != last->host + last->bytes) {
            return std::nullopt;
        }
        last = &part;
    }
    return addresses;
}

Batch CopyList::batch(const std::vector<Address>& addresses,
                      const std::vector<std::size_t>& skip) const {
    if (addresses.size() != storages_) {
        throw Error("InvalidArgument", std::to_string(storages_) + " storages, but " +
                                           std::to_string(addresses.size()) +
                                           " addresses to go with them");
    }
    std::vector<bool> skipped(placements_, false);
    for (const std::size_t placement : skip) {
        if (placement >= placements_) {
            throw Error("InvalidArgument", "there is no placement " + std::to_string(placement) +
                                               " of " + std::to_string(placements_) + " to skip");
        }
        skipped[placement] = true;
    }
    Batch batch{CopyRanges(parts_.size()), {}};
    batch.blocks.reserve(blocks_.size());
    for (const auto& block : blocks_) {
        batch.blocks.push_back(block.lock());
        if (!batch.blocks.back()) {
            throw Error("BlockFreed", "a block that was to be copied is gone; keep it meanwhile");
        }
    }
    for (const Part& part : parts_) {
        if (skipped[part.placement]) continue;
        batch.ranges.add({part.host, addresses[part.storage] + part.offset, part.bytes}, part.chunk,
                         part.storage);
    }
    return batch;
}

}  // namespace pinferry
