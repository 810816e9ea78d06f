#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "../native/free_list.hpp"
#include "check.hpp"

using pinferry::FreeList;
using pinferry::Range;

namespace {

constexpr std::size_t unit = 512;
constexpr std::size_t largest = ~std::size_t{0};

// Takes everything there is, in units, so that ranges can be given back where a test wants them.
void drain(FreeList& list) {
    while (list.allocate_largest(largest)) {
    }
    CHECK(list.free_bytes() == 0);
}

// The allocator, told naively: one flag a unit.
class Model {
  public:
    Model(std::size_t units, std::size_t chunk) : taken_(units, false), chunk_(chunk) {}

    // Lengths of the free ranges, none across a chunk border.
    std::multiset<std::size_t> free_lengths() const {
        std::multiset<std::size_t> lengths;
        std::size_t length = 0;
        for (std::size_t i = 0; i <= taken_.size(); ++i) {
            const bool ends = i == taken_.size() || taken_[i] || i % chunk_ == 0;
            if (ends && length > 0) lengths.insert(length);
            if (ends) length = 0;
            if (i < taken_.size() && !taken_[i]) ++length;
        }
        return lengths;
    }
    bool all(std::size_t begin, std::size_t count, bool taken) const {
        for (std::size_t i = begin; i < begin + count; ++i) {
            if (i >= taken_.size() || taken_[i] != taken) return false;
        }
        return true;
    }
    void set(std::size_t begin, std::size_t count, bool taken) {
        for (std::size_t i = begin; i < begin + count; ++i) taken_[i] = taken;
    }
    // Length of the free range that [begin, begin + count) is cut from.
    std::size_t length_around(std::size_t begin, std::size_t count) const {
        std::size_t end = begin + count;
        while (begin % chunk_ != 0 && !taken_[begin - 1]) --begin;
        while (end % chunk_ != 0 && end < taken_.size() && !taken_[end]) ++end;
        return end - begin;
    }

  private:
    std::vector<bool> taken_;
    std::size_t chunk_;
};

void compare(const FreeList& list, const Model& model) {
    const auto lengths = model.free_lengths();
    std::size_t free_units = 0;
    for (const std::size_t length : lengths) free_units += length;
    CHECK(list.free_bytes() == free_units * unit);
    CHECK(list.free_ranges() == lengths.size());
    CHECK(list.largest_free() == (lengths.empty() ? 0 : *lengths.rbegin() * unit));
}

void check_allocation(Model& model, const std::optional<Range>& range, std::size_t units,
                      bool best_fit) {
    const auto lengths = model.free_lengths();
    if (best_fit) {
        const auto fits = lengths.lower_bound(units);
        CHECK(range.has_value() == (fits != lengths.end()));
        if (!range) return;
        CHECK(range->size == units * unit);
        CHECK(model.length_around(range->offset / unit, units) == *fits);
    } else {
        CHECK(range.has_value() == !lengths.empty());
        if (!range) return;
        CHECK(range->size == std::min(units, *lengths.rbegin()) * unit);
        CHECK(model.length_around(range->offset / unit, range->size / unit) == *lengths.rbegin());
    }
    const std::size_t begin = range->offset / unit, count = range->size / unit;
    CHECK(range->offset % unit == 0);
    CHECK(model.all(begin, count, false));
    model.set(begin, count, true);
}

// Plays every sequence of `depth` moves on a list of six units in chunks of four.
void play_all(const FreeList& list, const Model& model, const std::vector<Range>& held, int depth) {
    compare(list, model);
    if (depth == 0) return;
    for (std::size_t units = 1; units <= 5; ++units) {
        for (const bool best_fit : {true, false}) {
            FreeList next = list;
            Model next_model = model;
            const auto range = best_fit ? next.allocate(units * unit - unit / 2)
                                        : next.allocate_largest(units * unit);
            check_allocation(next_model, range, units, best_fit);
            auto next_held = held;
            if (range) next_held.push_back(*range);
            if (range) play_all(next, next_model, next_held, depth - 1);
        }
    }
    for (std::size_t i = 0; i < held.size(); ++i) {
        FreeList next = list;
        Model next_model = model;
        next.release(held[i]);
        next_model.set(held[i].offset / unit, held[i].size / unit, false);
        auto next_held = held;
        next_held.erase(next_held.begin() + static_cast<std::ptrdiff_t>(i));
        play_all(next, next_model, next_held, depth - 1);
    }
}

}  // namespace

TEST_CASE("the smallest range that is large enough is cut") {
    FreeList list(20 * unit, 20 * unit, unit);
    drain(list);
    list.release({0, 5 * unit});
    list.release({6 * unit, 2 * unit});
    list.release({10 * unit, 3 * unit});
    CHECK(list.allocate(2 * unit) == Range{6 * unit, 2 * unit});
    CHECK(list.allocate(2 * unit) == Range{10 * unit, 2 * unit});
    CHECK(list.allocate(1) == Range{12 * unit, unit});
    CHECK(list.allocate(4 * unit) == Range{0, 4 * unit});
    CHECK(!list.allocate(2 * unit));
    CHECK(list.free_bytes() == unit);
}

TEST_CASE("the largest range is taken first where several pieces are wanted") {
    FreeList list(20 * unit, 20 * unit, unit);
    drain(list);
    list.release({0, 2 * unit});
    list.release({5 * unit, 4 * unit});
    CHECK(list.allocate_largest(10 * unit) == Range{5 * unit, 4 * unit});
    CHECK(list.allocate_largest(unit + 1) == Range{0, 2 * unit});
    CHECK(!list.allocate_largest(1));
}

TEST_CASE("a range that comes back joins both of its neighbours") {
    FreeList list(8 * unit, 8 * unit, unit);
    drain(list);
    list.release({0, 2 * unit});
    list.release({4 * unit, 4 * unit});
    CHECK(list.free_ranges() == 2);
    list.release({2 * unit, 2 * unit});
    CHECK(list.free_ranges() == 1);
    CHECK(list.allocate(8 * unit) == Range{0, 8 * unit});
}

TEST_CASE("ranges do not join across a chunk border") {
    FreeList list(10 * unit, 4 * unit, unit);
    CHECK(list.free_ranges() == 3);
    CHECK(list.largest_free() == 4 * unit);
    drain(list);
    for (std::size_t i = 10; i > 0; --i) list.release({(i - 1) * unit, unit});
    CHECK(list.free_ranges() == 3);
    CHECK(list.largest_free() == 4 * unit);
    CHECK(!list.allocate(4 * unit + 1));
}

TEST_CASE("a double release throws and changes nothing") {
    FreeList list(8 * unit, 4 * unit, unit);
    const auto range = list.allocate(3 * unit);
    const auto other = list.allocate(2 * unit);
    list.release(*range);
    const std::size_t free_bytes = list.free_bytes(), ranges = list.free_ranges();
    CHECK_THROWS(std::logic_error, (list.release(*range), 0));
    // Partly free: its head, its tail, its middle, and all of it with more around.
    CHECK_THROWS(std::logic_error, (list.release({0, 8 * unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({range->offset, unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({range->offset + unit, unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({other->offset + unit, 2 * unit}), 0));
    CHECK(list.free_bytes() == free_bytes);
    CHECK(list.free_ranges() == ranges);
    list.release(*other);
    CHECK(list.free_bytes() == 8 * unit);
    CHECK(list.free_ranges() == 2);
    CHECK(list.largest_free() == 4 * unit);
}

TEST_CASE("a range outside the arena cannot be released") {
    FreeList list(4 * unit, 4 * unit, unit);
    drain(list);
    CHECK_THROWS(std::logic_error, (list.release({4 * unit, unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({3 * unit, 2 * unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({largest - unit + 1, unit}), 0));
    CHECK_THROWS(std::logic_error, (list.release({unit, largest - unit + 1}), 0));
    CHECK(list.free_bytes() == 0);
}

TEST_CASE("ranges of no bytes take nothing and may be released at any time") {
    FreeList list(unit, unit, unit);
    drain(list);
    const auto empty = list.allocate(0);
    CHECK(empty == Range{0, 0});
    list.release(*empty);
    list.release(*empty);
    CHECK(list.free_bytes() == 0);
    CHECK(list.free_ranges() == 0);
}

TEST_CASE("an aligned range is found behind however many holes that are badly placed") {
    constexpr std::size_t page = 8 * unit;
    constexpr std::size_t holes = 70;
    constexpr std::size_t end = (3 * holes + 4) * page;
    FreeList list(end, end, unit);
    drain(list);
    for (std::size_t i = 0; i < holes; ++i) list.release({3 * i * page + unit, page});
    CHECK(!list.allocate_aligned(page, page));
    CHECK(list.free_bytes() == holes * page);
    const Range placed{(3 * holes - 1) * page, page};
    list.release(placed);
    CHECK(list.allocate_aligned(page, page) == placed);
    // A hole that fits wherever it begins is as good, and saves the search.
    list.release(placed);
    list.release({end - 3 * page + unit, 2 * page - unit});
    CHECK(list.allocate_aligned(page, page) == Range{end - 2 * page, page});
    CHECK(list.allocate_aligned(page, page) == placed);
    CHECK(!list.allocate_aligned(page, page));
    CHECK(list.free_bytes() == (holes + 1) * page - unit);
}

TEST_CASE("sizes beyond any memory are refused without wrapping") {
    FreeList list(4 * unit, 4 * unit, unit);
    for (const std::size_t bytes : {largest, largest - unit, largest - unit + 2, largest / 2 + 1}) {
        CHECK(!list.allocate(bytes));
        CHECK(list.rounded(bytes) >= largest / 2);
        CHECK(list.rounded(bytes) % unit == 0);
    }
    CHECK(list.allocate_largest(largest) == Range{0, 4 * unit});
}

TEST_CASE("a capacity is rounded down and may be empty") {
    CHECK(FreeList(3 * unit - 1, 8 * unit, unit).capacity() == 2 * unit);
    FreeList empty(unit - 1, unit, unit);
    CHECK(empty.capacity() == 0);
    CHECK(empty.largest_free() == 0);
    CHECK(!empty.allocate(1));
    CHECK(!empty.allocate_largest(1));
}

TEST_CASE("an alignment or chunk that makes no sense is refused") {
    CHECK_THROWS(std::invalid_argument, FreeList(unit, unit, 0));
    CHECK_THROWS(std::invalid_argument, FreeList(unit, unit, 3));
    CHECK_THROWS(std::invalid_argument, FreeList(unit, 0, unit));
    CHECK_THROWS(std::invalid_argument, FreeList(unit, unit + 1, unit));
}

TEST_CASE("every short game of allocating and releasing agrees with a bitmap") {
    play_all(FreeList(6 * unit, 4 * unit, unit), Model(6, 4), {}, 5);
}

TEST_CASE("a long random game agrees with a bitmap") {
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        std::mt19937 random(seed);
        FreeList list(100 * unit, 32 * unit, unit);
        Model model(100, 32);
        std::vector<Range> held;
        for (int move = 0; move < 3000; ++move) {
            if (random() % 2 == 0 || held.empty()) {
                const std::size_t units = 1 + random() % (random() % 4 == 0 ? 34 : 6);
                const bool best_fit = random() % 3 != 0;
                const auto range = best_fit ? list.allocate(units * unit - random() % unit)
                                            : list.allocate_largest(units * unit);
                check_allocation(model, range, units, best_fit);
                if (range) held.push_back(*range);
            } else {
                std::swap(held[random() % held.size()], held.back());
                list.release(held.back());
                model.set(held.back().offset / unit, held.back().size / unit, false);
                held.pop_back();
            }
            compare(list, model);
        }
    }
}
