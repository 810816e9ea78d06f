#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pinferry::bridge {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

// "" if the storage's memory can be given back and made again by its own allocator, else why not.
const char* refusal_of(c10::StorageImpl& storage);

// A weak reference to a storage: it neither keeps the bytes alive nor lets the address of the dead
// storage be taken by a new one, so `key` names one storage for as long as the handle lives.
class StorageHandle {
  public:
    // `cdata` is the address of a live StorageImpl (torch.UntypedStorage._cdata).
    explicit StorageHandle(std::uintptr_t cdata);

    std::uintptr_t key() const noexcept { return key_; }
    bool alive() const noexcept { return weak_.use_count() > 0; }

    // The storage. Throws Error("StorageChanged") once it is gone.
    StoragePtr lock() const;
    // The same, or null.
    StoragePtr try_lock() const noexcept { return weak_.lock(); }

    std::size_t bytes() const { return lock()->nbytes(); }
    std::uintptr_t address() const;  // 0 while offloaded
    std::string device() const { return lock()->device().str(); }
    bool guarded() const;
    bool away() const;  // see bridge::away

    std::string refusal() const { return refusal_of(*lock()); }

  private:
    std::uintptr_t key_;
    c10::weak_intrusive_ptr<c10::StorageImpl> weak_;
};

using Handles = std::vector<StorageHandle*>;

}  // namespace pinferry::bridge
