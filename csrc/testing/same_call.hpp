#pragma once

#include <cuda.h>

#include <type_traits>

#include "../native/driver_abi.hpp"

namespace pinferry::cuda {

// Parameters agree if they have one size and kind: handles are pointers on both sides, enums
// integers.
template <typename Theirs, typename Ours>
constexpr bool same_parameter =
    sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours>;

template <typename Theirs, typename Ours>
struct SameCall : std::false_type {};
template <typename... Theirs, typename... Ours>
struct SameCall<CUresult (*)(Theirs...), Result (*)(Ours...)>
    : std::bool_constant<sizeof...(Theirs) == sizeof...(Ours)> {
    static constexpr bool parameters = (same_parameter<Theirs, Ours> && ...);
};

}  // namespace pinferry::cuda
