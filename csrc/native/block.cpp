#include <algorithm>

#include "arena.hpp"

namespace pinferry {

Block::Block(std::shared_ptr<Arena> arena, Range range, std::size_t bytes)
    : arena_(std::move(arena)), range_(range), bytes_(bytes) {}

Block::~Block() { arena_->give_back(range_, std::move(uses_)); }

const std::byte* Block::chunk() const noexcept {
    return arena_->memory().address(range_.offset - range_.offset % arena_->chunk_bytes_);
}

void Block::add_use(std::shared_ptr<Event> event) {
    const std::lock_guard lock(mutex_);
    const auto complete = [](const std::shared_ptr<Event>& use) { return use->complete(); };
    uses_.erase(std::remove_if(uses_.begin(), uses_.end(), complete), uses_.end());
    uses_.push_back(std::move(event));
}

Events Block::pending_uses() const {
    const std::lock_guard lock(mutex_);
    return uses_;
}

}  // namespace pinferry
