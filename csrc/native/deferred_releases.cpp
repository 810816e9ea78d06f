#include "deferred_releases.hpp"

#include <algorithm>
#include <exception>

namespace pinferry {
namespace {

bool all_complete(const Events& events) noexcept {
    return std::all_of(events.begin(), events.end(),
                       [](const auto& event) { return event->complete(); });
}

}  // namespace

void DeferredReleases::add(Events events, std::function<void()> release) noexcept {
    run_due();
    if (all_complete(events)) {
        release();
        return;
    }
    try {
        const std::lock_guard lock(mutex_);
        entries_.push_back({std::move(events), std::move(release)});
    } catch (const std::exception&) {
        // No memory for the bookkeeping: the process's end releases it.
    }
}

void DeferredReleases::run_due() noexcept {
    if (process_.forked()) return;
    std::vector<Entry> entries;
    {
        const std::lock_guard lock(mutex_);
        entries.swap(entries_);
    }
    if (entries.empty()) return;
    const auto pending = std::partition(entries.begin(), entries.end(), [](const Entry& entry) {
        return all_complete(entry.events);
    });
    for (auto entry = entries.begin(); entry != pending; ++entry) entry->release();
    try {
        const std::lock_guard lock(mutex_);
        entries_.insert(entries_.end(), std::make_move_iterator(pending),
                        std::make_move_iterator(entries.end()));
    } catch (const std::exception&) {
        // As in add().
    }
}

void DeferredReleases::finish() noexcept {
    if (process_.forked()) {
        static_cast<void>(new std::vector<Entry>(std::move(entries_)));
        return;
    }
    std::vector<Entry> entries;
    {
        const std::lock_guard lock(mutex_);
        entries.swap(entries_);
    }
    const auto deadline = std::chrono::steady_clock::now() + farewell;
    for (Entry& entry : entries) {
        const bool ended =
            std::all_of(entry.events.begin(), entry.events.end(), [&](const auto& event) {
                const auto left = deadline - std::chrono::steady_clock::now();
                try {
                    return event->synchronize(
                        std::max(left, std::chrono::steady_clock::duration::zero()));
                } catch (const std::exception&) {
                    return false;  // the device reports an error: nobody knows what still runs
                }
            });
        if (ended) {
            entry.release();
        } else {
            // The copies may still run: their memory, and what it needs, must never go.
            static_cast<void>(new Entry(std::move(entry)));
        }
    }
}

}  // namespace pinferry
