#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "arena.hpp"
#include "bindings.hpp"
#include "error.hpp"
#include "replay.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

using Clock = std::chrono::steady_clock;

// Nanoseconds of each of `pairs` rounds: a block is allocated and a random older one freed, while
// `live` blocks are held. Sizes are drawn from `sizes` beforehand, so that the clock sees only the
// arena. One full turn-over of the blocks goes before it, after which the free ranges are as ragged
// as they stay.
std::vector<double> time_allocations(Arena& arena, std::size_t live, std::size_t pairs,
                                     const std::vector<std::size_t>& sizes, std::uint64_t seed) {
    if (live == 0 || sizes.empty()) {
        throw Error("InvalidArgument",
                    "there is nothing to time: live and sizes must not be empty");
    }
    constexpr Timeout at_once = std::chrono::nanoseconds(0);
    std::mt19937_64 random(seed);
    const auto draw_size = [&] { return sizes[random() % sizes.size()]; };
    Blocks blocks(live);
    for (auto& block : blocks) block = arena.allocate(draw_size(), at_once);

    std::vector<double> elapsed;
    elapsed.reserve(pairs);
    for (std::size_t round = 0; round < live + pairs; ++round) {
        const std::size_t size = draw_size();
        std::shared_ptr<Block>& older = blocks[random() % live];
        const auto start = Clock::now();
        std::shared_ptr<Block> newer = arena.allocate(size, at_once);
        older.reset();
        const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
        older = std::move(newer);
        if (round >= live) elapsed.push_back(taken.count());
    }
    return elapsed;
}

ReplayOutcome replay(FreeList& list, const std::vector<std::size_t>& sizes,
                     const std::vector<std::size_t>& toggles, bool extents) {
    try {
        return replay_storages(list, sizes, toggles, extents);
    } catch (const std::out_of_range& error) {
        throw Error("InvalidArgument",
                    std::string(error.what()) + ": there are " + std::to_string(sizes.size()));
    }
}

}  // namespace

void bind_measure(py::module_& module) {
    module.def(
        "time_allocations", &time_allocations, py::arg("arena"), py::kw_only(), py::arg("live"),
        py::arg("pairs"), py::arg("sizes"), py::arg("seed"),
        py::call_guard<py::gil_scoped_release>(),
        "Nanoseconds of each of `pairs` allocations with the freeing of a random older block, "
        "while `live` blocks are held.");

    py::class_<ReplayOutcome>(module, "ReplayOutcome", "What a replay came to, in bytes.")
        .def_readonly("highest_end", &ReplayOutcome::highest_end)
        .def_readonly("peak_bytes", &ReplayOutcome::peak_bytes)
        .def_readonly("peak_rounded_bytes", &ReplayOutcome::peak_rounded_bytes)
        .def_readonly("requests", &ReplayOutcome::requests)
        .def_readonly("failures", &ReplayOutcome::failures,
                      "Requests refused although the bytes sufficed.");
    module.def(
        "replay_storages", &replay, py::arg("free_list"), py::kw_only(), py::arg("sizes"),
        py::arg("toggles"), py::arg("extents"), py::call_guard<py::gil_scoped_release>(),
        "Play storages that come and go: each entry of `toggles` takes room for its size, or "
        "gives it back.");
}

}  // namespace pinferry
