/* Mappings of those who use one: whether it is open, and whose it is. */
#include "bridge.h"

#include <unistd.h>

int mapping_check_open(const Mapping *self)
{
    if (!self->open) {
        PyErr_SetString(PyExc_ValueError, "this Region is closed");
        return -1;
    }
    if (self->owner != getpid()) {
        PyErr_Format(PyExc_RuntimeError,
                     "this Region belongs to process %d; a forked child does not inherit its memory: "
                     "create a Region in the child",
                     (int)self->owner);
        return -1;
    }
    return 0;
}

int mapping_check_range(const Mapping *self, Py_ssize_t offset, Py_ssize_t size)
{
    size_t const whole = self->region.size;
    if (mapping_check_open(self) < 0)
        return -1;
    if (offset >= 0 && size > 0 && (size_t)offset <= whole && (size_t)size <= whole - (size_t)offset)
        return 0;
    PyErr_Format(PyExc_ValueError, "offset=%zd, size=%zd leave the %zu bytes that are mapped", offset, size,
                 whole);
    return -1;
}

Py_ssize_t mapping_take(Mapping *self)
{
    Py_ssize_t users = 0;
    atomic_compare_exchange_strong(&self->users, &users, MAPPING_TAKEN);
    return users;
}

int mapping_refuse(Py_ssize_t users)
{
    if (users == MAPPING_TAKEN)
        PyErr_SetString(PyExc_RuntimeError,
                        "this Region is in use by another measurement: use one Region a thread");
    else
        PyErr_Format(PyExc_BufferError,
                     "this Region has %zd view(s) alive (np.frombuffer, memoryview): delete them first",
                     users);
    return -1;
}

int mapping_acquire(Mapping *self)
{
    if (mapping_check_open(self) < 0)
        return -1;
    Py_ssize_t const users = mapping_take(self);
    if (users)
        return mapping_refuse(users);
    if (mapping_check_open(self) == 0) /* nobody has closed it meanwhile */
        return 0;
    mapping_release(self);
    return -1;
}

void mapping_release(Mapping *self)
{
    self->users = 0;
}
