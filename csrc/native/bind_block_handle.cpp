#include <pybind11/pybind11.h>
#include <structmember.h>

#include "arena.hpp"
#include "block_handle.hpp"
#include "raise_python.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

struct Handle {
    PyObject head;    // as every Python object begins
    PyObject* block;  // the native block's Python object; null where it was let go of
    PyObject* weak_references;
    bool freed;
    bool address_given;  // to somebody who keeps this handle, and no view
};

constexpr const char* freed_text = "this block was freed; allocate a new one";

// The type object of Block. It lives as long as this module, which is never unloaded.
PyTypeObject* block_type = nullptr;

Handle* as_handle(PyObject* self) { return reinterpret_cast<Handle*>(self); }

// Sets the current Python exception. No C++ one may pass through a slot of a type.
void raise_from_slot(const Error& error) noexcept {
    try {
        raise_in_python(error);
    } catch (py::error_already_set& other) {
        other.restore();
    }
}

bool require_live(const Handle* handle, const char* message) {
    if (!handle->freed) return true;
    raise_from_slot(Error("BlockFreed", message));
    return false;
}

PyObject* handle_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* block = nullptr;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_Format(PyExc_TypeError, "%s() takes no keyword arguments", type->tp_name);
        return nullptr;
    }
    if (!PyArg_ParseTuple(args, "O!", block_type, &block)) return nullptr;
    PyObject* self = type->tp_alloc(type, 0);  // zeroed
    if (self == nullptr) return nullptr;
    Py_INCREF(block);
    as_handle(self)->block = block;
    return self;
}

void handle_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    if (as_handle(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
    Py_CLEAR(as_handle(self)->block);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* handle_free(PyObject* self, PyObject* /*unused*/) {
    Handle* handle = as_handle(self);
    if (!require_live(handle, "this block was freed already; free it once")) return nullptr;
    handle->freed = true;
    if (!handle->address_given) Py_CLEAR(handle->block);
    Py_RETURN_NONE;
}

PyObject* handle_native(PyObject* self, void* /*unused*/) {
    Handle* handle = as_handle(self);
    if (!require_live(handle, freed_text)) return nullptr;
    Py_INCREF(handle->block);
    return handle->block;
}

PyObject* handle_freed(PyObject* self, void* /*unused*/) {
    return PyBool_FromLong(as_handle(self)->freed ? 1 : 0);
}

PyObject* handle_keep_until_collected(PyObject* self, PyObject* /*unused*/) {
    Handle* handle = as_handle(self);
    if (!require_live(handle, freed_text)) return nullptr;
    handle->address_given = true;
    Py_RETURN_NONE;
}

int handle_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    view->obj = nullptr;
    Handle* handle = as_handle(self);
    if (!require_live(handle, freed_text)) return -1;
    try {
        // Asked here as well as by the block: pybind11 turns every error there into BufferError.
        const auto& block = py::cast<const Block&>(py::handle(handle->block));
        block.arena()->device()->process().require_same_process("this block");
    } catch (const Error& error) {
        raise_from_slot(error);
        return -1;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return -1;
    }
    return PyObject_GetBuffer(handle->block, view, flags);
}

// Never called: a buffer belongs to the native block. NumPy's frombuffer keeps the buffer of an
// object that has this slot, and otherwise lets go of it and keeps the object, which free() would
// leave with a dangling address.
void handle_releasebuffer(PyObject* /*unused*/, Py_buffer* /*unused*/) {}

PyMethodDef methods[] = {
    {"free", handle_free, METH_NOARGS,
     PyDoc_STR("Let go of the memory.\n\n"
               "Views of it stay valid, and keep it until they die.\n\n"
               "Raises\n------\nBlockFreed\n    If it was freed before.")},
    {"keep_until_collected", handle_keep_until_collected, METH_NOARGS,
     PyDoc_STR("From now on hold the memory until this object dies, even after free().")},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"native", handle_native, nullptr, PyDoc_STR("The block of the core, for the transfer engine."),
     nullptr},
    {"freed", handle_freed, nullptr, PyDoc_STR("Whether it was freed."), nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Handle, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("One native block, to be let go of by free() or by dying.")},
    {Py_tp_new, reinterpret_cast<void*>(handle_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(handle_dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_bf_getbuffer, reinterpret_cast<void*>(handle_getbuffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(handle_releasebuffer)},
    {0, nullptr},
};

PyType_Spec spec = {"pinferry._native.BlockHandle", sizeof(Handle), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

void bind_block_handle(py::module_& module) {
    block_type = reinterpret_cast<PyTypeObject*>(py::type::of<Block>().release().ptr());
    const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
    if (!type) throw py::error_already_set();
    module.add_object("BlockHandle", type);
}

}  // namespace pinferry
