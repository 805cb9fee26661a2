/* CounterGroup of a simulated machine: exact counters, by name. */
#include "bridge.h"

#include "simulated/model.h"

/* -- Opening ----------------------------------------------------------------------------------------- */

static int event_find(struct tlb_event *event, PyObject *name)
{
    char known[TLB_MODEL_NAME];
    if (!PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "each counter must be a name");
        return -1;
    }
    for (unsigned i = 0; i < TLB_MODEL_COUNTERS; i++) {
        tlb_model_counter_name(i, known);
        if (PyUnicode_CompareWithASCIIString(name, known) == 0) {
            *event = (struct tlb_event){.config = i};
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "a simulated machine has no counter %R", name);
    return -1;
}

static Py_ssize_t events_find(struct tlb_event *events, PyObject *given)
{
    PyObject *const tuple = PySequence_Tuple(given);
    if (!tuple)
        return -1;
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 1 || count > TLB_EVENTS) {
        PyErr_Format(PyExc_ValueError, "a CounterGroup has 1 to %d counters, not %zd", TLB_EVENTS, count);
        count = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (event_find(&events[i], PyTuple_GetItem(tuple, i)) < 0)
            count = -1;
    Py_DECREF(tuple);
    return count;
}

PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"", "", NULL};
    core_state *const state = PyType_GetModuleState(type);
    PyObject *given, *machine;
    struct tlb_event events[TLB_EVENTS];
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!:CounterGroup", names, &given, state->machine_type,
                                     &machine))
        return NULL;
    Py_ssize_t const count = events_find(events, given);
    CounterGroup *const self = count < 0 ? NULL : object_new(type);
    if (!self)
        return NULL;
    struct tlb_counters_request const request = {.events = events, .count = (size_t)count};
    int const status = tlb_counters_open(&self->counters, &request);
    self->machine = Py_NewRef(machine);
    self->turn.open = status == 0;
    if (status == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return raise_status(status);
}

const char group_doc[] = PyDoc_STR("CounterGroup(names, machine, /)\n--\n\n"
                                   "Counters of a simulated machine that are read together.");

/* -- Counting ---------------------------------------------------------------------------------------- */

int group_hold(CounterGroup *self, PyObject *machine)
{
    if (turn_begin(&self->turn, "CounterGroup") < 0)
        return -1;
    if (self->machine == machine)
        return 0;
    turn_end(&self->turn);
    PyErr_SetString(PyExc_ValueError, "this CounterGroup counts another machine than that of the session");
    return -1;
}
