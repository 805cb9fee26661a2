/*
 * The bridge: the only file that includes Python.h or NumPy. To Python it looks like this:
 *
 *   class Mapping:                      # memory under a page policy, outside the heap
 *       address, mapped_bytes, base_page, closed
 *       def __init__(size, *, alignment, base_page, page, huge_shift=0, piece=0, sparse=False)
 *       def advise(advice)
 *       def touch(shuffled, seed) -> minor faults
 *       def populate()
 *       def collapse()
 *       def pass_over(offset, size)
 *       def scan(offset, size) -> {"present", "huge", "zero", "swapped": bytes}
 *       def close()
 *       (buffer protocol)
 *   class Session:                      # kernels prepared on parts of mappings, to be timed in turn
 *       laps, counts
 *       def __init__([(mapping, kernel, offset, size, parameters), ...])
 *       def pass_over()
 *       def verify() -> (accesses of one lap, as counted, ...)
 *       def measure(accesses, slices, groups=()) -> {"ns", "cpu_ns", "minor", "major", "switches",
 *                                                    "witness_ns", and "counted" where there are groups}
 *       def close()
 *       (context manager)
 *   def fault(kind, ...), shootdown(kind, ...) -> dict, or (step, errno, signal) where it failed
 *   def open_unnamed(folder, flags) -> descriptor of a file without a name
 *   class CounterGroup:                 # perf events of one thread, counted together or not at all
 *       def __init__([(type, config, config1, config2), ...], *, pid=0, exclude_kernel=False,
 *                    inherit=False, enable_on_exec=False)
 *       def enable(), disable(), reset(), fileno(), close()
 *       def read() -> (enabled_ns, running_ns, (value, ...))
 *       def peek() -> the same without a system call, or None
 *       (context manager)
 *   def kernels() -> {name: parameter names}
 *   def clock_ns(), clock_wait(seconds), clock_moment(), clock_calibrate(), cpu(), cpuid(leaf, subleaf)
 *   def program_launch(paths, arguments, environment, streams, thp, go, report) -> pid
 *   def program_go(go, report) -> {"ns", "user_us", ..., "stage", "error"}
 *   def program_trace(pid), program_resume(pid)
 *   def program_wait(pid) -> (whether it has ended and not only stopped, ns)
 *   JUMP_REACH, WITNESS_ADDS: int
 *
 * A mapping is used by one session at a time, from the first node written to the last one read: the GIL is
 * released meanwhile, and between two calls other threads and signal handlers run, so a flag keeps them out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <numpy/arrayobject.h>

#include "code.h"
#include "tlbprobe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    PyTypeObject *mapping_type;
    PyTypeObject *session_type;
    PyTypeObject *group_type;
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

static PyObject *tuple_of(const uint64_t *values, Py_ssize_t count)
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

static pid_t this_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
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

/* What a region is asked for, as Python gives it. */
struct request_arguments {
    Py_ssize_t size, alignment, base_page, page, piece;
    int huge_shift;
};

static int request_check(const struct request_arguments *given, struct tlb_region_request *request)
{
    if (given->size <= 0 || given->base_page <= 0 || given->page <= 0 ||
        given->alignment < given->base_page || given->size % given->base_page || given->size % given->page ||
        given->alignment & (given->alignment - 1) || given->piece < 0 || given->piece % given->base_page ||
        given->huge_shift < 0 || given->huge_shift > 40) {
        PyErr_Format(PyExc_ValueError,
                     "size=%zd, alignment=%zd, base_page=%zd, page=%zd, piece=%zd do not fit", given->size,
                     given->alignment, given->base_page, given->page, given->piece);
        return -1;
    }
    *request = (struct tlb_region_request){.size = (size_t)given->size,
                                           .alignment = (size_t)given->alignment,
                                           .base_page = (size_t)given->base_page,
                                           .page = (size_t)given->page,
                                           .huge_shift = (unsigned)given->huge_shift,
                                           .piece = (size_t)given->piece};
    return 0;
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
    static char *names[] = {"size", "alignment", "base_page", "page", "huge_shift", "piece", "sparse", NULL};
    struct request_arguments given = {0};
    int sparse = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n|$nnninp:Mapping", names, &given.size,
                                     &given.alignment, &given.base_page, &given.page, &given.huge_shift,
                                     &given.piece, &sparse))
        return -1;
    if (self->owner) { /* prepared runs point into the first mapping */
        PyErr_SetString(PyExc_RuntimeError, "this Region was mapped before: create another one");
        return -1;
    }
    struct tlb_region_request request;
    if (request_check(&given, &request) < 0)
        return -1;
    request.sparse = sparse;
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

PyDoc_STRVAR(Mapping_close_doc,
             "close($self)\n--\n\nGive the memory back; a second call does what an interrupted one left.");

static PyObject *Mapping_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    Mapping *const self = (Mapping *)object;
    bool const ours = self->owner == getpid();
    if (self->open && ours && mapping_acquire(self) < 0)
        return NULL;
    bool const goes_on = !self->open && ours && self->region.base; /* a close that was interrupted */
    if (!ours || (!self->open && (!goes_on || atomic_flag_test_and_set(&self->busy)))) {
        self->open = false;
        Py_RETURN_NONE;
    }
    self->open = false;
    struct gil_poll gil;
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

PyDoc_STRVAR(Mapping_doc, "Mapping(size, *, alignment, base_page, page, huge_shift=0, piece=0, "
                          "sparse=False)\n--\n\n"
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

/* -- CounterGroup: data ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct tlb_counters counters;
    bool open;
    bool busy; /* a session reads it with the GIL released */
} CounterGroup;

static int group_check_open(const CounterGroup *self)
{
    if (!self->open)
        PyErr_SetString(PyExc_ValueError, "this CounterGroup is closed");
    return self->open ? 0 : -1;
}

/* -- CounterGroup: life cycle ---------------------------------------------------------------------------- */

static int event_parse(struct tlb_event *event, PyObject *given)
{
    enum { TYPE, CONFIG, CONFIG1, CONFIG2, NUMBERS };
    uint64_t number[NUMBERS];
    if (!PyTuple_Check(given) || PyTuple_Size(given) != NUMBERS) {
        PyErr_SetString(PyExc_TypeError, "each event must be a tuple (type, config, config1, config2)");
        return -1;
    }
    for (Py_ssize_t i = 0; i < NUMBERS; i++) {
        number[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i));
        if (PyErr_Occurred())
            return -1;
    }
    if (number[TYPE] > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the type of an event must fit 32 bits");
        return -1;
    }
    *event = (struct tlb_event){(uint32_t)number[TYPE], number[CONFIG], number[CONFIG1], number[CONFIG2]};
    return 0;
}

static Py_ssize_t events_parse(struct tlb_event *events, PyObject *given)
{
    PyObject *const tuple = PySequence_Tuple(given);
    if (!tuple)
        return -1;
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 1 || count > TLB_EVENTS) {
        PyErr_Format(PyExc_ValueError, "a CounterGroup has 1 to %d events, not %zd", TLB_EVENTS, count);
        count = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (event_parse(&events[i], PyTuple_GetItem(tuple, i)) < 0)
            count = -1;
    Py_DECREF(tuple);
    return count;
}

/* An OSError that knows which event it was: in words, and as a number in its attribute `event`. */
static void raise_refused(int status, size_t index, const struct tlb_event *event)
{
    char note[100];
    snprintf(note, sizeof(note), "event %zu of the group: type %" PRIu32 ", config %#" PRIx64, index,
             event->type, event->config);
    PyObject *const error = PyObject_CallFunction(PyExc_OSError, "is", -status, strerror(-status));
    PyObject *const number = PyLong_FromSize_t(index);
    PyObject *const noted = error ? PyObject_CallMethod(error, "add_note", "s", note) : NULL; /* None */
    if (noted && number && PyObject_SetAttrString(error, "event", number) == 0)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(noted);
    Py_XDECREF(number);
    Py_XDECREF(error);
}

static int group_open(CounterGroup *self, const struct tlb_counters_request *request)
{
    int const status = tlb_counters_open(&self->counters, request);
    if (status == 0) {
        self->open = true;
        return 0;
    }
    size_t const failed = self->counters.count;
    tlb_counters_close(&self->counters);
    raise_refused(status, failed, &request->events[failed]);
    return -1;
}

static PyObject *CounterGroup_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"events", "pid", "exclude_kernel", "inherit", "enable_on_exec", NULL};
    PyObject *given;
    int pid = 0, exclude_kernel = 0, inherit = 0, enable_on_exec = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$ippp:CounterGroup", names, &given, &pid,
                                     &exclude_kernel, &inherit, &enable_on_exec))
        return NULL;
    if (pid < 0)
        return PyErr_Format(PyExc_ValueError, "pid=%d must be a thread, or 0 for the calling one", pid);
    struct tlb_event events[TLB_EVENTS];
    Py_ssize_t const count = events_parse(events, given);
    if (count < 0)
        return NULL;
    allocfunc const allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    CounterGroup *const self = (CounterGroup *)allocate(type, 0);
    struct tlb_counters_request const request = {.events = events,
                                                 .count = (size_t)count,
                                                 .pid = pid,
                                                 .exclude_kernel = exclude_kernel,
                                                 .inherit = inherit,
                                                 .enable_on_exec = enable_on_exec};
    if (self && group_open(self, &request) == 0)
        return (PyObject *)self;
    Py_XDECREF(self);
    return NULL;
}

static void CounterGroup_dealloc(PyObject *object)
{
    CounterGroup *const self = (CounterGroup *)object;
    PyTypeObject *const type = Py_TYPE(object);
    if (self->open)
        tlb_counters_close(&self->counters);
    freefunc const release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(CounterGroup_close_doc,
             "close($self)\n--\n\nGive the counters back. A second call does nothing.");

static PyObject *CounterGroup_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    CounterGroup *const self = (CounterGroup *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this CounterGroup is in use by a measurement");
        return NULL;
    }
    if (self->open)
        tlb_counters_close(&self->counters);
    self->open = false;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(CounterGroup_enter_doc, "__enter__($self)\n--\n\n");

static PyObject *CounterGroup_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    Py_INCREF(object);
    return object;
}

PyDoc_STRVAR(CounterGroup_exit_doc, "__exit__($self, kind, error, trace, /)\n--\n\n");

static PyObject *CounterGroup_exit(PyObject *object, PyObject *args)
{
    (void)args;
    return CounterGroup_close(object, NULL);
}

/* -- CounterGroup: methods ------------------------------------------------------------------------------- */

static PyObject *group_control(PyObject *object, int (*control)(const struct tlb_counters *))
{
    CounterGroup *const self = (CounterGroup *)object;
    if (group_check_open(self) < 0)
        return NULL;
    int const status = control(&self->counters);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(CounterGroup_enable_doc, "enable($self)\n--\n\nCount from now on.");

static PyObject *CounterGroup_enable(PyObject *object, PyObject *unused)
{
    (void)unused;
    return group_control(object, tlb_counters_enable);
}

PyDoc_STRVAR(CounterGroup_disable_doc, "disable($self)\n--\n\nStop counting; what was counted stays.");

static PyObject *CounterGroup_disable(PyObject *object, PyObject *unused)
{
    (void)unused;
    return group_control(object, tlb_counters_disable);
}

PyDoc_STRVAR(CounterGroup_reset_doc, "reset($self)\n--\n\nSet the values to zero, and not the times.");

static PyObject *CounterGroup_reset(PyObject *object, PyObject *unused)
{
    (void)unused;
    return group_control(object, tlb_counters_reset);
}

static PyObject *reading_tuple(const struct tlb_reading *reading, size_t count)
{
    return Py_BuildValue("(KKN)", (unsigned long long)reading->enabled_ns,
                         (unsigned long long)reading->running_ns,
                         tuple_of(reading->value, (Py_ssize_t)count));
}

PyDoc_STRVAR(
    CounterGroup_read_doc,
    "read($self)\n--\n\n"
    "(enabled_ns, running_ns, (value, ...)); where running_ns is 0 the values are missing, not zero.");

static PyObject *CounterGroup_read(PyObject *object, PyObject *unused)
{
    (void)unused;
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_check_open(self) < 0)
        return NULL;
    int const status = tlb_counters_read(&self->counters, &reading);
    return status < 0 ? raise_status(status) : reading_tuple(&reading, self->counters.count);
}

PyDoc_STRVAR(CounterGroup_peek_doc,
             "peek($self)\n--\n\n"
             "Read without a system call, in the thread that is counted; None where that cannot be.");

static PyObject *CounterGroup_peek(PyObject *object, PyObject *unused)
{
    (void)unused;
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_check_open(self) < 0)
        return NULL;
    if (self->counters.thread != this_thread() || tlb_counters_peek(&self->counters, &reading) < 0)
        Py_RETURN_NONE;
    return reading_tuple(&reading, self->counters.count);
}

PyDoc_STRVAR(CounterGroup_fileno_doc, "fileno($self)\n--\n\nFile descriptor of the first event.");

static PyObject *CounterGroup_fileno(PyObject *object, PyObject *unused)
{
    (void)unused;
    const CounterGroup *const self = (CounterGroup *)object;
    return group_check_open(self) < 0 ? NULL : PyLong_FromLong(self->counters.fd[0]);
}

static PyMethodDef CounterGroup_methods[] = {
    {"enable", CounterGroup_enable, METH_NOARGS, CounterGroup_enable_doc},
    {"disable", CounterGroup_disable, METH_NOARGS, CounterGroup_disable_doc},
    {"reset", CounterGroup_reset, METH_NOARGS, CounterGroup_reset_doc},
    {"read", CounterGroup_read, METH_NOARGS, CounterGroup_read_doc},
    {"peek", CounterGroup_peek, METH_NOARGS, CounterGroup_peek_doc},
    {"fileno", CounterGroup_fileno, METH_NOARGS, CounterGroup_fileno_doc},
    {"close", CounterGroup_close, METH_NOARGS, CounterGroup_close_doc},
    {"__enter__", CounterGroup_enter, METH_NOARGS, CounterGroup_enter_doc},
    {"__exit__", CounterGroup_exit, METH_VARARGS, CounterGroup_exit_doc},
    {0},
};

PyDoc_STRVAR(CounterGroup_doc, "CounterGroup(events, *, pid=0, exclude_kernel=False, inherit=False, "
                               "enable_on_exec=False)\n--\n\n"
                               "Perf events of one thread that are counted together, or not at all.");

static PyType_Slot CounterGroup_slots[] = {
    {Py_tp_doc, (void *)CounterGroup_doc},
    {Py_tp_new, (void *)CounterGroup_new},
    {Py_tp_dealloc, (void *)CounterGroup_dealloc},
    {Py_tp_methods, CounterGroup_methods},
    {0, NULL},
};

static PyType_Spec CounterGroup_spec = {
    .name = "tlbprobe._core.CounterGroup",
    .basicsize = sizeof(CounterGroup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = CounterGroup_slots,
};

/* -- Kernels by name ------------------------------------------------------------------------------------- */

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
    for (; count < TLB_PARAMETERS && run->kernel->parameters[count]; count++) {
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

/* -- Session: data --------------------------------------------------------------------------------------- */

enum { PARTS_MOST = 16 };

struct part {
    Mapping *mapping;
    bool holds; /* this part acquired its mapping; of parts on the same one, the first does */
    bool begun; /* prepare was called: release has something to undo, perhaps */
    struct tlb_run run;
};

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    struct part parts[PARTS_MOST];
    bool open;
    bool busy; /* a call with the GIL released is under way */
} Session;

static size_t part_offset(const struct part *part)
{
    return (size_t)(part->run.base - part->mapping->region.base);
}

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
    self->open = false;
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
static int session_enter(Session *self)
{
    if (!self->open) {
        PyErr_SetString(PyExc_ValueError, "this session is closed");
        return -1;
    }
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this session is in use by another call");
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (mapping_check_open(self->parts[i].mapping) < 0)
            return -1;
    self->busy = true;
    return 0;
}

/* -- Session: life cycle --------------------------------------------------------------------------------- */

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
    part->run.kernel = find_kernel(name);
    if (!part->run.kernel || mapping_check_open(mapping) < 0 ||
        mapping_check_range(mapping, offset, size) < 0 || read_parameters(&part->run, parameters) < 0)
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
    int const status = part->run.kernel->prepare(&part->run, GIL_POLL(gil));
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
    self->open = true;
    return 0;
}

static PyObject *Session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"parts", NULL};
    PyObject *given;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Session", names, &given))
        return NULL;
    allocfunc const allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Session *const self = (Session *)allocate(type, 0);
    if (!self)
        return NULL;
    PyObject *const parts = PySequence_Tuple(given);
    bool const done = parts && session_parse(self, PyType_GetModuleState(type), parts) == 0 &&
                      session_check_apart(self) == 0 && session_hold(self) == 0 && session_prepare(self) == 0;
    Py_XDECREF(parts);
    if (done)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void Session_dealloc(PyObject *object)
{
    Session *const self = (Session *)object;
    PyTypeObject *const type = Py_TYPE(object);
    session_let_go(self);
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_DECREF(self->parts[i].mapping);
    freefunc const release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(Session_close_doc, "close($self)\n--\n\nLet the mappings go. A second call does nothing.");

static PyObject *Session_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    Session *const self = (Session *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this session is in use by another call");
        return NULL;
    }
    session_let_go(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(Session_enter_doc, "__enter__($self)\n--\n\n");

static PyObject *Session_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    Py_INCREF(object);
    return object;
}

PyDoc_STRVAR(Session_exit_doc, "__exit__($self, kind, error, trace, /)\n--\n\n");

static PyObject *Session_exit(PyObject *object, PyObject *args)
{
    (void)args;
    return Session_close(object, NULL);
}

/* -- Session: methods ------------------------------------------------------------------------------------ */

static int part_pass(struct part *part, const struct tlb_poll *poll)
{
    if (part->run.kernel->pass)
        return part->run.kernel->pass(&part->run, poll);
    return tlb_region_pass(&part->mapping->region, part_offset(part), part->run.size, poll);
}

PyDoc_STRVAR(Session_pass_over_doc, "pass_over($self)\n--\n\n"
                                    "One untimed pass: read every page in use once, in address order.");

static PyObject *Session_pass_over(PyObject *object, PyObject *unused)
{
    (void)unused;
    Session *const self = (Session *)object;
    if (session_enter(self) < 0)
        return NULL;
    int status = 0;
    struct gil_poll gil;
    gil_release(&gil);
    for (Py_ssize_t i = 0; i < self->count && status == 0; i++)
        status = part_pass(&self->parts[i], GIL_POLL(gil));
    gil_acquire(&gil);
    self->busy = false;
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
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

static PyObject *Session_verify(PyObject *object, PyObject *unused)
{
    (void)unused;
    Session *const self = (Session *)object;
    uint64_t found[PARTS_MOST] = {0};
    if (session_check_verifiable(self) < 0 || session_enter(self) < 0)
        return NULL;
    int status = 0;
    struct gil_poll gil;
    gil_release(&gil);
    for (Py_ssize_t i = 0; i < self->count && status == 0; i++)
        status = self->parts[i].run.kernel->verify(&self->parts[i].run, &found[i], GIL_POLL(gil));
    gil_acquire(&gil);
    self->busy = false;
    return status < 0 ? raise_status(status) : tuple_of(found, self->count);
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

static PyObject *session_measure(Session *self, const uint64_t *accesses, Py_ssize_t slices,
                                 struct tlb_slice *out, uint64_t *witness,
                                 const struct tlb_counting *counting)
{
    struct tlb_run *runs[PARTS_MOST];
    for (Py_ssize_t i = 0; i < self->count; i++)
        runs[i] = &self->parts[i].run;
    if (session_enter(self) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_measure(runs, accesses, (size_t)self->count, (uint64_t)slices, out, witness,
                                   counting, GIL_POLL(gil));
    gil_acquire(&gil);
    self->busy = false;
    return status < 0 ? raise_status(status) : measure_result(out, witness, self->count, slices);
}

/* -- Session: what is counted around the slices ---------------------------------------------------------- */

enum { GROUPS_MOST = 32 };

struct counted_groups {
    CounterGroup *object[GROUPS_MOST];
    struct tlb_counters *counters[GROUPS_MOST];
    Py_ssize_t count;
};

static int groups_parse(struct counted_groups *groups, core_state *state, PyObject *given)
{
    Py_ssize_t const count = PyTuple_Size(given);
    if (count > GROUPS_MOST) {
        PyErr_Format(PyExc_ValueError, "at most %d groups are counted, not %zd", GROUPS_MOST, count);
        return -1;
    }
    for (groups->count = 0; groups->count < count; groups->count++) {
        PyObject *const object = PyTuple_GetItem(given, groups->count);
        if (!PyObject_TypeCheck(object, state->group_type)) {
            PyErr_SetString(PyExc_TypeError, "groups must be a tuple of CounterGroup");
            return -1;
        }
        groups->object[groups->count] = (CounterGroup *)object;
        groups->counters[groups->count] = &groups->object[groups->count]->counters;
    }
    return 0;
}

/* Only the thread that is counted can be measured; and no group twice, whose busy flag would be cleared once.
 */
static int group_hold(CounterGroup *group)
{
    if (group_check_open(group) < 0)
        return -1;
    if (group->counters.thread != this_thread()) {
        PyErr_Format(PyExc_RuntimeError, "this CounterGroup counts thread %d, not the one that measures",
                     (int)group->counters.thread);
        return -1;
    }
    if (group->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this CounterGroup is in use by a measurement");
        return -1;
    }
    group->busy = true;
    return 0;
}

static PyObject *counted_array(const uint64_t *rows, npy_intp runs, npy_intp slices, npy_intp width)
{
    npy_intp dimensions[] = {runs, slices, width};
    PyObject *const array = PyArray_SimpleNew(3, dimensions, NPY_INT64);
    if (array)
        memcpy(PyArray_DATA((PyArrayObject *)array), rows, (size_t)(runs * slices * width) * sizeof(*rows));
    return array;
}

static PyObject *session_count(Session *self, const uint64_t *accesses, Py_ssize_t slices,
                               struct tlb_slice *out, uint64_t *witness, const struct counted_groups *groups)
{
    struct tlb_counting counting = {.groups = groups->counters, .count = (size_t)groups->count};
    size_t const width = tlb_counting_width(&counting);
    uint64_t *const rows = PyMem_Calloc((size_t)(self->count * slices) + 1, width * sizeof(*rows));
    if (!rows)
        return PyErr_NoMemory();
    counting.rows = rows;
    counting.cost = rows + (size_t)(self->count * slices) * width;
    PyObject *const result = session_measure(self, accesses, slices, out, witness, &counting);
    PyObject *const counted = result ? counted_array(rows, self->count, slices, (npy_intp)width) : NULL;
    PyMem_Free(rows);
    if (counted && PyDict_SetItemString(result, "counted", counted) == 0) {
        Py_DECREF(counted);
        return result;
    }
    Py_XDECREF(counted);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *session_measure_groups(Session *self, const uint64_t *accesses, Py_ssize_t slices,
                                        struct tlb_slice *out, uint64_t *witness,
                                        const struct counted_groups *groups)
{
    if (groups->count == 0)
        return session_measure(self, accesses, slices, out, witness, NULL);
    Py_ssize_t held = 0;
    while (held < groups->count && group_hold(groups->object[held]) == 0)
        held++;
    PyObject *const result =
        held == groups->count ? session_count(self, accesses, slices, out, witness, groups) : NULL;
    while (held-- > 0)
        groups->object[held]->busy = false;
    return result;
}

PyDoc_STRVAR(Session_measure_doc,
             "measure($self, accesses, slices, groups=(), /)\n--\n\n"
             "Time slices of the parts in turn: int64 arrays (parts, slices), witness_ns (slices + 1,); with "
             "groups also counted (parts, slices, columns): of each group its enabled_ns, its running_ns and "
             "its values, all 0 where it had no turn.");

static PyObject *Session_measure(PyObject *object, PyObject *args)
{
    Session *const self = (Session *)object;
    PyObject *given, *counters = NULL, *result = NULL;
    Py_ssize_t slices;
    uint64_t accesses[PARTS_MOST];
    struct counted_groups groups = {.count = 0};
    if (!PyArg_ParseTuple(args, "O!n|O!:measure", &PyTuple_Type, &given, &slices, &PyTuple_Type, &counters))
        return NULL;
    if (slices < 1 || slices > 1 << 24)
        return PyErr_Format(PyExc_ValueError, "slices must be from 1 to 2**24, not %zd", slices);
    if (read_accesses(accesses, given, self->count) < 0 ||
        (counters && groups_parse(&groups, PyType_GetModuleState(Py_TYPE(object)), counters) < 0))
        return NULL;
    struct tlb_slice *const out = PyMem_Calloc((size_t)(self->count * slices), sizeof(*out));
    uint64_t *const witness = PyMem_Calloc((size_t)slices + 1, sizeof(*witness));
    if (out && witness)
        result = session_measure_groups(self, accesses, slices, out, witness, &groups);
    else
        PyErr_NoMemory();
    PyMem_Free(out);
    PyMem_Free(witness);
    return result;
}

static PyObject *Session_get_laps(PyObject *object, void *unused)
{
    (void)unused;
    const Session *const self = (Session *)object;
    uint64_t laps[PARTS_MOST];
    for (Py_ssize_t i = 0; i < self->count; i++)
        laps[i] = self->parts[i].run.lap;
    return tuple_of(laps, self->count);
}

static PyObject *Session_get_counts(PyObject *object, void *unused)
{
    (void)unused;
    const Session *const self = (Session *)object;
    PyObject *const counts = PyTuple_New(self->count);
    for (Py_ssize_t i = 0; counts && i < self->count; i++) {
        const struct tlb_run *const run = &self->parts[i].run;
        PyObject *const pair =
            Py_BuildValue("(KK)", (unsigned long long)run->expected, (unsigned long long)run->found);
        if (!pair || PyTuple_SetItem(counts, i, pair) < 0) {
            Py_DECREF(counts);
            return NULL;
        }
    }
    return counts;
}

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
    {"__enter__", Session_enter, METH_NOARGS, Session_enter_doc},
    {"__exit__", Session_exit, METH_VARARGS, Session_exit_doc},
    {0},
};

PyDoc_STRVAR(Session_doc,
             "Session(parts)\n--\n\n"
             "Kernels prepared on parts of mappings, which are nobody else's until it is closed.");

static PyType_Slot Session_slots[] = {
    {Py_tp_doc, (void *)Session_doc},         {Py_tp_new, (void *)Session_new},
    {Py_tp_dealloc, (void *)Session_dealloc}, {Py_tp_methods, Session_methods},
    {Py_tp_getset, Session_getset},           {0, NULL},
};

static PyType_Spec Session_spec = {
    .name = "tlbprobe._core.Session",
    .basicsize = sizeof(Session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = Session_slots,
};

/* -- What a process of its own does: faults and shootdowns ------------------------------------------------
 */

/* Number of a name in a list; -1 with an exception. */
static int find_kind(const char *const *names, int count, const char *name, const char *what)
{
    for (int kind = 0; kind < count; kind++)
        if (strcmp(names[kind], name) == 0)
            return kind;
    PyErr_Format(PyExc_ValueError, "there is no kind of %s '%s'", what, name);
    return -1;
}

/* Memory that both processes share. */
static void *share(size_t size)
{
    void *const mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED)
        return mapped;
    if (errno == ENOMEM)
        PyErr_NoMemory();
    else
        PyErr_SetFromErrno(PyExc_OSError);
    return NULL;
}

static int read_cpus(PyObject *given, Py_ssize_t count, int *cpus)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) != count) {
        PyErr_SetString(PyExc_ValueError, "cpus must be a tuple with one CPU for each thread");
        return -1;
    }
    for (Py_ssize_t t = 0; t < count; t++) {
        cpus[t] = (int)PyLong_AsLong(PyTuple_GetItem(given, t));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* (step, errno or 0, signal or 0) of what did not come to its end: what it means, Python says. */
static PyObject *ended(const char *failed, int status, const struct tlb_child *child)
{
    if (status == -EINTR && PyErr_Occurred())
        return NULL;
    return Py_BuildValue("(sii)", failed ? failed : "starting a process of its own", -status,
                         child->killed_by);
}

static PyObject *nanoseconds(const uint64_t *values, size_t count)
{
    npy_intp const length = (npy_intp)count;
    PyObject *const array = PyArray_SimpleNew(1, &length, NPY_INT64);
    if (array)
        memcpy(PyArray_DATA((PyArrayObject *)array), values, count * sizeof(*values));
    return array;
}

/* None where nothing tells. */
static PyObject *scan_dict(const struct tlb_scan *scan, int status)
{
    if (status < 0)
        return Py_NewRef(Py_None);
    return Py_BuildValue("{sKsKsKsKss}", "present", (unsigned long long)scan->present, "huge",
                         (unsigned long long)scan->huge, "zero", (unsigned long long)scan->zero, "swapped",
                         (unsigned long long)scan->swapped, "method", status ? "smaps" : "PAGEMAP_SCAN");
}

/* -- Faults ---------------------------------------------------------------------------------------------- */

static const char *const fault_kinds[] = {
#define ENTRY(name) #name,
    TLB_FAULT_KINDS(ENTRY)
#undef ENTRY
};

enum { FAULT_KINDS = sizeof(fault_kinds) / sizeof(*fault_kinds) };

struct fault_arguments {
    const char *kind;
    struct request_arguments request;
    Py_ssize_t step, count, block, chunk;
    int advice, without_thp, fd, write, shared, after, threads;
    PyObject *order, *cpus;
};

static int fault_parse(PyObject *args, PyObject *keywords, struct fault_arguments *given)
{
    static char *names[] = {"kind",    "size",   "alignment",   "base_page", "page",   "huge_shift",
                            "piece",   "advice", "without_thp", "fd",        "shared", "write",
                            "step",    "count",  "block",       "chunk",     "after",  "order",
                            "threads", "cpus",   NULL};
    struct request_arguments *const request = &given->request;
    return PyArg_ParseTupleAndKeywords(args, keywords, "s$nnnninipippnnnnpOiO:fault", names, &given->kind,
                                       &request->size, &request->alignment, &request->base_page,
                                       &request->page, &request->huge_shift, &request->piece, &given->advice,
                                       &given->without_thp, &given->fd, &given->shared, &given->write,
                                       &given->step, &given->count, &given->block, &given->chunk,
                                       &given->after, &given->order, &given->threads, &given->cpus)
               ? 0
               : -1;
}

/* No touch leaves the memory, and no time its record. */
static int fault_check(const struct fault_arguments *given)
{
    bool const fits = given->step > 0 && given->count > 0 && given->block > 0 && given->chunk > 0 &&
                      given->threads >= 1 && given->threads <= TLB_THREADS && given->count <= UINT32_MAX &&
                      given->count % given->block == 0 && (given->block == 1 || !given->after) &&
                      given->count - 1 <= (given->request.size - 1) / given->step;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "these parameters of a fault do not fit");
    return fits ? 0 : -1;
}

static size_t fault_times(const struct fault_arguments *given, int kind)
{
    if (kind == TLB_FAULT_map_populate)
        return 1;
    if (kind == TLB_FAULT_fill || kind == TLB_FAULT_populate_write)
        return (size_t)((given->request.size - 1) / given->chunk) + 1;
    return (size_t)(given->count / given->block);
}

/* Pages of the touches. */
static int fault_copy_order(uint32_t *order, const struct fault_arguments *given)
{
    PyArrayObject *const array =
        (PyArrayObject *)PyArray_FROMANY(given->order, NPY_UINT32, 1, 1, NPY_ARRAY_CARRAY_RO);
    if (!array)
        return -1;
    Py_ssize_t within = 0;
    if (PyArray_DIM(array, 0) == given->count) {
        memcpy(order, PyArray_DATA(array), (size_t)given->count * sizeof(*order));
        while (within < given->count && order[within] < given->count)
            within++;
    }
    Py_DECREF(array);
    if (within == given->count)
        return 0;
    PyErr_SetString(PyExc_ValueError, "order must have one page for each touch, less than their count");
    return -1;
}

/* The fault, and behind it its arrays, in memory of *size bytes that both processes share. */
static struct tlb_fault *fault_share(const struct fault_arguments *given, size_t times, size_t *size)
{
    size_t const count = (size_t)given->count;
    size_t const after = given->after ? count : 0, order = given->order != Py_None ? count : 0;
    *size = sizeof(struct tlb_fault) + (times + after) * sizeof(uint64_t) + order * sizeof(uint32_t);
    struct tlb_fault *const fault = share(*size);
    if (!fault)
        return NULL;
    uint64_t *const ns = (uint64_t *)(fault + 1);
    uint32_t *const pages = (uint32_t *)(ns + times + after);
    fault->times = times;
    fault->touches.ns = ns;
    fault->after = after ? ns + times : NULL;
    fault->touches.order = order ? pages : NULL;
    if (!order || fault_copy_order(pages, given) == 0)
        return fault;
    munmap(fault, *size);
    return NULL;
}

static void fault_fill_in(struct tlb_fault *fault, const struct fault_arguments *given)
{
    fault->advice = given->advice;
    fault->without_thp = given->without_thp;
    fault->fd = given->fd;
    fault->shared = given->shared;
    fault->chunk = (uint64_t)given->chunk;
    fault->touches.step = (uint64_t)given->step;
    fault->touches.write = given->write;
    fault->touches.count = (uint64_t)given->count;
    fault->touches.block = (uint64_t)given->block;
    fault->touches.threads = (unsigned)given->threads;
}

static PyObject *touched_dict(const struct tlb_touched *touched)
{
    return Py_BuildValue("{sKsKsKsK}", "minor", (unsigned long long)touched->faults.minor, "major",
                         (unsigned long long)touched->faults.major, "overhead_ns",
                         (unsigned long long)touched->overhead_ns, "wall_ns",
                         (unsigned long long)touched->wall_ns);
}

static PyObject *memory_pair(const struct tlb_memory *memory)
{
    return Py_BuildValue("(KK)", (unsigned long long)memory->size, (unsigned long long)memory->resident);
}

/* None where it is not known. */
static PyObject *bytes_or_none(uint64_t bytes)
{
    return bytes == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *fault_result(const struct tlb_fault *fault)
{
    PyObject *const after =
        fault->after ? nanoseconds(fault->after, fault->touches.count) : Py_NewRef(Py_None);
    return Py_BuildValue(
        "{sNsNsNsNsKsNsKsKsKsKsKsNsNsNsNsNsN}", "ns", nanoseconds(fault->touches.ns, fault->times), "after",
        after, "touched", touched_dict(&fault->touched), "touched_after", touched_dict(&fault->touched_after),
        "prepared", (unsigned long long)(fault->prepared.minor + fault->prepared.major), "scan",
        scan_dict(&fault->scan, fault->scan_status), "map_ns", (unsigned long long)fault->map_ns,
        "prepare_ns", (unsigned long long)fault->prepare_ns, "discard_ns",
        (unsigned long long)fault->discard_ns, "fork_ns", (unsigned long long)fault->fork_ns, "unmap_ns",
        (unsigned long long)fault->unmap_ns, "cached", bytes_or_none(fault->cached), "zero",
        bytes_or_none(fault->zero), "copied", bytes_or_none(fault->copied), "before",
        memory_pair(&fault->before), "mapped", memory_pair(&fault->mapped), "touched_memory",
        memory_pair(&fault->touched_memory));
}

static PyObject *fault_run(struct tlb_fault *fault)
{
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_fault(fault, GIL_POLL(gil));
    gil_acquire(&gil);
    return status == 0 ? fault_result(fault) : ended(fault->failed, status, &fault->child);
}

PyDoc_STRVAR(core_fault_doc,
             "fault($module, /, kind, *, size, alignment, base_page, page, huge_shift, piece, advice,\n"
             "      without_thp, fd, shared, write, step, count, block, chunk, after, order, threads, cpus)\n"
             "--\n\n"
             "Time the touches of one kind of fault in a process of its own: a dict, or where that failed a\n"
             "tuple (step, errno, signal).");

static PyObject *core_fault(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    struct fault_arguments given;
    struct tlb_region_request request;
    int cpus[TLB_THREADS];
    size_t size;
    if (fault_parse(args, keywords, &given) < 0)
        return NULL;
    int const kind = find_kind(fault_kinds, FAULT_KINDS, given.kind, "fault");
    if (kind < 0 || request_check(&given.request, &request) < 0 || fault_check(&given) < 0 ||
        read_cpus(given.cpus, given.threads, cpus) < 0)
        return NULL;
    struct tlb_fault *const fault = fault_share(&given, fault_times(&given, kind), &size);
    if (!fault)
        return NULL;
    fault_fill_in(fault, &given);
    fault->kind = (enum tlb_fault_kind)kind;
    fault->request = request;
    fault->touches.cpus = cpus;
    PyObject *const result = fault_run(fault);
    munmap(fault, size);
    return result;
}

/* -- Shootdowns ------------------------------------------------------------------------------------------ */

static const char *const shootdown_kinds[] = {"unmap", "protect", "dontneed"};

enum { SHOOTDOWN_KINDS = sizeof(shootdown_kinds) / sizeof(*shootdown_kinds) };

struct shootdown_arguments {
    const char *kind;
    struct request_arguments request;
    Py_ssize_t step, calls, threads;
    int advice;
    PyObject *cpus;
};

static int shootdown_parse(PyObject *args, PyObject *keywords, struct shootdown_arguments *given)
{
    static char *names[] = {"kind",  "size",   "alignment", "base_page", "page", "huge_shift",
                            "piece", "advice", "step",      "calls",     "cpus", NULL};
    struct request_arguments *const request = &given->request;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s$nnnnininnO!:shootdown", names, &given->kind,
                                     &request->size, &request->alignment, &request->base_page, &request->page,
                                     &request->huge_shift, &request->piece, &given->advice, &given->step,
                                     &given->calls, &PyTuple_Type, &given->cpus))
        return -1;
    given->threads = PyTuple_Size(given->cpus) - 1;
    return 0;
}

static int shootdown_check(const struct shootdown_arguments *given)
{
    bool const fits = given->step > 0 && given->calls > 0 && given->calls <= UINT32_MAX &&
                      given->calls <= given->request.size / given->step && given->threads >= 0 &&
                      given->threads < TLB_THREADS;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "these parameters of a shootdown do not fit");
    return fits ? 0 : -1;
}

static PyObject *shootdown_result(const struct tlb_shootdown *shootdown)
{
    npy_intp const shape[] = {(npy_intp)shootdown->threads, (npy_intp)shootdown->calls};
    PyObject *const others = PyArray_SimpleNew(2, shape, NPY_INT64);
    if (!others)
        return NULL;
    memcpy(PyArray_DATA((PyArrayObject *)others), shootdown->others,
           shootdown->threads * shootdown->calls * sizeof(*shootdown->others));
    return Py_BuildValue("{sNsNsNsNsKsKsKsK}", "ns", nanoseconds(shootdown->ns, shootdown->calls), "others",
                         others, "quiet_ns", nanoseconds(shootdown->quiet_ns, shootdown->threads), "scan",
                         scan_dict(&shootdown->scan, shootdown->scan_status), "faults",
                         (unsigned long long)(shootdown->faults.minor + shootdown->faults.major), "map_ns",
                         (unsigned long long)shootdown->map_ns, "populate_ns",
                         (unsigned long long)shootdown->populate_ns, "overhead_ns",
                         (unsigned long long)shootdown->overhead_ns);
}

static PyObject *shootdown_run(struct tlb_shootdown *shootdown)
{
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_shootdown(shootdown, GIL_POLL(gil));
    gil_acquire(&gil);
    return status == 0 ? shootdown_result(shootdown) : ended(shootdown->failed, status, &shootdown->child);
}

PyDoc_STRVAR(
    core_shootdown_doc,
    "shootdown($module, /, kind, *, size, alignment, base_page, page, huge_shift, piece, advice,\n"
    "          step, calls, cpus)\n"
    "--\n\n"
    "Time calls that take pages away, and other threads meanwhile, one on each CPU after the first:\n"
    "a dict, or where that failed a tuple (step, errno, signal).");

static PyObject *core_shootdown(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    struct shootdown_arguments given;
    struct tlb_region_request request;
    PyObject *result = NULL;
    if (shootdown_parse(args, keywords, &given) < 0)
        return NULL;
    int const kind = find_kind(shootdown_kinds, SHOOTDOWN_KINDS, given.kind, "shootdown");
    if (kind < 0 || request_check(&given.request, &request) < 0 || shootdown_check(&given) < 0)
        return NULL;
    size_t const times = (size_t)given.calls * (size_t)(given.threads + 1);
    size_t const size = sizeof(struct tlb_shootdown) + times * sizeof(uint64_t);
    struct tlb_shootdown *const shootdown = share(size);
    if (!shootdown)
        return NULL;
    shootdown->kind = (enum tlb_shootdown_kind)kind;
    shootdown->request = request;
    shootdown->advice = given.advice;
    shootdown->step = (uint64_t)given.step;
    shootdown->calls = (uint64_t)given.calls;
    shootdown->threads = (unsigned)given.threads;
    shootdown->ns = (uint64_t *)(shootdown + 1);
    shootdown->others = shootdown->ns + given.calls;
    if (read_cpus(given.cpus, given.threads + 1, shootdown->cpus) == 0)
        result = shootdown_run(shootdown);
    munmap(shootdown, size);
    return result;
}

/* -- Facts ----------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(
    core_open_unnamed_doc,
    "open_unnamed($module, folder, flags, /)\n--\n\n"
    "An opener for open(): a file without a name, to be read and written, in a folder. Here and not\n"
    "in Python, where Ctrl-C may come between a descriptor and the object that closes it.");

static PyObject *core_open_unnamed(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *folder;
    int flags;
    if (!PyArg_ParseTuple(args, "O&i:open_unnamed", PyUnicode_FSConverter, &folder, &flags))
        return NULL;
    int const fd = open(PyBytes_AsString(folder), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, folder);
    Py_DECREF(folder);
    return fd < 0 ? NULL : PyLong_FromLong(fd);
}

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

PyDoc_STRVAR(core_clock_ns_doc, "clock_ns($module)\n--\n\n"
                                "Nanoseconds by the clock of every measurement, from an arbitrary begin on.");

static PyObject *core_clock_ns(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(tlb_clock_ns());
}

/* In pieces, so that signal handlers run in between. */
static int wait_until(uint64_t end, struct gil_poll *gil)
{
    int status = 0;
    for (uint64_t now; status == 0 && (now = tlb_clock_ns()) < end; status = gil_ask(gil))
        tlb_clock_wait(end - now < POLL_NS ? end - now : POLL_NS);
    return status;
}

PyDoc_STRVAR(core_clock_wait_doc,
             "clock_wait($module, seconds, /)\n--\n\n"
             "Let so much time go by on the clock of every measurement, while other threads go on.");

static PyObject *core_clock_wait(PyObject *module, PyObject *args)
{
    (void)module;
    enum { SECONDS_MOST = 1000 * 1000 * 1000 };
    double seconds;
    if (!PyArg_ParseTuple(args, "d:clock_wait", &seconds))
        return NULL;
    if (!(seconds >= 0 && seconds <= SECONDS_MOST))
        return PyErr_Format(PyExc_ValueError, "seconds must be from 0 to %d", SECONDS_MOST);
    struct gil_poll gil;
    gil_release(&gil);
    int const status = wait_until(tlb_clock_ns() + (uint64_t)(seconds * 1e9), &gil);
    gil_acquire(&gil);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
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

/* -- Programs -------------------------------------------------------------------------------------------- */

/* Pointers to the bytes of a sequence, which must outlive them; NULL with an exception set. */
static char **strings_of(PyObject *sequence)
{
    Py_ssize_t const count = PySequence_Size(sequence);
    char **const strings = count < 0 ? NULL : PyMem_Calloc((size_t)count + 1, sizeof *strings);
    if (!strings && count >= 0)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; strings && i < count; i++) {
        PyObject *const item = PyTuple_GetItem(sequence, i);
        if (!item || PyBytes_AsStringAndSize(item, &strings[i], NULL) < 0) {
            PyMem_Free(strings);
            return NULL;
        }
    }
    return strings;
}

PyDoc_STRVAR(core_program_launch_doc,
             "program_launch($module, paths, arguments, environment, streams, thp, go, report, /)\n--\n\n"
             "Make the process of a program, which waits for program_go; its number.");

static PyObject *core_program_launch(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *tuples[3];
    char **strings[3] = {NULL, NULL, NULL};
    struct tlb_program program;
    pid_t pid = -1;
    int status = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!(iii)(kk)ii:program_launch", &PyTuple_Type, &tuples[0], &PyTuple_Type,
                          &tuples[1], &PyTuple_Type, &tuples[2], &program.streams[0], &program.streams[1],
                          &program.streams[2], &program.thp[0], &program.thp[1], &program.go,
                          &program.report))
        return NULL;
    for (int i = 0; i < 3 && status == 0; i++)
        status = (strings[i] = strings_of(tuples[i])) ? 0 : -1;
    if (status == 0) {
        program.paths = strings[0];
        program.arguments = strings[1];
        program.environment = strings[2];
        status = tlb_program_launch(&program, &pid);
        if (status < 0)
            raise_status(status);
    }
    for (int i = 0; i < 3; i++)
        PyMem_Free(strings[i]);
    return status < 0 ? NULL : PyLong_FromLong(pid);
}

PyDoc_STRVAR(core_program_go_doc, "program_go($module, go, report, /)\n--\n\n"
                                  "Let it go; what it said before it began, or why it could not.");

static PyObject *core_program_go(PyObject *module, PyObject *args)
{
    (void)module;
    int go, report, status;
    struct tlb_start start;
    if (!PyArg_ParseTuple(args, "ii:program_go", &go, &report))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tlb_program_go(go, report, &start);
    Py_END_ALLOW_THREADS
    if (status < 0)
        return raise_status(status);
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsK}", "ns", (unsigned long long)start.ns, "user_us",
                         (unsigned long long)start.user_us, "system_us", (unsigned long long)start.system_us,
                         "minor", (unsigned long long)start.minor, "major", (unsigned long long)start.major,
                         "voluntary", (unsigned long long)start.voluntary, "involuntary",
                         (unsigned long long)start.involuntary, "peak", (unsigned long long)start.peak,
                         "stage", (unsigned long long)start.stage, "error", (unsigned long long)start.error);
}

PyDoc_STRVAR(core_program_trace_doc, "program_trace($module, pid, /)\n--\n\n"
                                     "From now on it stops before it exits, for this thread to resume it.");

static PyObject *core_program_trace(PyObject *module, PyObject *args)
{
    (void)module;
    int pid;
    if (!PyArg_ParseTuple(args, "i:program_trace", &pid))
        return NULL;
    int const status = tlb_program_trace(pid);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(core_program_resume_doc, "program_resume($module, pid, /)\n--\n\n"
                                      "Let it exit.");

static PyObject *core_program_resume(PyObject *module, PyObject *args)
{
    (void)module;
    int pid;
    if (!PyArg_ParseTuple(args, "i:program_resume", &pid))
        return NULL;
    int const status = tlb_program_resume(pid);
    if (status < 0)
        return raise_status(status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(core_program_wait_doc,
             "program_wait($module, pid, /)\n--\n\n"
             "Wait: (True, ns) when it has ended and is to be reaped, (False, ns) when "
             "it stops before its exit.");

static PyObject *core_program_wait(PyObject *module, PyObject *args)
{
    (void)module;
    int pid, status;
    enum tlb_ending event;
    uint64_t ns;
    if (!PyArg_ParseTuple(args, "i:program_wait", &pid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tlb_program_wait(pid, &event, &ns);
    Py_END_ALLOW_THREADS
    if (status < 0)
        return raise_status(status);
    return Py_BuildValue("(NK)", PyBool_FromLong(event == TLB_ENDED), (unsigned long long)ns);
}

/* -- The module ------------------------------------------------------------------------------------------ */

static PyMethodDef core_methods[] = {
    {"shootdown", (PyCFunction)(void (*)(void))core_shootdown, METH_VARARGS | METH_KEYWORDS,
     core_shootdown_doc},
    {"fault", (PyCFunction)(void (*)(void))core_fault, METH_VARARGS | METH_KEYWORDS, core_fault_doc},
    {"open_unnamed", core_open_unnamed, METH_VARARGS, core_open_unnamed_doc},
    {"kernels", core_kernels, METH_NOARGS, core_kernels_doc},
    {"clock_ns", core_clock_ns, METH_NOARGS, core_clock_ns_doc},
    {"clock_wait", core_clock_wait, METH_VARARGS, core_clock_wait_doc},
    {"clock_moment", core_clock_moment, METH_NOARGS, core_clock_moment_doc},
    {"clock_calibrate", core_clock_calibrate, METH_NOARGS, core_clock_calibrate_doc},
    {"cpu", core_cpu, METH_NOARGS, core_cpu_doc},
    {"cpuid", core_cpuid, METH_VARARGS, core_cpuid_doc},
    {"program_launch", core_program_launch, METH_VARARGS, core_program_launch_doc},
    {"program_go", core_program_go, METH_VARARGS, core_program_go_doc},
    {"program_trace", core_program_trace, METH_VARARGS, core_program_trace_doc},
    {"program_resume", core_program_resume, METH_VARARGS, core_program_resume_doc},
    {"program_wait", core_program_wait, METH_VARARGS, core_program_wait_doc},
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
    state->session_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &Session_spec, NULL);
    if (!state->session_type || PyModule_AddType(module, state->session_type) < 0)
        return -1;
    const struct tlb_code *const code = tlb_code_here();
    if (PyModule_AddIntConstant(module, "JUMP_REACH", code ? (long)code->reach : 0) < 0 ||
        PyModule_AddIntConstant(module, "THREADS_MOST", TLB_THREADS) < 0)
        return -1;
    state->group_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &CounterGroup_spec, NULL);
    if (!state->group_type || PyModule_AddType(module, state->group_type) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "EVENTS_MOST", TLB_EVENTS) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "WITNESS_ADDS", TLB_WITNESS_ADDS);
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *const state = core_get_state(module);
    Py_VISIT(state->mapping_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->group_type);
    return 0;
}

static int core_clear(PyObject *module)
{
    core_state *const state = core_get_state(module);
    Py_CLEAR(state->mapping_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->group_type);
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
    .m_doc = "Mappings, kernels, the slice loop and counters.",
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
