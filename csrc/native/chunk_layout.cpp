#include "chunk_layout.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "error.hpp"
#include "format_bytes.hpp"

namespace pinferry {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t address_space = std::size_t{1} << 47;  // user space on x86-64 and arm64
constexpr std::size_t most_chunks = std::size_t{1} << 20;

}  // namespace

ChunkLayout lay_out_chunks(std::size_t capacity, std::size_t max_capacity,
                           std::size_t chunk_bytes) {
    if (chunk_bytes == 0 || chunk_bytes % page_bytes != 0) {
        throw Error("InvalidSize", "a chunk is a positive multiple of 4096 bytes, and " +
                                       std::to_string(chunk_bytes) + " is not");
    }
    max_capacity = std::max(capacity, max_capacity);
    const auto requested =
        static_cast<std::int64_t>(std::min<std::size_t>(max_capacity, INT64_MAX));
    if (max_capacity > address_space || chunk_bytes > address_space) {
        throw Error(
            "InvalidSize",
            format_bytes(std::max(max_capacity, chunk_bytes)) + " cannot be addressed by a process",
            {{"requested", requested}});
    }
    if (max_capacity / chunk_bytes >= most_chunks) {
        throw Error("InvalidSize",
                    format_bytes(max_capacity) + " in chunks of " + format_bytes(chunk_bytes) +
                        " are more than a million chunks; take larger ones",
                    {{"requested", requested}});
    }
    capacity -= capacity % block_alignment;
    max_capacity -= max_capacity % block_alignment;
    ChunkLayout layout;
    layout.chunk_bytes = chunk_bytes;
    const auto add = [&](std::size_t bytes) {
        for (std::size_t left = bytes; left > 0; left -= std::min(left, chunk_bytes)) {
            layout.chunks.push_back(
                {layout.chunks.size() * chunk_bytes, std::min(left, chunk_bytes)});
        }
    };
    add(capacity);
    layout.initial = layout.chunks.size();
    add(max_capacity - capacity);
    return layout;
}

}  // namespace pinferry
