/* What the files of the bridge have in common. */
#include "bridge.h"

#include <errno.h>
#include <time.h>

/* -- The GIL ----------------------------------------------------------------------------------------- */

/* Who presses Ctrl-C lives in real time, whatever the clock of the measurement is. */
static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * 1000 * 1000 + (uint64_t)now.tv_nsec;
}

static int gil_ask(void *context)
{
    struct gil_poll *const gil = context;
    if (real_ns() < gil->due)
        return 0;
    gil_acquire(gil);
    int const interrupted = PyErr_CheckSignals();
    gil_release(gil);
    return interrupted ? -EINTR : 0;
}

void gil_release(struct gil_poll *gil)
{
    gil->poll = (struct tlb_poll){gil_ask, gil};
    gil->due = real_ns() + POLL_NS;
    gil->released = PyEval_SaveThread();
}

void gil_acquire(struct gil_poll *gil)
{
    PyEval_RestoreThread(gil->released);
}

/* -- Objects ----------------------------------------------------------------------------------------- */

void *object_new(PyTypeObject *type)
{
    allocfunc const allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

void object_free(PyObject *object)
{
    PyTypeObject *const type = Py_TYPE(object);
    freefunc const release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

int turn_take(struct turn *turn, const char *whose)
{
    if (!atomic_exchange(&turn->taken, true))
        return 0;
    PyErr_Format(PyExc_RuntimeError, "this %s is in use by another call", whose);
    return -1;
}

int turn_begin(struct turn *turn, const char *whose)
{
    if (turn_take(turn, whose) < 0)
        return -1;
    if (turn->open)
        return 0;
    turn_end(turn);
    PyErr_Format(PyExc_ValueError, "this %s is closed", whose);
    return -1;
}

void turn_end(struct turn *turn)
{
    turn->taken = false;
}

PyObject *context_enter(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(object);
}

PyObject *context_exit(PyObject *object, PyObject *Py_UNUSED(args))
{
    return PyObject_CallMethod(object, "close", NULL);
}

/* -- Errors and results ------------------------------------------------------------------------------ */

PyObject *raise_status(int status)
{
    if (status == -EINTR && PyErr_Occurred())
        return NULL;
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject *none_or_raise(int status)
{
    return status < 0 ? raise_status(status) : Py_NewRef(Py_None);
}

PyObject *tuple_of(const uint64_t *values, Py_ssize_t count)
{
    PyObject *const tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *const value = PyLong_FromUnsignedLongLong(values[i]);
        if (!value || PyTuple_SetItem(tuple, i, value) < 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

PyObject *array_of(const uint64_t *values, int dimensions, const npy_intp *shape)
{
    PyObject *const array = PyArray_SimpleNew(dimensions, shape, NPY_INT64);
    if (array)
        memcpy(PyArray_DATA((PyArrayObject *)array), values, (size_t)PyArray_NBYTES((PyArrayObject *)array));
    return array;
}

PyObject *dict_with(PyObject *dict, const char *name, PyObject *value)
{
    bool const done = dict && value && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    if (done)
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

const struct number scan_numbers[] = {
    {"present", offsetof(struct tlb_scan, present)},
    {"huge", offsetof(struct tlb_scan, huge)},
    {"zero", offsetof(struct tlb_scan, zero)},
    {"swapped", offsetof(struct tlb_scan, swapped)},
    {0},
};

PyObject *dict_with_numbers(PyObject *dict, const struct number *numbers, const void *record)
{
    for (; dict && numbers->name; numbers++) {
        const uint64_t *const value = (const void *)((const char *)record + numbers->offset);
        dict = dict_with(dict, numbers->name, PyLong_FromUnsignedLongLong(*value));
    }
    return dict;
}
