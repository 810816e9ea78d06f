#include "arena.hpp"
#include "bindings.hpp"
#include "block_handle.hpp"

namespace py = pybind11;

namespace pinferry {

void bind_block(py::module_& module) {
    py::class_<Block, std::shared_ptr<Block>>(
        module, "Block", py::buffer_protocol(),
        "A contiguous range of an arena, held while this object lives.")
        .def_property_readonly("nbytes", &Block::bytes)
        .def_property_readonly("offset", &Block::offset, "Bytes from the start of the arena.")
        .def_property_readonly(
            "address",
            [](const Block& block) {
                block.arena()->device()->process().require_same_process("this block");
                return reinterpret_cast<Address>(block.data());
            })
        .def_buffer([](Block& block) {
            // The mapping is not inherited: a child that read it would die.
            block.arena()->device()->process().require_same_process("this block");
            return py::buffer_info(reinterpret_cast<std::uint8_t*>(block.data()),
                                   static_cast<py::ssize_t>(block.bytes()));
        });
    bind_block_handle(module);
}

}  // namespace pinferry
