#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>

namespace pinferry::bridge {

// One allocation of PyTorch's that many storages share, each with a slice of it. Thousands of small
// storages are then one range to copy, and one block to ask for and to give back.
//
// The allocator knows only the whole. What other code tells it about a slice (record_stream) is
// lost, so a slab of which a slice died in any way but release_slice() waits for its device before
// it goes back.
class Slab : public c10::intrusive_ptr_target {
  public:
    Slab(c10::DataPtr memory, std::size_t bytes) noexcept
        : memory_(std::move(memory)), bytes_(bytes) {}
    ~Slab() override;

    const c10::DataPtr& memory() const noexcept { return memory_; }
    std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
    std::size_t bytes() const noexcept { return bytes_; }
    void wait_before_free() noexcept { waits_ = true; }

  private:
    c10::DataPtr memory_;
    std::size_t bytes_;
    std::atomic<bool> waits_{false};
};

using SlabPtr = c10::intrusive_ptr<Slab>;

// Memory for a storage: what begins `offset` bytes into the slab. Keeps the slab, and allocates
// nothing.
c10::DataPtr make_slice(const SlabPtr& slab, std::size_t offset) noexcept;

// The slab that `memory` is a slice of; null if it is none.
const Slab* slab_of(const c10::DataPtr& memory) noexcept;

// Takes the slab from a slice whose reuse the caller has ordered.
SlabPtr release_slice(c10::DataPtr memory) noexcept;

}  // namespace pinferry::bridge
