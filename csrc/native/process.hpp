#pragma once

#include <cstdint>

namespace pinferry {

// Tells whether this process was forked since an object was made. CUDA contexts, pinned pages and
// worker threads do not survive a fork, so objects refuse work in the child and free nothing there.
class ProcessTag {
  public:
    ProcessTag() noexcept;

    // True in a child forked after this tag was made. Costs one relaxed load.
    bool forked() const noexcept;

    // Throws Error("ForkedProcess") in such a child; `what` names the object.
    void require_same_process(const char* what) const;

  private:
    std::uint64_t generation_;
};

}  // namespace pinferry
