#include <pybind11/pybind11.h>
#include <structmember.h>

#include <memory>
#include <new>

#include "arena.hpp"
#include "block_handle.hpp"
#include "raise_python.hpp"

namespace py = pybind11;

namespace pinferry {
namespace {

struct Handle {
    PyObject head;                 // as every Python object begins
    std::shared_ptr<Block> block;  // null where it was let go of
    PyObject* native;              // the Python object of the block, once somebody asked for it
    PyObject* weak_references;
    bool freed;
    bool address_given;  // to somebody who keeps this handle, and no view
};

constexpr const char* freed_text = "this block was freed; allocate a new one";

// The type object of Block. It lives as long as this module, which is never unloaded.
PyTypeObject* block_type = nullptr;

Handle* as_handle(PyObject* self) { return reinterpret_cast<Handle*>(self); }

// Sets the current Python exception. No C++ one may pass through a slot of a type.
void raise_from_slot() noexcept {
    try {
        try {
            throw;
        } catch (const Error& error) {
            raise_in_python(error);
        } catch (const std::bad_alloc&) {
            PyErr_NoMemory();
        } catch (py::error_already_set& error) {
            error.restore();
        } catch (const py::reference_cast_error&) {  // it has no text
            PyErr_SetString(PyExc_TypeError, "None is no object of pinferry's core");
        } catch (const py::cast_error& error) {
            PyErr_SetString(PyExc_TypeError, error.what());
        } catch (const py::builtin_exception& error) {
            error.set_error();
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
        }
    } catch (py::error_already_set& error) {
        error.restore();  // a signal that came meanwhile, or no memory for the error
    }
}

// What `body` returns, or null with the exception set.
template <typename Body>
PyObject* guarded(Body body) noexcept {
    try {
        return body();
    } catch (...) {
        raise_from_slot();
        return nullptr;
    }
}

void require_live(const Handle* handle, const char* message) {
    if (handle->freed) throw Error("BlockFreed", message);
}

PyObject* make_handle(PyTypeObject* type, std::shared_ptr<Block> block, PyObject* native) {
    PyObject* self = type->tp_alloc(type, 0);  // zeroed
    if (self == nullptr) return nullptr;
    Handle* handle = as_handle(self);
    new (&handle->block) std::shared_ptr<Block>(std::move(block));
    Py_XINCREF(native);
    handle->native = native;
    return self;
}

PyObject* handle_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* native = nullptr;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_Format(PyExc_TypeError, "%s() takes no keyword arguments", type->tp_name);
        return nullptr;
    }
    if (!PyArg_ParseTuple(args, "O!", block_type, &native)) return nullptr;
    return guarded([&] {
        return make_handle(type, py::cast<std::shared_ptr<Block>>(py::handle(native)), native);
    });
}

// Keeps Python's lock, as Arena.try_allocate does.
PyObject* handle_try_allocate(PyObject* type, PyObject* const* args, Py_ssize_t count) {
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "try_allocate() takes an arena, bytes and an alignment");
        return nullptr;
    }
    const std::size_t bytes = PyLong_AsSize_t(args[1]);
    if (PyErr_Occurred()) return nullptr;
    const std::size_t alignment = PyLong_AsSize_t(args[2]);
    if (PyErr_Occurred()) return nullptr;
    return guarded([&]() -> PyObject* {
        auto block = py::cast<Arena&>(py::handle(args[0])).try_allocate(bytes, alignment);
        if (!block) Py_RETURN_NONE;
        return make_handle(reinterpret_cast<PyTypeObject*>(type), std::move(block), nullptr);
    });
}

void handle_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    if (as_handle(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
    Py_CLEAR(as_handle(self)->native);
    as_handle(self)->block.~shared_ptr();
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* handle_free(PyObject* self, PyObject* /*unused*/) {
    return guarded([&]() -> PyObject* {
        Handle* handle = as_handle(self);
        require_live(handle, "this block was freed already; free it once");
        handle->freed = true;
        if (!handle->address_given) {
            Py_CLEAR(handle->native);
            handle->block.reset();
        }
        Py_RETURN_NONE;
    });
}

// A borrowed reference.
PyObject* native_of(Handle* handle) {
    if (handle->native == nullptr) handle->native = py::cast(handle->block).release().ptr();
    return handle->native;
}

PyObject* handle_native(PyObject* self, void* /*unused*/) {
    return guarded([&] {
        require_live(as_handle(self), freed_text);
        return Py_NewRef(native_of(as_handle(self)));
    });
}

PyObject* handle_freed(PyObject* self, void* /*unused*/) {
    return PyBool_FromLong(as_handle(self)->freed ? 1 : 0);
}

PyObject* handle_keep_until_collected(PyObject* self, PyObject* /*unused*/) {
    return guarded([&]() -> PyObject* {
        require_live(as_handle(self), freed_text);
        as_handle(self)->address_given = true;
        Py_RETURN_NONE;
    });
}

int handle_getbuffer(PyObject* self, Py_buffer* view, int flags) {
    view->obj = nullptr;
    Handle* handle = as_handle(self);
    const PyObject* native = guarded([&] {
        require_live(handle, freed_text);
        // Asked here as well as by the block: pybind11 turns every error there into BufferError.
        handle->block->arena()->device()->process().require_same_process("this block");
        return native_of(handle);
    });
    return native == nullptr ? -1 : PyObject_GetBuffer(handle->native, view, flags);
}

// Never called: a buffer belongs to the native block. NumPy's frombuffer keeps the buffer of an
// object that has this slot, and otherwise lets go of it and keeps the object, which free() would
// leave with a dangling address.
void handle_releasebuffer(PyObject* /*unused*/, Py_buffer* /*unused*/) {}

PyMethodDef methods[] = {
    {"try_allocate", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(handle_try_allocate)),
     METH_FASTCALL | METH_CLASS,
     PyDoc_STR("try_allocate(arena, nbytes, alignment, /)\n--\n\n"
               "Return a block of the arena by this handle, or None if no range is free.\n\n"
               "As Arena.try_allocate, without an object for the block itself.")},
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
