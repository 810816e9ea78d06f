#include <iterator>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "../native/sorted_pairs.hpp"
#include "check.hpp"

using pinferry::SortedPairs;
using Entry = SortedPairs::Entry;

namespace {

using Model = std::set<std::pair<std::size_t, std::size_t>>;

void insert(SortedPairs& pairs, Entry entry) {
    pairs.reserve(1);
    pairs.insert(entry);
}

// Forwards and backwards.
void check_equal(const SortedPairs& pairs, const Model& model) {
    CHECK(pairs.size() == model.size());
    CHECK(pairs.empty() == model.empty());
    auto at = pairs.begin();
    for (const auto& [first, second] : model) {
        CHECK(at != pairs.end() && pairs[at] == (Entry{first, second}));
        at = pairs.next(at);
    }
    CHECK(at == pairs.end());
    for (auto entry = model.rbegin(); entry != model.rend(); ++entry) {
        at = pairs.previous(at);
        CHECK(pairs[at] == (Entry{entry->first, entry->second}));
    }
    CHECK(at == pairs.begin());
}

void check_lower_bound(const SortedPairs& pairs, const Model& model, Entry entry) {
    const auto found = pairs.lower_bound(entry);
    const auto expected = model.lower_bound({entry.first, entry.second});
    CHECK((found == pairs.end()) == (expected == model.end()));
    if (expected == model.end() || found == pairs.end()) return;
    CHECK(pairs[found] == (Entry{expected->first, expected->second}));
}

}  // namespace

TEST_CASE("an empty set finds nothing") {
    const SortedPairs pairs;
    check_equal(pairs, {});
    check_lower_bound(pairs, {}, {0, 0});
}

TEST_CASE("entries are ordered by the first number, then by the second") {
    SortedPairs pairs;
    for (const Entry entry : {Entry{2, 1}, {1, 9}, {2, 0}, {~std::size_t{0}, 0}, {0, 5}}) {
        insert(pairs, entry);
    }
    check_equal(pairs, {{0, 5}, {1, 9}, {2, 0}, {2, 1}, {~std::size_t{0}, 0}});
}

TEST_CASE("it equals an ordered set, whatever comes and goes, at every size") {
    std::mt19937 random(7);
    SortedPairs pairs;
    Model model;
    // Grows and shrinks across many blocks; few values, so that first numbers repeat.
    for (const std::size_t wanted : {3000, 5, 1000, 0, 4000, 500, 2000, 0, 70}) {
        while (model.size() != wanted) {
            const bool grows = model.size() < wanted ? random() % 4 != 0 : random() % 4 == 0;
            const Entry entry{random() % 500, random() % 500};
            check_lower_bound(pairs, model, entry);
            if (grows && model.insert({entry.first, entry.second}).second) {
                insert(pairs, entry);
            } else if (!grows && !model.empty()) {
                auto gone = model.lower_bound({entry.first, entry.second});
                if (gone == model.end()) gone = model.begin();
                pairs.erase(pairs.lower_bound({gone->first, gone->second}));
                model.erase(gone);
            }
            if (random() % 64 == 0) check_equal(pairs, model);
        }
        check_equal(pairs, model);
    }
}

TEST_CASE("entries that come in order, from either side, leave in order, from either side") {
    constexpr std::size_t many = 1000;
    for (const bool rising : {false, true}) {
        for (const bool first_leaves : {false, true}) {
            SortedPairs pairs;
            Model model;
            for (std::size_t i = 0; i < many; ++i) {
                const std::size_t value = rising ? i : many - i;
                insert(pairs, {value, 0});
                model.insert({value, 0});
            }
            check_equal(pairs, model);
            while (!model.empty()) {
                const auto gone = first_leaves ? model.begin() : std::prev(model.end());
                pairs.erase(first_leaves ? pairs.begin() : pairs.previous(pairs.end()));
                model.erase(gone);
                if (model.size() % 50 == 0) check_equal(pairs, model);
            }
        }
    }
}

TEST_CASE("an entry replaced at the head of a block is found there") {
    SortedPairs pairs;
    Model model;
    for (std::size_t i = 0; i < 500; ++i) insert(pairs, {10 * i, 0});
    for (std::size_t i = 0; i < 500; ++i) {
        pairs.replace(pairs.lower_bound({10 * i, 0}), {10 * i + 5, 1});
        model.insert({10 * i + 5, 1});
    }
    check_equal(pairs, model);
    for (std::size_t i = 0; i < 500; ++i) check_lower_bound(pairs, model, {10 * i, 0});
}

TEST_CASE("room that was made is enough for as many entries, in a copy too once it asks") {
    SortedPairs pairs;
    pairs.reserve(300);
    Model model;
    for (std::size_t i = 0; i < 300; ++i) {
        pairs.insert({i * 7919 % 300, i});
        model.insert({i * 7919 % 300, i});
    }
    SortedPairs copy = pairs;
    for (std::size_t i = 300; i < 900; ++i) insert(copy, {i, i});
    check_equal(pairs, model);
    for (std::size_t i = 300; i < 900; ++i) model.insert({i, i});
    check_equal(copy, model);
}
