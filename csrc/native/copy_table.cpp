#include "copy_table.hpp"

#include <algorithm>

namespace pinferry {

std::size_t count_units(const std::vector<CopyRange>& ranges) noexcept {
    std::size_t units = 0;
    for (const CopyRange& range : ranges) units += (range.bytes + unit_bytes - 1) / unit_bytes;
    return units;
}

void write_units(Direction direction, const std::vector<CopyRange>& ranges,
                 CopyUnit* table) noexcept {
    for (const CopyRange& range : ranges) {
        const auto host = reinterpret_cast<Address>(range.host);
        const bool out = direction == Direction::to_host;
        const Address source = out ? range.device : host;
        const Address target = out ? host : range.device;
        for (std::size_t done = 0; done < range.bytes; done += unit_bytes) {
            *table++ = {source + done, target + done, std::min(unit_bytes, range.bytes - done)};
        }
    }
}

}  // namespace pinferry
