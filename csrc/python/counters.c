/* CounterGroup: counters that are read together, by whatever counts. */
#include "bridge.h"

/* -- Turns ------------------------------------------------------------------------------------------- */

int group_begin(CounterGroup *self)
{
    if (turn_begin(&self->turn, "CounterGroup") < 0)
        return -1;
    if (machine_begin(self->machine) == 0)
        return 0;
    turn_end(&self->turn);
    return -1;
}

void group_end(CounterGroup *self)
{
    machine_end(self->machine);
    turn_end(&self->turn);
}

void group_let_go(CounterGroup *self)
{
    turn_end(&self->turn);
}

/* -- Life cycle -------------------------------------------------------------------------------------- */

static void CounterGroup_dealloc(PyObject *object)
{
    CounterGroup *const self = (CounterGroup *)object;
    if (self->turn.open)
        tlb_counters_close(&self->counters);
    Py_XDECREF(self->machine);
    object_free(object);
}

PyDoc_STRVAR(CounterGroup_close_doc,
             "close($self)\n--\n\nGive the counters back. A second call does nothing.");

static PyObject *CounterGroup_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    if (turn_take(&self->turn, "CounterGroup") < 0)
        return NULL;
    if (self->turn.open)
        tlb_counters_close(&self->counters);
    self->turn.open = false;
    turn_end(&self->turn);
    Py_RETURN_NONE;
}

/* -- Methods ----------------------------------------------------------------------------------------- */

static PyObject *group_control(PyObject *object, int (*control)(const struct tlb_counters *))
{
    CounterGroup *const self = (CounterGroup *)object;
    if (group_begin(self) < 0)
        return NULL;
    int const status = control(&self->counters);
    group_end(self);
    return none_or_raise(status);
}

PyDoc_STRVAR(CounterGroup_enable_doc, "enable($self)\n--\n\nCount from now on.");

static PyObject *CounterGroup_enable(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return group_control(object, tlb_counters_enable);
}

PyDoc_STRVAR(CounterGroup_disable_doc, "disable($self)\n--\n\nStop counting; what was counted stays.");

static PyObject *CounterGroup_disable(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return group_control(object, tlb_counters_disable);
}

PyDoc_STRVAR(CounterGroup_reset_doc, "reset($self)\n--\n\nSet the values to zero, and not the times.");

static PyObject *CounterGroup_reset(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return group_control(object, tlb_counters_reset);
}

PyObject *reading_tuple(const struct tlb_reading *reading, size_t count)
{
    return Py_BuildValue("(KKN)", (unsigned long long)reading->enabled_ns,
                         (unsigned long long)reading->running_ns,
                         tuple_of(reading->value, (Py_ssize_t)count));
}

PyDoc_STRVAR(
    CounterGroup_read_doc,
    "read($self)\n--\n\n"
    "(enabled_ns, running_ns, (value, ...)); where running_ns is 0 the values are missing, not zero.");

static PyObject *CounterGroup_read(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_begin(self) < 0)
        return NULL;
    int const status = tlb_counters_read(&self->counters, &reading);
    PyObject *const result =
        status < 0 ? raise_status(status) : reading_tuple(&reading, self->counters.count);
    group_end(self);
    return result;
}

static PyMethodDef CounterGroup_methods[] = {
    {"enable", CounterGroup_enable, METH_NOARGS, CounterGroup_enable_doc},
    {"disable", CounterGroup_disable, METH_NOARGS, CounterGroup_disable_doc},
    {"reset", CounterGroup_reset, METH_NOARGS, CounterGroup_reset_doc},
    {"read", CounterGroup_read, METH_NOARGS, CounterGroup_read_doc},
#ifndef TLB_SIMULATED
    {"peek", group_peek, METH_NOARGS,
     "peek($self)\n--\n\n"
     "Read without a system call, in the thread that is counted; None where that cannot be."},
    {"fileno", group_fileno, METH_NOARGS, "fileno($self)\n--\n\nFile descriptor of the first event."},
#endif
    {"close", CounterGroup_close, METH_NOARGS, CounterGroup_close_doc},
    {"__enter__", context_enter, METH_NOARGS, "__enter__($self)\n--\n\n"},
    {"__exit__", context_exit, METH_VARARGS, "__exit__($self, kind, error, trace, /)\n--\n\n"},
    {0},
};

static PyType_Slot CounterGroup_slots[] = {
    {Py_tp_doc, (void *)group_doc},
    {Py_tp_new, (void *)group_new},
    {Py_tp_dealloc, (void *)CounterGroup_dealloc},
    {Py_tp_methods, CounterGroup_methods},
    {0, NULL},
};

PyType_Spec group_spec = {
    .name = TLB_CORE ".CounterGroup",
    .basicsize = sizeof(CounterGroup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = CounterGroup_slots,
};
