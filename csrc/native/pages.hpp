#pragma once

#include <cstddef>
#include <optional>

namespace pinferry {

struct PageOptions {
    std::optional<int>
        numa_node;           // preferred node of the pages; nothing leaves the kernel's choice
    bool huge_pages = true;  // ask for transparent huge pages
    unsigned threads = 1;    // threads that touch the pages
};

// Anonymous private memory, aligned to 2 MiB, every page of it present after construction.
// Move-only owner. A child made by fork does not inherit the mapping.
class Pages {
  public:
    // Throws Error("HostMemoryLimit") if the kernel refuses the mapping. Blocks while touching.
    Pages(std::size_t bytes, const PageOptions& options);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

    // What the kernel accepted; a refused hint is not an error, but it is not kept secret either.
    bool huge_pages() const noexcept { return huge_pages_; }
    std::optional<int> numa_node() const noexcept { return numa_node_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    bool huge_pages_ = false;
    std::optional<int> numa_node_;
};

}  // namespace pinferry
