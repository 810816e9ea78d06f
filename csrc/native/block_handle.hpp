#pragma once

#include <pybind11/pybind11.h>

namespace pinferry {

// Adds BlockHandle, the base class of pinferry.pool.PinnedBlock, to `module`: one native block that
// can be let go of before the handle dies, with the buffer protocol. A buffer belongs to the native
// block, not to the handle: it stays valid after free(). Block must be bound before.
//
// It is made by hand and not by pybind11, and holds the block without pybind11's object for it,
// which is made once somebody asks for it: that object takes as long to make as the block.
void bind_block_handle(pybind11::module_& module);

}  // namespace pinferry
