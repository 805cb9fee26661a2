/* Session: kernels prepared on parts of mappings, to be timed in turn. */
#include "bridge.h"

#include <errno.h>
#include <unistd.h>

/* -- Data -------------------------------------------------------------------------------------------- */

enum { PARTS_MOST = 16 };

struct part {
    Mapping *mapping;
    bool holds; /* this part acquired its mapping; of parts on the same one, the first does */
    bool begun; /* prepare was called: release has something to undo, perhaps */
    struct tlb_run run;
};

typedef struct {
    PyObject_HEAD
    PyObject *machine; /* that it runs on; NULL: this one */
    Py_ssize_t count;
    struct part parts[PARTS_MOST];
    struct turn turn;
} Session;

static bool session_holds(const Session *self, const Mapping *mapping)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->parts[i].holds && self->parts[i].mapping == mapping)
            return true;
    return false;
}

static int session_hold(Session *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        struct part *const part = &self->parts[i];
        if (session_holds(self, part->mapping))
            continue;
        if (mapping_acquire(part->mapping) < 0)
            return -1;
        part->holds = true;
    }
    return 0;
}

/* Of memory that a forked child did not inherit there is nothing to undo. */
static void part_release(struct part *part)
{
    if (part->run.kernel->release && part->mapping->owner == getpid())
        part->run.kernel->release(&part->run);
}

static void session_let_go(Session *self)
{
    self->turn.open = false;
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->parts[i].begun) {
            self->parts[i].begun = false;
            part_release(&self->parts[i]);
        }
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->parts[i].holds) {
            self->parts[i].holds = false;
            mapping_release(self->parts[i].mapping);
        }
}

/* For the one call at a time that uses the memory. */
static int session_begin(Session *self)
{
    if (turn_begin(&self->turn, "session") < 0)
        return -1;
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (mapping_check_open(self->parts[i].mapping) < 0) {
            turn_end(&self->turn);
            return -1;
        }
    return 0;
}

/* -- Life cycle -------------------------------------------------------------------------------------- */

static int part_parse(struct part *part, core_state *state, PyObject *given)
{
    PyObject *parameters;
    Mapping *mapping;
    const char *name;
    Py_ssize_t offset, size;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError,
                        "each part must be a tuple (mapping, kernel, offset, size, parameters)");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "O!snnO!:Session", state->mapping_type, &mapping, &name, &offset, &size,
                          &PyDict_Type, &parameters))
        return -1;
    if (mapping_check_range(mapping, offset, size) < 0 || kernel_read(&part->run, name, parameters) < 0)
        return -1;
    part->run.base = mapping->region.base + offset;
    part->run.size = (size_t)size;
    Py_INCREF(mapping);
    part->mapping = mapping;
    return 0;
}

static int session_parse(Session *self, core_state *state, PyObject *given)
{
    Py_ssize_t const count = PyTuple_Size(given);
    if (count < 1 || count > PARTS_MOST) {
        PyErr_Format(PyExc_ValueError, "a session has 1 to %d parts, not %zd", PARTS_MOST, count);
        return -1;
    }
    for (; self->count < count; self->count++)
        if (part_parse(&self->parts[self->count], state, PyTuple_GetItem(given, self->count)) < 0)
            return -1;
    return 0;
}

/* What one kernel writes, another one would follow. */
static int session_check_apart(const Session *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        for (Py_ssize_t k = 0; k < i; k++) {
            const struct tlb_run *const a = &self->parts[i].run, *const b = &self->parts[k].run;
            if ((uintptr_t)a->base < (uintptr_t)b->base + b->size &&
                (uintptr_t)b->base < (uintptr_t)a->base + a->size) {
                PyErr_Format(PyExc_ValueError, "parts %zd and %zd of the session overlap", k, i);
                return -1;
            }
        }
    return 0;
}

static int part_prepare(struct part *part)
{
    struct gil_poll gil;
    part->begun = true;
    gil_release(&gil);
    int const status = part->run.kernel->prepare(&part->run, &gil.poll);
    gil_acquire(&gil);
    if (status == -EINVAL)
        PyErr_Format(PyExc_ValueError, "these parameters of kernel '%s' leave its %zu bytes",
                     part->run.kernel->name, part->run.size);
    else if (status < 0)
        raise_status(status);
    return status;
}

static int session_prepare(Session *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (part_prepare(&self->parts[i]) < 0)
            return -1;
    self->turn.open = true;
    return 0;
}

static PyObject *Session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    core_state *const state = PyType_GetModuleState(type);
    PyObject *given, *machine = NULL;
#ifdef TLB_SIMULATED
    static char *names[] = {"", "", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!:Session", names, &given, state->machine_type,
                                     &machine))
        return NULL;
#else
    static char *names[] = {"parts", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Session", names, &given))
        return NULL;
#endif
    Session *const self = object_new(type);
    if (!self)
        return NULL;
    self->machine = Py_XNewRef(machine);
    PyObject *const parts = PySequence_Tuple(given);
    bool const done = parts && session_parse(self, state, parts) == 0 && session_check_apart(self) == 0 &&
                      session_hold(self) == 0 && session_prepare(self) == 0;
    Py_XDECREF(parts);
    if (done)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void Session_dealloc(PyObject *object)
{
    Session *const self = (Session *)object;
    session_let_go(self);
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_DECREF(self->parts[i].mapping);
    Py_XDECREF(self->machine);
    object_free(object);
}

PyDoc_STRVAR(Session_close_doc, "close($self)\n--\n\nLet the mappings go. A second call does nothing.");

static PyObject *Session_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Session *const self = (Session *)object;
    if (turn_take(&self->turn, "session") < 0)
        return NULL;
    session_let_go(self);
    turn_end(&self->turn);
    Py_RETURN_NONE;
}

/* -- Methods ----------------------------------------------------------------------------------------- */

#ifdef TLB_SIMULATED
/* No page has to be there for a model, and what its caches hold is of accesses alone. */
static int part_pass(struct part *part, const struct tlb_poll *poll)
{
    (void)part, (void)poll;
    return 0;
}
#else
static int part_pass(struct part *part, const struct tlb_poll *poll)
{
    if (part->run.kernel->pass)
        return part->run.kernel->pass(&part->run, poll);
    size_t const offset = (size_t)(part->run.base - part->mapping->region.base);
    return tlb_region_pass(&part->mapping->region, offset, part->run.size, poll);
}
#endif

PyDoc_STRVAR(Session_pass_over_doc, "pass_over($self)\n--\n\n"
                                    "One untimed pass: read every page in use once, in address order.");

static PyObject *Session_pass_over(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Session *const self = (Session *)object;
    if (session_begin(self) < 0)
        return NULL;
    int status = 0;
    struct gil_poll gil;
    gil_release(&gil);
    for (Py_ssize_t i = 0; i < self->count && status == 0; i++)
        status = part_pass(&self->parts[i], &gil.poll);
    gil_acquire(&gil);
    turn_end(&self->turn);
    return none_or_raise(status);
}

static int session_check_verifiable(const Session *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const struct tlb_kernel *const kernel = self->parts[i].run.kernel;
        if (!kernel->verify) {
            PyErr_Format(PyExc_NotImplementedError, "kernel '%s' has nothing to verify", kernel->name);
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(Session_verify_doc,
             "verify($self)\n--\n\n"
             "Walk a lap of each part; the accesses that it took, 0 if it did not close.");

static PyObject *Session_verify(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Session *const self = (Session *)object;
    uint64_t found[PARTS_MOST] = {0};
    if (session_check_verifiable(self) < 0 || session_begin(self) < 0)
        return NULL;
    int status = 0;
    struct gil_poll gil;
    gil_release(&gil);
    for (Py_ssize_t i = 0; i < self->count && status == 0; i++)
        status = self->parts[i].run.kernel->verify(&self->parts[i].run, &found[i], &gil.poll);
    gil_acquire(&gil);
    turn_end(&self->turn);
    return status < 0 ? raise_status(status) : tuple_of(found, self->count);
}

static PyObject *Session_get_laps(PyObject *object, void *Py_UNUSED(unused))
{
    const Session *const self = (Session *)object;
    uint64_t laps[PARTS_MOST];
    for (Py_ssize_t i = 0; i < self->count; i++)
        laps[i] = self->parts[i].run.lap;
    return tuple_of(laps, self->count);
}

static PyObject *counts_tuple(const Session *self)
{
    PyObject *const counts = PyTuple_New(self->count);
    for (Py_ssize_t i = 0; counts && i < self->count; i++) {
        const struct tlb_run *const run = &self->parts[i].run;
        PyObject *const pair = tuple_of((uint64_t[]){run->expected, run->found}, 2);
        if (!pair || PyTuple_SetItem(counts, i, pair) < 0) {
            Py_DECREF(counts);
            return NULL;
        }
    }
    return counts;
}

static PyObject *Session_get_counts(PyObject *object, void *Py_UNUSED(unused))
{
    Session *const self = (Session *)object;
    if (turn_take(&self->turn, "session") < 0)
        return NULL;
    PyObject *const counts = counts_tuple(self);
    turn_end(&self->turn);
    return counts;
}

/* -- Measuring --------------------------------------------------------------------------------------- */

enum { GROUPS_MOST = 32 };

/* What is asked for, and where the results go. */
struct measuring {
    uint64_t accesses[PARTS_MOST];
    npy_intp slices;
    CounterGroup *group[GROUPS_MOST];
    struct tlb_counters *counters[GROUPS_MOST];
    struct tlb_counting counting; /* of these groups, which may be none */
    struct tlb_slice *out;
    uint64_t *witness;
};

static int read_accesses(uint64_t *accesses, PyObject *given, Py_ssize_t count)
{
    if (PyTuple_Size(given) != count) {
        PyErr_Format(PyExc_ValueError, "accesses must have one number for each of the %zd parts", count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        accesses[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i));
        if (PyErr_Occurred())
            return -1;
        if (accesses[i] == 0) {
            PyErr_SetString(PyExc_ValueError, "accesses must be at least 1");
            return -1;
        }
    }
    return 0;
}

static int read_groups(struct measuring *m, PyObject *given, PyTypeObject *type)
{
    size_t const count = (size_t)PyTuple_Size(given);
    if (count > GROUPS_MOST) {
        PyErr_Format(PyExc_ValueError, "at most %d groups are counted, not %zu", GROUPS_MOST, count);
        return -1;
    }
    for (size_t g = 0; g < count; g++) {
        PyObject *const object = PyTuple_GetItem(given, (Py_ssize_t)g);
        if (!PyObject_TypeCheck(object, type)) {
            PyErr_SetString(PyExc_TypeError, "groups must be a tuple of CounterGroup");
            return -1;
        }
        m->group[g] = (CounterGroup *)object;
        m->counters[g] = &m->group[g]->counters;
    }
    m->counting = (struct tlb_counting){.groups = m->counters, .count = count};
    return 0;
}

static int measuring_allocate(struct measuring *m, size_t parts)
{
    size_t const width = tlb_counting_width(&m->counting), slices = parts * (size_t)m->slices;
    m->out = PyMem_Calloc(slices, sizeof(*m->out));
    m->witness = PyMem_Calloc((size_t)m->slices + 1, sizeof(*m->witness));
    m->counting.rows = PyMem_Calloc(slices + 1, width * sizeof(*m->counting.rows));
    if (!m->out || !m->witness || !m->counting.rows) {
        PyErr_NoMemory();
        return -1;
    }
    m->counting.cost = m->counting.rows + slices * width;
    return 0;
}

static void measuring_free(struct measuring *m)
{
    PyMem_Free(m->out);
    PyMem_Free(m->witness);
    PyMem_Free(m->counting.rows);
}

/* One field of every slice, as an int64 array (parts, slices). */
static PyObject *field_array(const struct measuring *m, npy_intp parts, size_t offset)
{
    PyObject *const array = PyArray_SimpleNew(2, ((npy_intp[]){parts, m->slices}), NPY_INT64);
    if (!array)
        return NULL;
    npy_int64 *const values = PyArray_DATA((PyArrayObject *)array);
    for (npy_intp i = 0; i < parts * m->slices; i++)
        values[i] = (npy_int64) * (const uint64_t *)((const char *)&m->out[i] + offset);
    return array;
}

static PyObject *measuring_result(const struct measuring *m, npy_intp parts)
{
    static const struct number fields[] = {
        {"ns", offsetof(struct tlb_slice, ns)},
        {"cpu_ns", offsetof(struct tlb_slice, cpu_ns)},
        {"minor", offsetof(struct tlb_slice, minor)},
        {"major", offsetof(struct tlb_slice, major)},
        {"switches", offsetof(struct tlb_slice, switches)},
        {0},
    };
    npy_intp const witnesses = m->slices + 1;
    npy_intp const rows[] = {parts, m->slices, (npy_intp)tlb_counting_width(&m->counting)};
    PyObject *result = dict_with(PyDict_New(), "witness_ns", array_of(m->witness, 1, &witnesses));
    for (const struct number *field = fields; result && field->name; field++)
        result = dict_with(result, field->name, field_array(m, parts, field->offset));
    if (m->counting.count)
        result = dict_with(result, "counted", array_of(m->counting.rows, 3, rows));
    return result;
}

/*
 * The parts one after the other. Turns even out what disturbs a machine, and a model is not disturbed; but
 * its slices are so short that in turns all parts would share the caches, which longer slices each have to
 * themselves. So before more than one slice a part goes round once, untimed.
 */
static int measure_apart(struct tlb_run *const *runs, size_t count, const struct measuring *m,
                         const struct tlb_poll *poll)
{
    size_t const slices = (size_t)m->slices;
    int status = 0;
    for (size_t r = 0; r < count && status == 0; r++) {
        struct tlb_counting counting = m->counting;
        counting.rows += r * slices * tlb_counting_width(&counting);
        if (slices > 1 && count > 1)
            status = tlb_run_access(runs[r], runs[r]->lap, poll);
        if (status == 0)
            status = tlb_measure(&runs[r], &m->accesses[r], 1, slices, m->out + r * slices, m->witness,
                                 counting.count ? &counting : NULL, poll);
    }
    return status;
}

static PyObject *session_measure(Session *self, struct measuring *m)
{
    struct tlb_run *runs[PARTS_MOST];
    size_t const count = (size_t)self->count, slices = (size_t)m->slices;
    for (Py_ssize_t i = 0; i < self->count; i++)
        runs[i] = &self->parts[i].run;
    if (session_begin(self) < 0)
        return NULL;
    if (machine_begin(self->machine) < 0) {
        turn_end(&self->turn);
        return NULL;
    }
    struct gil_poll gil;
    gil_release(&gil);
    int const status = self->machine ? measure_apart(runs, count, m, &gil.poll)
                                     : tlb_measure(runs, m->accesses, count, slices, m->out, m->witness,
                                                   m->counting.count ? &m->counting : NULL, &gil.poll);
    gil_acquire(&gil);
    machine_end(self->machine);
    turn_end(&self->turn);
    if (status == -EFAULT)
        PyErr_SetString(PyExc_ValueError, "a part of this session is not mapped in its machine");
    else if (status < 0)
        raise_status(status);
    return status < 0 ? NULL : measuring_result(m, self->count);
}

PyDoc_STRVAR(Session_measure_doc,
             "measure($self, accesses, slices, groups=(), /)\n--\n\n"
             "Time slices of the parts in turn: int64 arrays (parts, slices), witness_ns (slices + 1,); with "
             "groups also counted (parts, slices, columns): of each group its enabled_ns, its running_ns and "
             "its values, all 0 where it had no turn.");

static PyObject *Session_measure(PyObject *object, PyObject *args)
{
    Session *const self = (Session *)object;
    const core_state *const state = PyType_GetModuleState(Py_TYPE(object));
    PyObject *accesses, *groups = NULL, *result = NULL;
    struct measuring m = {0};
    size_t held = 0; /* no group twice: it has one turn */
    if (!PyArg_ParseTuple(args, "O!n|O!:measure", &PyTuple_Type, &accesses, &m.slices, &PyTuple_Type,
                          &groups))
        return NULL;
    if (m.slices < 1 || m.slices > 1 << 24)
        return PyErr_Format(PyExc_ValueError, "slices must be from 1 to 2**24, not %zd", m.slices);
    if (read_accesses(m.accesses, accesses, self->count) < 0 ||
        (groups && read_groups(&m, groups, state->group_type) < 0))
        return NULL;
    while (held < m.counting.count && group_hold(m.group[held], self->machine) == 0)
        held++;
    if (held == m.counting.count && measuring_allocate(&m, (size_t)self->count) == 0)
        result = session_measure(self, &m);
    measuring_free(&m);
    while (held-- > 0)
        group_let_go(m.group[held]);
    return result;
}

/* -- Type -------------------------------------------------------------------------------------------- */

static PyGetSetDef Session_getset[] = {
    {"counts", Session_get_counts, NULL, "(expected, found) of all accesses of each part, warming included.",
     NULL},
    {"laps", Session_get_laps, NULL, "Accesses after which each part repeats its pattern.", NULL},
    {0},
};

static PyMethodDef Session_methods[] = {
    {"pass_over", Session_pass_over, METH_NOARGS, Session_pass_over_doc},
    {"verify", Session_verify, METH_NOARGS, Session_verify_doc},
    {"measure", Session_measure, METH_VARARGS, Session_measure_doc},
    {"close", Session_close, METH_NOARGS, Session_close_doc},
    {"__enter__", context_enter, METH_NOARGS, "__enter__($self)\n--\n\n"},
    {"__exit__", context_exit, METH_VARARGS, "__exit__($self, kind, error, trace, /)\n--\n\n"},
    {0},
};

#ifdef TLB_SIMULATED
#define SIGNATURE "Session(parts, machine, /)"
#else
#define SIGNATURE "Session(parts)"
#endif

PyDoc_STRVAR(Session_doc,
             SIGNATURE "\n--\n\n"
                       "Kernels prepared on parts of mappings, which are nobody else's until it is closed.");

static PyType_Slot Session_slots[] = {
    {Py_tp_doc, (void *)Session_doc},         {Py_tp_new, (void *)Session_new},
    {Py_tp_dealloc, (void *)Session_dealloc}, {Py_tp_methods, Session_methods},
    {Py_tp_getset, Session_getset},           {0, NULL},
};

PyType_Spec session_spec = {
    .name = TLB_CORE ".Session",
    .basicsize = sizeof(Session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Session_slots,
};
