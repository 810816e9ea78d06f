#include "format_bytes.hpp"

#include <array>
#include <cstdio>

namespace pinferry {

std::string format_bytes(std::size_t bytes) {
    constexpr std::array<const char*, 6> units = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) return std::to_string(bytes) + " bytes";
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < units.size()) {
        value /= 1024;
        ++unit;
    }
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.2f %s (%zu bytes)", value, units[unit], bytes);
    return text.data();
}

}  // namespace pinferry
