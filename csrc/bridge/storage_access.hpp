#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

namespace pinferry::bridge {

// What PyTorch's public interface does not offer in every supported version (2.6 and newer):
// taking an access guard off a storage again, and asking whether one is on.

// Explicit instantiation may name a private member; this is how the flag is reached.
template <auto Flag>
struct GuardFlag {
    friend bool& guard_flag(c10::StorageImpl& storage) { return storage.*Flag; }
};
bool& guard_flag(c10::StorageImpl& storage);
template struct GuardFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

inline bool guarded(c10::StorageImpl& storage) { return guard_flag(storage); }

// Any access to the storage's data raises RuntimeError(message) from now on.
inline void guard(c10::StorageImpl& storage, std::string message) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

// Lowers the flag only; set_data_ptr_noswap() that follows refreshes what PyTorch derives from it.
inline void unguard(c10::StorageImpl& storage) { guard_flag(storage) = false; }

// The storage's memory, whether it is guarded or not.
inline const c10::DataPtr& data_of(c10::StorageImpl& storage) {
    return storage._mutable_data_ptr_no_checks();
}

}  // namespace pinferry::bridge
