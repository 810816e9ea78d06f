#pragma once

#include <cstddef>
#include <vector>

#include "range.hpp"

namespace pinferry {

// A source off by 64 bytes costs a third of the H2D rate on PCIe 5.0; CUDA's allocators give 512.
constexpr std::size_t block_alignment = 512;

// Where the chunks of an arena lie in its address space. Chunk i begins at i * chunk_bytes, whether
// it is made or not, so that an offset names the same byte for good.
struct ChunkLayout {
    std::vector<Range> chunks;
    std::size_t initial = 0;      // how many of them hold `capacity`
    std::size_t chunk_bytes = 0;  // distance from one to the next

    std::size_t reserved_bytes() const noexcept { return chunks.empty() ? 0 : chunks.back().end(); }
};

// Chunks for `capacity` bytes, and more that may follow up to `max_capacity` in all. Both are
// rounded down to 512 bytes. Throws Error("InvalidSize") for a chunk that is no positive multiple
// of 4096 bytes, for more bytes than a process can address, and for too many chunks.
ChunkLayout lay_out_chunks(std::size_t capacity, std::size_t max_capacity, std::size_t chunk_bytes);

}  // namespace pinferry
