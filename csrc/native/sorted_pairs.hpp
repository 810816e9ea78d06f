#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace pinferry {

// An ordered set of pairs of sizes in blocks of sorted entries, as the leaves of a B-tree. A search
// touches a few cache lines where a tree of nodes follows a pointer a level; nothing is allocated
// while the set does not grow beyond what it has been.
class SortedPairs {
  public:
    struct Entry {
        std::size_t first;
        std::size_t second;

        // Without a branch, which a search would mispredict half of the time.
        bool operator<(const Entry& other) const noexcept {
            return bool(int(first < other.first) |
                        (int(first == other.first) & int(second < other.second)));
        }
        bool operator==(const Entry& other) const noexcept {
            return first == other.first && second == other.second;
        }
    };

    // Where an entry stands. Any change of the set but replace() makes it void.
    struct Position {
        std::size_t block;
        std::size_t slot;

        bool operator==(const Position& other) const noexcept {
            return block == other.block && slot == other.slot;
        }
        bool operator!=(const Position& other) const noexcept { return !(*this == other); }
    };

    // Makes room, so that `entries` calls of insert() cannot fail. Throws std::bad_alloc, changing
    // nothing that can be seen.
    void reserve(std::size_t entries);
    // Takes room that reserve() has made. The entry is not there yet.
    void insert(Entry entry) noexcept;
    void erase(Position position) noexcept;
    // Puts `entry` in the place of the one at `position`; the order must stay what it is.
    void replace(Position position, Entry entry) noexcept;

    // The first entry that is not less.
    Position lower_bound(Entry entry) const noexcept;
    Position begin() const noexcept { return {0, 0}; }
    Position end() const noexcept { return {order_.size(), 0}; }
    // Neighbours: the next of the last is end(); there must be a previous one.
    Position next(Position position) const noexcept;
    Position previous(Position position) const noexcept;
    Entry operator[](Position position) const noexcept {
        return blocks_[order_[position.block]].entries[position.slot];
    }

    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }

  private:
    static constexpr std::size_t block_entries = 64;

    struct Block {
        std::size_t count = 0;
        std::size_t next_idle = 0;
        std::array<Entry, block_entries> entries{};
    };

    Block& block(std::size_t at) noexcept { return blocks_[order_[at]]; }
    std::size_t block_for(Entry entry) const noexcept;
    void add(std::size_t at, std::size_t index) noexcept;
    void drop(std::size_t at) noexcept;
    void split(std::size_t at) noexcept;
    void shrink(std::size_t at) noexcept;
    void join(std::size_t at) noexcept;

    std::vector<Block> blocks_;       // in no order
    std::vector<std::size_t> order_;  // indices of those that hold something, one after the other
    std::vector<Entry> heads_;        // the first entry of each of those
    std::size_t idle_ = 0;            // how many of the blocks hold nothing,
    std::size_t first_idle_ = 0;      // chained from this one
    std::size_t size_ = 0;
};

}  // namespace pinferry
