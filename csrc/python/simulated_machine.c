/* Machine: a simulated processor, its clock, its counters, and the ranges of memory that it knows. */
#include "bridge.h"

#include "simulated/hooks.h"

#include <errno.h>

/* -- Data -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct tlb_model *model;
    struct tlb_model *before; /* of the thread that has the turn */
    struct turn turn;
} Machine;

int machine_begin(PyObject *machine)
{
    Machine *const self = (Machine *)machine;
    if (turn_begin(&self->turn, "machine") < 0)
        return -1;
    self->before = tlb_hook_use(self->model);
    return 0;
}

void machine_end(PyObject *machine)
{
    Machine *const self = (Machine *)machine;
    tlb_hook_use(self->before);
    turn_end(&self->turn);
}

/* -- Life cycle -------------------------------------------------------------------------------------- */

enum { NUMBERS = sizeof(struct tlb_model_config) / sizeof(double) };

static int config_parse(struct tlb_model_config *config, PyObject *given)
{
    double numbers[NUMBERS];
    PyObject *const tuple = PySequence_Tuple(given);
    if (!tuple)
        return -1;
    if (PyTuple_Size(tuple) != NUMBERS)
        PyErr_Format(PyExc_ValueError, "a machine is %d numbers, not %zd", NUMBERS, PyTuple_Size(tuple));
    for (Py_ssize_t i = 0; i < NUMBERS && !PyErr_Occurred(); i++)
        numbers[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, i));
    Py_DECREF(tuple);
    if (PyErr_Occurred())
        return -1;
    memcpy(config, numbers, sizeof(numbers));
    return 0;
}

static int machine_make(Machine *self, const struct tlb_model_config *config)
{
    char text[TLB_MODEL_TEXT];
    int const status = tlb_model_create(config, &self->model, text);
    self->turn.open = status == 0;
    if (status == -EINVAL)
        PyErr_SetString(PyExc_ValueError, text);
    else if (status < 0)
        raise_status(status);
    return status;
}

static PyObject *Machine_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"", NULL};
    PyObject *given;
    struct tlb_model_config config;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Machine", names, &given) ||
        config_parse(&config, given) < 0)
        return NULL;
    Machine *const self = object_new(type);
    if (self && machine_make(self, &config) == 0)
        return (PyObject *)self;
    Py_XDECREF(self);
    return NULL;
}

static void Machine_dealloc(PyObject *object)
{
    tlb_model_free(((Machine *)object)->model);
    object_free(object);
}

/* -- Memory ------------------------------------------------------------------------------------------ */

static int read_words(uint64_t *words, PyObject *const *given, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        words[i] = PyLong_AsUnsignedLongLong(given[i]);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static const char *why_not(int status)
{
    switch (status) {
    case -EINVAL:
        return "pages must be powers of two and no less than the base page, the range not empty";
    case -EEXIST:
        return "the range overlaps another one of this machine";
    case -ENOENT:
        return "no range of this machine begins there";
    default:
        return NULL;
    }
}

static PyObject *none_or_refuse(int status, uint64_t address)
{
    const char *const why = why_not(status);
    if (!why)
        return none_or_raise(status);
    return PyErr_Format(PyExc_ValueError, "address=%p: %s", (void *)(uintptr_t)address, why);
}

PyDoc_STRVAR(Machine_map_doc,
             "map($self, address, size, page, true_page, /)\n--\n\n"
             "Know a range of memory as promised in pages of one size and truly in pages of another.");

static PyObject *Machine_map(PyObject *object, PyObject *args)
{
    enum { ADDRESS, SIZE, PAGE, TRUE_PAGE, WORDS };
    PyObject *given[WORDS];
    uint64_t word[WORDS];
    if (!PyArg_ParseTuple(args, "OOOO:map", &given[ADDRESS], &given[SIZE], &given[PAGE], &given[TRUE_PAGE]) ||
        read_words(word, given, WORDS) < 0 || machine_begin(object) < 0)
        return NULL;
    int const status =
        tlb_model_map(((Machine *)object)->model, word[ADDRESS], word[SIZE], word[PAGE], word[TRUE_PAGE]);
    machine_end(object);
    return none_or_refuse(status, word[ADDRESS]);
}

PyDoc_STRVAR(Machine_unmap_doc, "unmap($self, address, /)\n--\n\nForget the range that begins there.");

static PyObject *Machine_unmap(PyObject *object, PyObject *address)
{
    uint64_t word;
    if (read_words(&word, &address, 1) < 0 || machine_begin(object) < 0)
        return NULL;
    int const status = tlb_model_unmap(((Machine *)object)->model, word);
    machine_end(object);
    return none_or_refuse(status, word);
}

/* -- Time -------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(Machine_clock_ns_doc, "clock_ns($self)\n--\n\n"
                                   "Nanoseconds of the machine's time since it was made.");

static PyObject *Machine_clock_ns(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (machine_begin(object) < 0)
        return NULL;
    uint64_t const ns = tlb_clock_ns();
    machine_end(object);
    return PyLong_FromUnsignedLongLong(ns);
}

/* In pieces, since what happens meanwhile has to be gone through: so that signal handlers run in between. */
static int wait_for(double ns, const struct tlb_poll *poll)
{
    double const piece = POLL_NS;
    int status = 0;
    for (; ns > 0 && status == 0; ns -= piece, status = tlb_ask(poll))
        tlb_clock_wait((uint64_t)(ns < piece ? ns : piece));
    return status;
}

PyDoc_STRVAR(Machine_clock_wait_doc, "clock_wait($self, seconds, /)\n--\n\n"
                                     "Let so much of the machine's time go by. Nobody waits for it.");

static PyObject *Machine_clock_wait(PyObject *object, PyObject *args)
{
    enum { SECONDS_MOST = 100 * 1000 }; /* of a machine's life: its ticks are counted in 64 bits */
    double seconds;
    if (!PyArg_ParseTuple(args, "d:clock_wait", &seconds) || machine_begin(object) < 0)
        return NULL;
    struct tlb_model *const model = ((Machine *)object)->model;
    if (!(seconds >= 0 && seconds + tlb_model_now(model) / 1e9 <= SECONDS_MOST)) {
        machine_end(object);
        return PyErr_Format(PyExc_ValueError,
                            "seconds must be at least 0, and a machine's time ends after %d", SECONDS_MOST);
    }
    struct gil_poll gil;
    gil_release(&gil);
    int const status = wait_for(seconds * 1e9, &gil.poll);
    gil_acquire(&gil);
    machine_end(object);
    return none_or_raise(status);
}

PyDoc_STRVAR(Machine_clock_moment_doc,
             "clock_moment($self)\n--\n\n"
             "One moment on three clocks, which are one here: ns, ns, and ticks of 1 GHz.");

static PyObject *Machine_clock_moment(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct tlb_moment moment;
    if (machine_begin(object) < 0)
        return NULL;
    tlb_clock_moment(&moment);
    machine_end(object);
    return tuple_of((uint64_t[]){moment.raw_ns, moment.monotonic_ns, moment.ticks}, 3);
}

PyDoc_STRVAR(Machine_clock_calibrate_doc, "clock_calibrate($self)\n--\n\n"
                                          "Cost of reading the clock and its smallest step, both in ns.");

static PyObject *Machine_clock_calibrate(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct tlb_clock_cost cost;
    if (machine_begin(object) < 0)
        return NULL;
    tlb_clock_calibrate(&cost);
    machine_end(object);
    return Py_BuildValue("(dK)", cost.read_ns, (unsigned long long)cost.step_ns);
}

/* -- Counters ---------------------------------------------------------------------------------------- */

static PyObject *dict_of_counters(const uint64_t *words)
{
    PyObject *dict = PyDict_New();
    for (unsigned i = 0; dict && i < TLB_MODEL_COUNTERS; i++) {
        char name[TLB_MODEL_NAME];
        tlb_model_counter_name(i, name);
        dict = dict_with(dict, name, PyLong_FromUnsignedLongLong(words[i]));
    }
    return dict;
}

PyDoc_STRVAR(Machine_counters_doc, "counters($self)\n--\n\n"
                                   "All that was counted since the machine was made, by name.");

static PyObject *Machine_counters(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct tlb_model_counters counters;
    uint64_t words[TLB_MODEL_COUNTERS];
    if (machine_begin(object) < 0)
        return NULL;
    tlb_model_count(((Machine *)object)->model, &counters);
    machine_end(object);
    memcpy(words, &counters, sizeof(words));
    return dict_of_counters(words);
}

/* -- Type -------------------------------------------------------------------------------------------- */

static PyMethodDef Machine_methods[] = {
    {"map", Machine_map, METH_VARARGS, Machine_map_doc},
    {"unmap", Machine_unmap, METH_O, Machine_unmap_doc},
    {"clock_ns", Machine_clock_ns, METH_NOARGS, Machine_clock_ns_doc},
    {"clock_wait", Machine_clock_wait, METH_VARARGS, Machine_clock_wait_doc},
    {"clock_moment", Machine_clock_moment, METH_NOARGS, Machine_clock_moment_doc},
    {"clock_calibrate", Machine_clock_calibrate, METH_NOARGS, Machine_clock_calibrate_doc},
    {"counters", Machine_counters, METH_NOARGS, Machine_counters_doc},
    {0},
};

PyDoc_STRVAR(Machine_doc, "Machine(numbers, /)\n--\n\nA simulated processor, and its clock.");

static PyType_Slot Machine_slots[] = {
    {Py_tp_doc, (void *)Machine_doc},
    {Py_tp_new, (void *)Machine_new},
    {Py_tp_dealloc, (void *)Machine_dealloc},
    {Py_tp_methods, Machine_methods},
    {0, NULL},
};

PyType_Spec machine_spec = {
    .name = TLB_CORE ".Machine",
    .basicsize = sizeof(Machine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Machine_slots,
};
