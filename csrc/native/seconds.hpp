#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace pinferry {

// Python's seconds as a timeout; None waits for as long as it takes, and so does what would not
// fit.
inline std::optional<std::chrono::nanoseconds> timeout_from_seconds(std::optional<double> seconds) {
    constexpr double longest = 1e9;  // 31 years, well inside 64-bit nanoseconds
    if (!seconds || !(*seconds < longest)) return std::nullopt;
    const std::chrono::duration<double> wanted(std::max(*seconds, 0.0));
    return std::chrono::duration_cast<std::chrono::nanoseconds>(wanted);
}

}  // namespace pinferry
