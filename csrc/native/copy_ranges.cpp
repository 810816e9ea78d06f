#include "copy_ranges.hpp"

namespace pinferry {

void CopyRanges::add(const CopyRange& range, const std::byte* chunk, std::size_t allocation) {
    if (range.bytes == 0) return;
    bytes_ += range.bytes;
    if (!list_.empty() && chunk == last_chunk_ && allocation == last_allocation_) {
        CopyRange& last = list_.back();
        if (last.host + last.bytes == range.host && last.device + last.bytes == range.device) {
            last.bytes += range.bytes;
            return;
        }
    }
    list_.push_back(range);
    last_chunk_ = chunk;
    last_allocation_ = allocation;
}

}  // namespace pinferry
