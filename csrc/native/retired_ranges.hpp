#pragma once

#include <functional>
#include <map>
#include <vector>

#include "event.hpp"
#include "range.hpp"

namespace pinferry {

// Ranges that were freed while copies still used them, by the events of those copies. A batch of
// copies shares one event among thousands of ranges, so that there are few groups to ask. Does not
// lock.
class RetiredRanges {
  public:
    void add(Range range, Events events);

    bool empty() const noexcept { return groups_.empty(); }
    std::size_t bytes() const noexcept { return bytes_; }
    // The events of each group, to be asked outside a lock.
    std::vector<Events> groups() const;
    // Takes out the ranges of a group, each as `release` has taken it over: where that throws, this
    // one and those to come stay.
    void take(const Events& events, const std::function<void(Range)>& release);
    // Every range, by offset; and every event, so that all of them can be waited for.
    std::vector<Range> ranges() const;
    Events events() const;

  private:
    std::map<Events, std::vector<Range>> groups_;
    std::size_t bytes_ = 0;
};

}  // namespace pinferry
