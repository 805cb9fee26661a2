/*
 * The bridge: the only file that includes Python.h or NumPy. To Python it looks like this:
 *
 *   class Mapping:                      # memory under a page policy, outside the heap
 *       address, mapped_bytes, base_page, closed
 *       def __init__(size, *, alignment, base_page, page, huge_shift=0, piece=0)
 *       def advise(advice)
 *       def touch(shuffled, seed) -> minor faults
 *       def populate()
 *       def collapse()
 *       def pass_over(offset, size)
 *       def scan(offset, size) -> {"present", "huge", "zero", "swapped": bytes}
 *       def close()
 *       (buffer protocol)
 *   class Run:                          # a kernel prepared on a part of a mapping
 *       kernel, lap
 *       def __init__(mapping, kernel, offset, size, parameters)
 *       def verify() -> accesses of one lap, as counted
 *   def measure(runs, accesses, slices) -> {"ns", "cpu_ns", "minor", "major", "switches", "witness_ns"}
 *   def kernels() -> {name: parameter names}
 *   def clock_moment(), clock_calibrate(), cpu(), cpuid(leaf, subleaf)
 *
 * A mapping is used by one measurement at a time: the GIL is released meanwhile, so a flag keeps others out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <numpy/arrayobject.h>

#include "tlbprobe.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct {
    PyTypeObject *mapping_type;
    PyTypeObject *run_type;
} core_state;

static core_state *core_get_state(PyObject *module)
{
    return PyModule_GetState(module);
}

/* -- Polling: with the GIL released, take it back now and then to run Python's signal handlers. ------- */

enum { POLL_NS = 10 * 1000 * 1000 };

struct gil_poll {
    PyThreadState *released; /* what PyEval_SaveThread returned */
    uint64_t due;            /* when to ask next */
};

static int gil_ask(void *context)
{
    struct gil_poll *const poll = context;
    if (tlb_clock_ns() < poll->due)
        return 0;
    PyEval_RestoreThread(poll->released);
    int const interrupted = PyErr_CheckSignals();
    poll->released = PyEval_SaveThread();
    poll->due = tlb_clock_ns() + POLL_NS;
    return interrupted ? -EINTR : 0;
}

static void gil_release(struct gil_poll *poll)
{
    poll->due = tlb_clock_ns() + POLL_NS;
    poll->released = PyEval_SaveThread();
}

static void gil_acquire(struct gil_poll *poll)
{
    PyEval_RestoreThread(poll->released);
}

#define GIL_POLL(gil) (&(struct tlb_poll){gil_ask, &(gil)})

/* NULL with the exception that -errno means; an interrupt has set its own already. */
static PyObject *raise_status(int status)
{
    if (status == -EINTR && PyErr_Occurred())
        return NULL;
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* -- Mapping: data ------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct tlb_region region;
    pid_t owner;        /* a forked child does not inherit the memory */
    Py_ssize_t exports; /* views that are alive */
    bool open;
    atomic_flag busy;
} Mapping;

static int mapping_check_open(const Mapping *self)
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

static int mapping_check_range(const Mapping *self, Py_ssize_t offset, Py_ssize_t size)
{
    size_t const whole = self->region.size;
    if (offset >= 0 && size > 0 && (size_t)offset <= whole && (size_t)size <= whole - (size_t)offset)
        return 0;
    PyErr_Format(PyExc_ValueError, "offset=%zd, size=%zd leave the %zu bytes that are mapped", offset, size,
                 whole);
    return -1;
}

/* For the one user at a time that changes or measures the memory. */
static int mapping_acquire(Mapping *self)
{
    if (mapping_check_open(self) < 0)
        return -1;
    if (self->exports > 0) {
        PyErr_Format(PyExc_BufferError,
                     "this Region has %zd view(s) alive (np.frombuffer, memoryview): delete them first",
                     self->exports);
        return -1;
    }
    if (atomic_flag_test_and_set(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this Region is in use by another measurement: use one Region a thread");
        return -1;
    }
    return 0;
}

static void mapping_release(Mapping *self)
{
    atomic_flag_clear(&self->busy);
}

/* -- Mapping: life cycle --------------------------------------------------------------------------------- */

static PyObject *Mapping_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args, (void)keywords; /* a subclass has parameters of its own */
    allocfunc const allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Mapping *const self = (Mapping *)allocate(type, 0);
    if (self)
        atomic_flag_clear(&self->busy);
    return (PyObject *)self;
}

static int Mapping_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    Mapping *const self = (Mapping *)object;
    static char *names[] = {"size", "alignment", "base_page", "page", "huge_shift", "piece", NULL};
    Py_ssize_t size, alignment = 0, base_page = 0, page = 0, piece = 0;
    int huge_shift = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n|$nnnin:Mapping", names, &size, &alignment, &base_page,
                                     &page, &huge_shift, &piece))
        return -1;
    if (self->owner) { /* prepared runs point into the first mapping */
        PyErr_SetString(PyExc_RuntimeError, "this Region was mapped before: create another one");
        return -1;
    }
    if (size <= 0 || base_page <= 0 || page <= 0 || alignment < base_page || size % base_page ||
        size % page || alignment & (alignment - 1) || piece < 0 || piece % base_page || huge_shift < 0 ||
        huge_shift > 40) {
        PyErr_Format(PyExc_ValueError,
                     "size=%zd, alignment=%zd, base_page=%zd, page=%zd, piece=%zd do not fit", size,
                     alignment, base_page, page, piece);
        return -1;
    }
    struct tlb_region_request const request = {.size = (size_t)size,
                                               .alignment = (size_t)alignment,
                                               .base_page = (size_t)base_page,
                                               .page = (size_t)page,
                                               .huge_shift = (unsigned)huge_shift,
                                               .piece = (size_t)piece};
    int const status = tlb_region_map(&self->region, &request);
    if (status < 0) {
        raise_status(status);
        return -1;
    }
    self->owner = getpid();
    self->open = true;
    return 0;
}

static void Mapping_dealloc(PyObject *object)
{
    Mapping *const self = (Mapping *)object;
    PyTypeObject *const type = Py_TYPE(object);
    struct tlb_region region = self->region;
    self->region = (struct tlb_region){0};
    if (region.base && self->owner == getpid()) {
        PyThreadState *const released = PyEval_SaveThread();
        tlb_region_unmap(&region, &(struct tlb_poll){0});
        PyEval_RestoreThread(released);
    }
    freefunc const release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(Mapping_close_doc, "close($self)\n--\n\nGive the memory back. A second call does nothing.");

static PyObject *Mapping_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    Mapping *const self = (Mapping *)object;
    if (self->owner != getpid())
        self->open = false;
    if (!self->open)
        Py_RETURN_NONE;
    if (mapping_acquire(self) < 0)
        return NULL;
    struct gil_poll gil;
    self->open = false;
    gil_release(&gil);
    int const status = tlb_region_unmap(&self->region, GIL_POLL(gil));
    gil_acquire(&gil);
    mapping_release(self);
    if (status < 0)
        return raise_status(status); /* what is left is given back when the object goes */
    Py_RETURN_NONE;
}

/* -- Mapping: methods ------------------------------------------------------------------------------------ */

PyDoc_STRVAR(Mapping_advise_doc, "advise($self, advice, /)\n--\n\nmadvise(2) for all of it.");

static PyObject *Mapping_advise(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    int advice;
    if (!PyArg_ParseTuple(args, "i:advise", &advice) || mapping_acquire(self) < 0)
        return NULL;
    int const status = tlb_region_advise(&self->region, advice);
    mapping_release(self);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Mapping_touch_doc, "touch($self, shuffled, seed, /)\n--\n\n"
                                "Write to every base page; the minor faults that it took.");

static PyObject *Mapping_touch(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    int shuffled;
    unsigned long long seed;
    uint64_t faults = 0;
    if (!PyArg_ParseTuple(args, "pK:touch", &shuffled, &seed) || mapping_acquire(self) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_region_touch(&self->region, shuffled, seed, &faults, GIL_POLL(gil));
    gil_acquire(&gil);
    mapping_release(self);
    if (status < 0)
        return raise_status(status);
    return PyLong_FromUnsignedLongLong(faults);
}

static PyObject *mapping_work(Mapping *self, int (*work)(struct tlb_region *, const struct tlb_poll *))
{
    if (mapping_acquire(self) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = work(&self->region, GIL_POLL(gil));
    gil_acquire(&gil);
    mapping_release(self);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Mapping_populate_doc, "populate($self)\n--\n\nFault every page in through the kernel.");

static PyObject *Mapping_populate(PyObject *object, PyObject *unused)
{
    (void)unused;
    return mapping_work((Mapping *)object, tlb_region_populate);
}

PyDoc_STRVAR(Mapping_collapse_doc, "collapse($self)\n--\n\nMADV_COLLAPSE: huge pages of what is there.");

static PyObject *Mapping_collapse(PyObject *object, PyObject *unused)
{
    (void)unused;
    return mapping_work((Mapping *)object, tlb_region_collapse);
}

PyDoc_STRVAR(Mapping_pass_over_doc, "pass_over($self, offset, size, /)\n--\n\n"
                                    "One untimed pass: read every base page once, in address order.");

static PyObject *Mapping_pass_over(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    Py_ssize_t offset, size;
    if (!PyArg_ParseTuple(args, "nn:pass_over", &offset, &size) || mapping_acquire(self) < 0)
        return NULL;
    int status = mapping_check_range(self, offset, size);
    if (status == 0) {
        struct gil_poll gil;
        gil_release(&gil);
        status = tlb_region_pass(&self->region, (size_t)offset, (size_t)size, GIL_POLL(gil));
        gil_acquire(&gil);
        if (status < 0)
            raise_status(status);
    }
    mapping_release(self);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Mapping_scan_doc, "scan($self, offset, size, /)\n--\n\n"
                               "Bytes of a range that are present, huge, zero and swapped, by PAGEMAP_SCAN.");

static PyObject *Mapping_scan(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    Py_ssize_t offset, size;
    struct tlb_scan scan;
    if (!PyArg_ParseTuple(args, "nn:scan", &offset, &size) || mapping_check_open(self) < 0 ||
        mapping_check_range(self, offset, size) < 0)
        return NULL;
    int const status = tlb_region_scan(&self->region, (size_t)offset, (size_t)size, &scan);
    if (status < 0)
        return raise_status(status);
    return Py_BuildValue("{sKsKsKsK}", "present", (unsigned long long)scan.present, "huge",
                         (unsigned long long)scan.huge, "zero", (unsigned long long)scan.zero, "swapped",
                         (unsigned long long)scan.swapped);
}

static int Mapping_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    Mapping *const self = (Mapping *)object;
    view->obj = NULL;
    if (mapping_check_open(self) < 0)
        return -1;
    if (atomic_flag_test_and_set(&self->busy)) {
        PyErr_SetString(PyExc_BufferError, "this Region is being measured: view it afterwards");
        return -1;
    }
    atomic_flag_clear(&self->busy);
    if (PyBuffer_FillInfo(view, object, self->region.base, (Py_ssize_t)self->region.size, 0, flags) < 0)
        return -1;
    self->exports++;
    return 0;
}

static void Mapping_releasebuffer(PyObject *object, Py_buffer *view)
{
    (void)view;
    ((Mapping *)object)->exports--;
}

static PyObject *Mapping_get_address(PyObject *object, void *unused)
{
    (void)unused;
    const Mapping *const self = (Mapping *)object;
    if (mapping_check_open(self) < 0)
        return NULL;
    return PyLong_FromVoidPtr(self->region.base);
}

static PyObject *Mapping_get_mapped_bytes(PyObject *object, void *unused)
{
    (void)unused;
    const Mapping *const self = (Mapping *)object;
    return PyLong_FromSize_t(self->open ? self->region.size : 0);
}

static PyObject *Mapping_get_base_page(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((Mapping *)object)->region.base_page);
}

static PyObject *Mapping_get_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!((Mapping *)object)->open);
}

static PyGetSetDef Mapping_getset[] = {
    {"address", Mapping_get_address, NULL, "Address of the first byte.", NULL},
    {"mapped_bytes", Mapping_get_mapped_bytes, NULL, "Bytes mapped: whole pages; 0 once closed.", NULL},
    {"base_page", Mapping_get_base_page, NULL, "Bytes of the base page.", NULL},
    {"closed", Mapping_get_closed, NULL, "Whether the memory was given back.", NULL},
    {0},
};

static PyMethodDef Mapping_methods[] = {
    {"advise", Mapping_advise, METH_VARARGS, Mapping_advise_doc},
    {"touch", Mapping_touch, METH_VARARGS, Mapping_touch_doc},
    {"populate", Mapping_populate, METH_NOARGS, Mapping_populate_doc},
    {"collapse", Mapping_collapse, METH_NOARGS, Mapping_collapse_doc},
    {"pass_over", Mapping_pass_over, METH_VARARGS, Mapping_pass_over_doc},
    {"scan", Mapping_scan, METH_VARARGS, Mapping_scan_doc},
    {"close", Mapping_close, METH_NOARGS, Mapping_close_doc},
    {0},
};

PyDoc_STRVAR(Mapping_doc, "Mapping(size, *, alignment, base_page, page, huge_shift=0, piece=0)\n--\n\n"
                          "Private anonymous memory under a page policy.");

static PyType_Slot Mapping_slots[] = {
    {Py_tp_doc, (void *)Mapping_doc},
    {Py_tp_new, (void *)Mapping_new},
    {Py_tp_init, (void *)Mapping_init},
    {Py_tp_dealloc, (void *)Mapping_dealloc},
    {Py_tp_methods, Mapping_methods},
    {Py_tp_getset, Mapping_getset},
    {Py_bf_getbuffer, (void *)Mapping_getbuffer},
    {Py_bf_releasebuffer, (void *)Mapping_releasebuffer},
    {0, NULL},
};

static PyType_Spec Mapping_spec = {
    .name = "tlbprobe._core.Mapping",
    .basicsize = sizeof(Mapping),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = Mapping_slots,
};

/* -- Run: a kernel prepared on a part of a mapping. ---------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Mapping *mapping;
    struct tlb_run run;
} Run;

static const struct tlb_kernel *const kernels[] = {
#define ENTRY(name) &tlb_kernel_##name,
    TLB_KERNELS(ENTRY)
#undef ENTRY
};

enum { KERNELS = sizeof(kernels) / sizeof(*kernels) };

static const struct tlb_kernel *find_kernel(const char *name)
{
    for (size_t i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i]->name, name) == 0)
            return kernels[i];
    PyErr_Format(PyExc_ValueError, "there is no kernel '%s'", name);
    return NULL;
}

static int read_parameters(struct tlb_run *run, PyObject *parameters)
{
    Py_ssize_t count = 0;
    for (; run->kernel->parameters[count]; count++) {
        const char *const name = run->kernel->parameters[count];
        PyObject *const value = PyDict_GetItemString(parameters, name); /* borrowed */
        if (!value) {
            PyErr_Format(PyExc_TypeError, "kernel '%s' needs the parameter '%s'", run->kernel->name, name);
            return -1;
        }
        run->parameter[count] = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred())
            return -1;
    }
    if (PyDict_Size(parameters) != count) {
        PyErr_Format(PyExc_TypeError, "kernel '%s' has %zd parameters, %zd were given", run->kernel->name,
                     count, PyDict_Size(parameters));
        return -1;
    }
    return 0;
}

static int run_prepare(Run *self)
{
    if (mapping_acquire(self->mapping) < 0)
        return -1;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = self->run.kernel->prepare(&self->run, GIL_POLL(gil));
    gil_acquire(&gil);
    mapping_release(self->mapping);
    if (status == -EINVAL)
        PyErr_Format(PyExc_ValueError, "these parameters of kernel '%s' leave its %zu bytes",
                     self->run.kernel->name, self->run.size);
    else if (status < 0)
        raise_status(status);
    return status;
}

static PyObject *Run_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"mapping", "kernel", "offset", "size", "parameters", NULL};
    core_state *const state = PyType_GetModuleState(type);
    PyObject *mapping, *parameters;
    const char *name;
    Py_ssize_t offset, size;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!snnO!:Run", names, state->mapping_type, &mapping,
                                     &name, &offset, &size, &PyDict_Type, &parameters))
        return NULL;
    allocfunc const allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Run *const self = (Run *)allocate(type, 0);
    if (!self)
        return NULL;
    Py_INCREF(mapping);
    self->mapping = (Mapping *)mapping;
    self->run.kernel = find_kernel(name);
    if (!self->run.kernel || mapping_check_open(self->mapping) < 0 ||
        mapping_check_range(self->mapping, offset, size) < 0 || read_parameters(&self->run, parameters) < 0)
        goto failed;
    self->run.base = self->mapping->region.base + offset;
    self->run.size = (size_t)size;
    if (run_prepare(self) < 0)
        goto failed;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void Run_dealloc(PyObject *object)
{
    Run *const self = (Run *)object;
    PyTypeObject *const type = Py_TYPE(object);
    Py_XDECREF(self->mapping);
    freefunc const release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(Run_verify_doc, "verify($self)\n--\n\n"
                             "Walk one lap; the accesses that it took, 0 if it did not close.");

static PyObject *Run_verify(PyObject *object, PyObject *unused)
{
    (void)unused;
    Run *const self = (Run *)object;
    uint64_t found = 0;
    if (!self->run.kernel->verify) {
        PyErr_Format(PyExc_NotImplementedError, "kernel '%s' has nothing to verify", self->run.kernel->name);
        return NULL;
    }
    if (mapping_acquire(self->mapping) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = self->run.kernel->verify(&self->run, &found, GIL_POLL(gil));
    gil_acquire(&gil);
    mapping_release(self->mapping);
    if (status < 0)
        return raise_status(status);
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *Run_get_kernel(PyObject *object, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(((Run *)object)->run.kernel->name);
}

static PyObject *Run_get_lap(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((Run *)object)->run.lap);
}

static PyGetSetDef Run_getset[] = {
    {"kernel", Run_get_kernel, NULL, "Name of the kernel.", NULL},
    {"lap", Run_get_lap, NULL, "Accesses after which the pattern repeats.", NULL},
    {0},
};

static PyMethodDef Run_methods[] = {
    {"verify", Run_verify, METH_NOARGS, Run_verify_doc},
    {0},
};

PyDoc_STRVAR(Run_doc, "Run(mapping, kernel, offset, size, parameters)\n--\n\n"
                      "A kernel prepared on a part of a mapping.");

static PyType_Slot Run_slots[] = {
    {Py_tp_doc, (void *)Run_doc}, {Py_tp_new, (void *)Run_new}, {Py_tp_dealloc, (void *)Run_dealloc},
    {Py_tp_methods, Run_methods}, {Py_tp_getset, Run_getset},   {0, NULL},
};

static PyType_Spec Run_spec = {
    .name = "tlbprobe._core.Run",
    .basicsize = sizeof(Run),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Run_slots,
};

/* -- measure ------------------------------------------------------------------------------------------- */

enum { RUNS_MOST = 16 };

struct session {
    Py_ssize_t count;
    Run *run[RUNS_MOST];
    struct tlb_run *prepared[RUNS_MOST];
    uint64_t accesses[RUNS_MOST];
    Mapping *held[RUNS_MOST]; /* each mapping once, however many runs are on it */
    Py_ssize_t held_count;
};

static bool session_holds(const struct session *session, const Mapping *mapping)
{
    for (Py_ssize_t i = 0; i < session->held_count; i++)
        if (session->held[i] == mapping)
            return true;
    return false;
}

static void session_end(struct session *session)
{
    while (session->held_count > 0)
        mapping_release(session->held[--session->held_count]);
}

static int session_begin(struct session *session)
{
    for (Py_ssize_t i = 0; i < session->count; i++) {
        Mapping *const mapping = session->run[i]->mapping;
        if (session_holds(session, mapping))
            continue;
        if (mapping_acquire(mapping) < 0) {
            session_end(session);
            return -1;
        }
        session->held[session->held_count++] = mapping;
    }
    return 0;
}

/* Tuples, so that the runs stay alive for as long as the caller's arguments do. */
static int session_parse(struct session *session, core_state *state, PyObject *runs, PyObject *accesses)
{
    session->count = PyTuple_Size(runs);
    if (session->count < 1 || session->count > RUNS_MOST || PyTuple_Size(accesses) != session->count) {
        PyErr_Format(PyExc_ValueError, "runs and accesses must be of the same length, 1 to %d", RUNS_MOST);
        return -1;
    }
    for (Py_ssize_t i = 0; i < session->count; i++) {
        PyObject *const run = PyTuple_GetItem(runs, i);
        if (!PyObject_TypeCheck(run, state->run_type)) {
            PyErr_SetString(PyExc_TypeError, "runs must hold _core.Run objects");
            return -1;
        }
        session->run[i] = (Run *)run;
        session->prepared[i] = &session->run[i]->run;
        session->accesses[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(accesses, i));
        if (PyErr_Occurred())
            return -1;
        if (session->accesses[i] == 0) {
            PyErr_SetString(PyExc_ValueError, "accesses must be at least 1");
            return -1;
        }
    }
    return 0;
}

/* One field of every slice, as an int64 array (runs, slices). */
static PyObject *field_array(const struct tlb_slice *slices, npy_intp runs, npy_intp count, size_t field)
{
    npy_intp dimensions[] = {runs, count};
    PyObject *const array = PyArray_SimpleNew(2, dimensions, NPY_INT64);
    if (!array)
        return NULL;
    npy_int64 *const values = PyArray_DATA((PyArrayObject *)array);
    for (npy_intp i = 0; i < runs * count; i++)
        values[i] = (npy_int64) * (const uint64_t *)((const char *)&slices[i] + field);
    return array;
}

static PyObject *witness_array(const uint64_t *witness, npy_intp count)
{
    PyObject *const array = PyArray_SimpleNew(1, &count, NPY_INT64);
    if (array)
        memcpy(PyArray_DATA((PyArrayObject *)array), witness, (size_t)count * sizeof(*witness));
    return array;
}

static PyObject *measure_result(const struct tlb_slice *out, const uint64_t *witness, npy_intp runs,
                                npy_intp count)
{
    return Py_BuildValue("{sNsNsNsNsNsN}", "ns",
                         field_array(out, runs, count, offsetof(struct tlb_slice, ns)), "cpu_ns",
                         field_array(out, runs, count, offsetof(struct tlb_slice, cpu_ns)), "minor",
                         field_array(out, runs, count, offsetof(struct tlb_slice, minor)), "major",
                         field_array(out, runs, count, offsetof(struct tlb_slice, major)), "switches",
                         field_array(out, runs, count, offsetof(struct tlb_slice, switches)), "witness_ns",
                         witness_array(witness, count + 1));
}

PyDoc_STRVAR(core_measure_doc,
             "measure($module, runs, accesses, slices, /)\n--\n\n"
             "Time slices of runs in turn: int64 arrays (runs, slices), witness_ns (slices + 1,).");

static PyObject *core_measure(PyObject *module, PyObject *args)
{
    PyObject *runs, *accesses, *result = NULL;
    Py_ssize_t slices;
    struct session session = {0};
    if (!PyArg_ParseTuple(args, "O!O!n:measure", &PyTuple_Type, &runs, &PyTuple_Type, &accesses, &slices))
        return NULL;
    if (slices < 1 || slices > 1 << 24)
        return PyErr_Format(PyExc_ValueError, "slices must be from 1 to 2**24, not %zd", slices);
    if (session_parse(&session, core_get_state(module), runs, accesses) < 0)
        return NULL;

    struct tlb_slice *const out = PyMem_Calloc((size_t)(session.count * slices), sizeof(*out));
    uint64_t *const witness = PyMem_Calloc((size_t)slices + 1, sizeof(*witness));
    if (!out || !witness) {
        PyErr_NoMemory();
    } else if (session_begin(&session) == 0) {
        struct gil_poll gil;
        gil_release(&gil);
        int const status = tlb_measure(session.prepared, session.accesses, (size_t)session.count,
                                       (uint64_t)slices, out, witness, GIL_POLL(gil));
        gil_acquire(&gil);
        session_end(&session);
        result = status < 0 ? raise_status(status) : measure_result(out, witness, session.count, slices);
    }
    PyMem_Free(out);
    PyMem_Free(witness);
    return result;
}

/* -- Facts ----------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(core_kernels_doc, "kernels($module)\n--\n\nNames of the kernels and of their parameters.");

static PyObject *core_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *const result = PyDict_New();
    for (size_t i = 0; result && i < KERNELS; i++) {
        PyObject *const names = PyList_New(0);
        int status = names ? 0 : -1;
        for (size_t k = 0; status == 0 && kernels[i]->parameters[k]; k++) {
            PyObject *const name = PyUnicode_FromString(kernels[i]->parameters[k]);
            status = name ? PyList_Append(names, name) : -1;
            Py_XDECREF(name);
        }
        if (status == 0)
            status = PyDict_SetItemString(result, kernels[i]->name, names);
        Py_XDECREF(names);
        if (status < 0) {
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

PyDoc_STRVAR(core_clock_moment_doc,
             "clock_moment($module)\n--\n\n"
             "One moment on CLOCK_MONOTONIC_RAW (ns), CLOCK_MONOTONIC (ns) and the tick counter (0: none).");

static PyObject *core_clock_moment(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    struct tlb_moment moment;
    tlb_clock_moment(&moment);
    return Py_BuildValue("(KKK)", (unsigned long long)moment.raw_ns, (unsigned long long)moment.monotonic_ns,
                         (unsigned long long)moment.ticks);
}

PyDoc_STRVAR(core_clock_calibrate_doc, "clock_calibrate($module)\n--\n\n"
                                       "Cost of reading the clock and its smallest step, both in ns.");

static PyObject *core_clock_calibrate(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    struct tlb_clock_cost cost;
    tlb_clock_calibrate(&cost);
    return Py_BuildValue("(dK)", cost.read_ns, (unsigned long long)cost.step_ns);
}

PyDoc_STRVAR(core_cpu_doc, "cpu($module)\n--\n\nNumber of the CPU that this thread runs on.");

static PyObject *core_cpu(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    int const cpu = sched_getcpu();
    return cpu < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(cpu);
}

PyDoc_STRVAR(core_cpuid_doc, "cpuid($module, leaf, subleaf, /)\n--\n\n"
                             "(eax, ebx, ecx, edx), or None where there is no such instruction.");

static PyObject *core_cpuid(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned int leaf, subleaf;
    uint32_t registers[4];
    if (!PyArg_ParseTuple(args, "II:cpuid", &leaf, &subleaf))
        return NULL;
    if (tlb_cpuid(leaf, subleaf, registers) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(IIII)", registers[0], registers[1], registers[2], registers[3]);
}

/* -- The module ------------------------------------------------------------------------------------------ */

static PyMethodDef core_methods[] = {
    {"measure", core_measure, METH_VARARGS, core_measure_doc},
    {"kernels", core_kernels, METH_NOARGS, core_kernels_doc},
    {"clock_moment", core_clock_moment, METH_NOARGS, core_clock_moment_doc},
    {"clock_calibrate", core_clock_calibrate, METH_NOARGS, core_clock_calibrate_doc},
    {"cpu", core_cpu, METH_NOARGS, core_cpu_doc},
    {"cpuid", core_cpuid, METH_VARARGS, core_cpuid_doc},
    {0},
};

static int core_exec(PyObject *module)
{
    core_state *const state = core_get_state(module);
    if (PyArray_ImportNumPyAPI() < 0)
        return -1;
    state->mapping_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Mapping_spec, NULL);
    if (!state->mapping_type || PyModule_AddType(module, state->mapping_type) < 0)
        return -1;
    state->run_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Run_spec, NULL);
    if (!state->run_type || PyModule_AddType(module, state->run_type) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "WITNESS_ADDS", TLB_WITNESS_ADDS);
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *const state = core_get_state(module);
    Py_VISIT(state->mapping_type);
    Py_VISIT(state->run_type);
    return 0;
}

static int core_clear(PyObject *module)
{
    core_state *const state = core_get_state(module);
    Py_CLEAR(state->mapping_type);
    Py_CLEAR(state->run_type);
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* nor does NumPy */
#endif
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tlbprobe._core",
    .m_doc = "Mappings, kernels and the slice loop.",
    .m_size = sizeof(core_state),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
