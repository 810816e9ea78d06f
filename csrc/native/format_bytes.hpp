#pragma once

#include <cstddef>
#include <string>

namespace pinferry {

// "1.50 GiB (1610612736 bytes)": error texts give the size to read and the number to compute with.
std::string format_bytes(std::size_t bytes);

}  // namespace pinferry
