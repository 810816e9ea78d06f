#include <array>
#include <random>
#include <vector>

#include "../native/copy_ranges.hpp"
#include "../native/copy_table.hpp"
#include "check.hpp"

using namespace pinferry;

namespace {

std::array<std::byte, 65536> arena;
constexpr Address device = 0x7f0000000000;

struct Listed {
    std::size_t host;    // offset in the arena
    std::size_t device;  // and in device memory
    std::size_t bytes;
};

std::vector<Listed> joined(const std::vector<Listed>& ranges, std::size_t chunk_bytes = 65536) {
    CopyRanges made(ranges.size());
    for (const Listed& range : ranges) {
        made.add({arena.data() + range.host, device + range.device, range.bytes},
                 arena.data() + range.host / chunk_bytes * chunk_bytes, 0);
    }
    std::vector<Listed> listed;
    for (const CopyRange& range : made.list()) {
        listed.push_back({static_cast<std::size_t>(range.host - arena.data()),
                          range.device - device, range.bytes});
    }
    return listed;
}

bool same(const std::vector<Listed>& left, const std::vector<Listed>& right) {
    if (left.size() != right.size()) return false;
    for (std::size_t i = 0; i < left.size(); ++i) {
        if (left[i].host != right[i].host || left[i].device != right[i].device ||
            left[i].bytes != right[i].bytes) {
            return false;
        }
    }
    return true;
}

}  // namespace

TEST_CASE("neighbours on both sides become one range") {
    CHECK(same(joined({{0, 0, 512}, {512, 512, 512}, {1024, 1024, 100}}), {{0, 0, 1124}}));
    CHECK(same(joined({{512, 4096, 1}, {513, 4097, 1}}), {{512, 4096, 2}}));
}

TEST_CASE("neighbours on one side alone stay apart") {
    const std::vector<Listed> on_host{{0, 0, 512}, {512, 1024, 512}};
    const std::vector<Listed> on_device{{0, 0, 512}, {1024, 512, 512}};
    CHECK(same(joined(on_host), on_host));
    CHECK(same(joined(on_device), on_device));
}

TEST_CASE("ranges that overlap, repeat or go backwards stay apart") {
    for (const std::vector<Listed>& ranges : std::vector<std::vector<Listed>>{
             {{0, 0, 512}, {511, 511, 512}},
             {{0, 0, 512}, {0, 0, 512}},
             {{512, 512, 512}, {0, 0, 512}},
         }) {
        CHECK(same(joined(ranges), ranges));
    }
}

TEST_CASE("no range reaches from one chunk into the next") {
    const std::vector<Listed> ranges{{0, 0, 512}, {512, 512, 512}, {1024, 1024, 512}};
    CHECK(same(joined(ranges, 1024), {{0, 0, 1024}, {1024, 1024, 512}}));
    CHECK(same(joined(ranges, 512), ranges));
    // Of two arenas that happen to touch, too: there the chunks have nothing to do with each other.
    CopyRanges made(2);
    made.add({arena.data(), device, 512}, arena.data(), 0);
    made.add({arena.data() + 512, device + 512, 512}, arena.data() + 512, 0);
    CHECK(made.list().size() == 2);
}

TEST_CASE("no range reaches from one allocation of the device into the next") {
    CopyRanges made(3);
    made.add({arena.data(), device, 512}, arena.data(), 1);
    made.add({arena.data() + 512, device + 512, 512}, arena.data(), 2);
    made.add({arena.data() + 1024, device + 1024, 512}, arena.data(), 2);
    CHECK(made.list().size() == 2);
    CHECK(made.list().back().bytes == 1024);
    CHECK(made.bytes() == 1536);
}

TEST_CASE("ranges of no bytes are left out, and part nobody") {
    CHECK(joined({}).empty());
    CHECK(joined({{0, 0, 0}, {512, 512, 0}}).empty());
    CHECK(same(joined({{0, 0, 512}, {4096, 9, 0}, {512, 512, 512}}), {{0, 0, 1024}}));
}

TEST_CASE("whatever is joined, the same bytes go to the same places") {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::vector<Listed> ranges;
        std::size_t host = 0, there = 0;
        while (host < 60000) {
            const std::size_t bytes = random() % 3 == 0 ? 0 : random() % 2000;
            ranges.push_back({host, there, bytes});
            host += bytes + (random() % 3 == 0 ? random() % 700 : 0);
            there += bytes + (random() % 3 == 0 ? random() % 700 : 0);
        }
        constexpr std::size_t none = ~std::size_t{0};
        const auto places = [&](const std::vector<Listed>& listed) {
            std::vector<std::size_t> of(65536, none);
            for (const Listed& range : listed) {
                for (std::size_t i = 0; i < range.bytes && range.host + i < of.size(); ++i)
                    of[range.host + i] = range.device + i;
            }
            return of;
        };
        const auto few = joined(ranges);
        CHECK(few.size() <= ranges.size());
        CHECK(places(few) == places(ranges));
    }
}

TEST_CASE("a table holds every byte once, in units of at most 8 KiB") {
    std::vector<CopyRange> ranges;
    for (const std::size_t bytes : {std::size_t{1}, unit_bytes - 1, unit_bytes, unit_bytes + 1,
                                    3 * unit_bytes, 5 * unit_bytes + 77}) {
        ranges.push_back({arena.data() + 3, device + 5, bytes});
    }
    for (const Direction direction : {Direction::to_host, Direction::to_device}) {
        std::vector<CopyUnit> table(count_units(ranges) + 1, CopyUnit{1, 2, 3});
        write_units(direction, ranges, table.data());
        CHECK(table.size() == 1 + 1 + 1 + 1 + 2 + 3 + 6);
        CHECK(table.back().source == 1 && table.back().target == 2 && table.back().bytes == 3);
        auto unit = table.begin();
        for (const CopyRange& range : ranges) {
            for (std::size_t done = 0; done < range.bytes; done += unit->bytes, ++unit) {
                const auto host = reinterpret_cast<Address>(range.host) + done;
                const bool out = direction == Direction::to_host;
                CHECK(unit->target == (out ? host : range.device + done));
                CHECK(unit->source == (out ? range.device + done : host));
                CHECK(unit->bytes > 0 && unit->bytes <= unit_bytes);
                if (unit->bytes == 0) return;
            }
        }
    }
    CHECK(count_units({}) == 0);
}
