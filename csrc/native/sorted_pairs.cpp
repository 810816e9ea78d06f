#include "sorted_pairs.hpp"

#include <algorithm>

namespace pinferry {
namespace {

using Entry = SortedPairs::Entry;

// std::vector::reserve may take exactly what is asked for, which would copy at every call.
template <typename T>
void reserve_more(std::vector<T>& vector, std::size_t size) {
    if (vector.capacity() < size) vector.reserve(2 * size);
}

template <typename T>
auto place(std::vector<T>& vector, std::size_t index) {
    return vector.begin() + static_cast<std::ptrdiff_t>(index);
}

// How many of the sorted entries are less. As std::lower_bound, without its branches.
std::size_t count_less(const Entry* entries, std::size_t count, Entry entry) noexcept {
    if (count == 0) return 0;
    const Entry* base = entries;
    while (count > 1) {
        const std::size_t half = count / 2;
        base += half * std::size_t(base[half - 1] < entry);
        count -= half;
    }
    return std::size_t(base - entries) + std::size_t(*base < entry);
}

}  // namespace

void SortedPairs::reserve(std::size_t entries) {
    // An entry splits one block at most, and the first of all needs one.
    reserve_more(order_, order_.size() + entries);
    reserve_more(heads_, heads_.size() + entries);
    if (idle_ < entries) reserve_more(blocks_, blocks_.size() + entries - idle_);
    while (idle_ < entries) {
        Block& fresh = blocks_.emplace_back();
        fresh.next_idle = first_idle_;
        first_idle_ = blocks_.size() - 1;
        ++idle_;
    }
}

void SortedPairs::insert(Entry entry) noexcept {
    ++size_;
    if (order_.empty()) {
        add(0, first_idle_);
        heads_.front() = entry;
    }
    std::size_t index = block_for(entry);
    if (block(index).count == block_entries) {
        split(index);
        if (heads_[index + 1] < entry) ++index;
    }
    Block& target = block(index);
    Entry* const begin = target.entries.data();
    Entry* const end = begin + target.count;
    Entry* const slot = begin + count_less(begin, target.count, entry);
    std::copy_backward(slot, end, end + 1);
    *slot = entry;
    ++target.count;
    heads_[index] = *begin;
}

void SortedPairs::erase(Position position) noexcept {
    --size_;
    Block& target = block(position.block);
    Entry* const slot = target.entries.data() + position.slot;
    std::copy(slot + 1, target.entries.data() + target.count, slot);
    if (--target.count == 0) return drop(position.block);
    heads_[position.block] = target.entries.front();
    shrink(position.block);
}

void SortedPairs::replace(Position position, Entry entry) noexcept {
    block(position.block).entries[position.slot] = entry;
    if (position.slot == 0) heads_[position.block] = entry;
}

// The last block that begins at or before `entry`, or the first.
std::size_t SortedPairs::block_for(Entry entry) const noexcept {
    const std::size_t below = count_less(heads_.data(), heads_.size(), entry);
    const bool begins_there = below < heads_.size() && heads_[below] == entry;
    return begins_there || below == 0 ? below : below - 1;
}

SortedPairs::Position SortedPairs::lower_bound(Entry entry) const noexcept {
    if (empty()) return end();
    const std::size_t index = block_for(entry);
    const Block& found = blocks_[order_[index]];
    const std::size_t slot = count_less(found.entries.data(), found.count, entry);
    return slot == found.count ? Position{index + 1, 0} : Position{index, slot};
}

SortedPairs::Position SortedPairs::next(Position position) const noexcept {
    const bool last = position.slot + 1 == blocks_[order_[position.block]].count;
    return last ? Position{position.block + 1, 0} : Position{position.block, position.slot + 1};
}

SortedPairs::Position SortedPairs::previous(Position position) const noexcept {
    if (position.slot > 0) return {position.block, position.slot - 1};
    return {position.block - 1, blocks_[order_[position.block - 1]].count - 1};
}

// Takes the block `index`, the first of the idle ones, into the order.
void SortedPairs::add(std::size_t at, std::size_t index) noexcept {
    first_idle_ = blocks_[index].next_idle;
    --idle_;
    order_.insert(place(order_, at), index);
    heads_.insert(place(heads_, at), blocks_[index].entries.front());
}

void SortedPairs::drop(std::size_t at) noexcept {
    Block& dropped = block(at);
    dropped.count = 0;
    dropped.next_idle = first_idle_;
    first_idle_ = order_[at];
    ++idle_;
    order_.erase(place(order_, at));
    heads_.erase(place(heads_, at));
}

// The upper half of a full block goes to one that follows it.
void SortedPairs::split(std::size_t at) noexcept {
    const std::size_t index = first_idle_;
    Block& lower = block(at);
    Block& upper = blocks_[index];
    constexpr std::size_t half = block_entries / 2;
    std::copy(lower.entries.begin() + half, lower.entries.end(), upper.entries.begin());
    upper.count = block_entries - half;
    lower.count = half;
    add(at + 1, index);
}

// A block that has become small is joined with a neighbour, if both leave room to grow.
void SortedPairs::shrink(std::size_t at) noexcept {
    if (block(at).count > block_entries / 4) return;
    const auto fit = [&](std::size_t lower) {
        return block(lower).count + block(lower + 1).count <= block_entries * 3 / 4;
    };
    if (at + 1 < order_.size() && fit(at)) {
        join(at);
    } else if (at > 0 && fit(at - 1)) {
        join(at - 1);
    }
}

// A block takes in the one that follows.
void SortedPairs::join(std::size_t at) noexcept {
    Block& lower = block(at);
    const Block& upper = block(at + 1);
    std::copy_n(upper.entries.data(), upper.count, lower.entries.data() + lower.count);
    lower.count += upper.count;
    drop(at + 1);
}

}  // namespace pinferry
