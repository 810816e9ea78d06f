#pragma once

#include <cstddef>
#include <optional>

#include "chunk_layout.hpp"

namespace pinferry {

struct PageOptions {
    std::optional<int>
        numa_node;           // preferred node of the pages; nothing leaves the kernel's choice
    bool huge_pages = true;  // ask for transparent huge pages
    unsigned threads = 1;    // threads that touch the pages
};

// Address space for the chunks of an arena, aligned to 2 MiB. A chunk is given anonymous private
// pages and loses them again; without them it cannot be accessed. A child made by fork does not
// inherit any of it. Calls for different chunks may be made from several threads.
class Pages {
  public:
    // Takes address space only. Throws Error("HostMemoryLimit") if the kernel refuses.
    Pages(const ChunkLayout& layout, const PageOptions& options);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    // Makes every page of a chunk present. Blocks while touching. Throws Error("HostMemoryLimit")
    // if the kernel refuses.
    void populate(Range chunk);
    // Gives its pages back to the system.
    void discard(Range chunk) noexcept;

    std::byte* data() const noexcept { return data_; }

    // What the kernel accepted; a refused hint is not an error, but it is not kept secret either.
    bool huge_pages() const noexcept { return huge_pages_; }
    std::optional<int> numa_node() const noexcept { return numa_node_; }

  private:
    std::size_t room_of(Range chunk) const noexcept;

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t chunk_bytes_ = 0;
    unsigned threads_ = 1;
    bool huge_pages_ = false;
    std::optional<int> numa_node_;
};

}  // namespace pinferry
