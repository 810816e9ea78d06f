#pragma once

#include <cstddef>

namespace pinferry {

enum class Direction { to_host, to_device };  // D2H, H2D

// What copies queue on: each direction has one lane for bulk and one for what is urgent. Within a
// lane they run in order. Between lanes only events order anything, and urgent copies go between
// the pieces of the others.
struct Lane {
    // NOLINTNEXTLINE(google-explicit-constructor): a direction alone means its bulk
    constexpr Lane(Direction direction, bool urgent = false) noexcept
        : direction(direction), urgent(urgent) {}

    static constexpr std::size_t count = 4;
    constexpr std::size_t index() const noexcept {
        return 2 * static_cast<std::size_t>(direction) + (urgent ? 1 : 0);
    }

    Direction direction;
    bool urgent;
};

}  // namespace pinferry
