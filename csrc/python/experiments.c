/* Experiments that a process of its own does: faults and shootdowns. */
#include "bridge.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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

static PyObject *nanoseconds(const uint64_t *values, uint64_t count)
{
    npy_intp const length = (npy_intp)count;
    return array_of(values, 1, &length);
}

/* None where nothing tells. */
static PyObject *scan_dict(const struct tlb_scan *scan, int status)
{
    if (status < 0)
        return Py_NewRef(Py_None);
    PyObject *const method = PyUnicode_FromString(status ? "smaps" : "PAGEMAP_SCAN");
    return dict_with(dict_with_numbers(PyDict_New(), scan_numbers, scan), "method", method);
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
    static const struct number numbers[] = {
        {"minor", offsetof(struct tlb_touched, faults.minor)},
        {"major", offsetof(struct tlb_touched, faults.major)},
        {"overhead_ns", offsetof(struct tlb_touched, overhead_ns)},
        {"wall_ns", offsetof(struct tlb_touched, wall_ns)},
        {0},
    };
    return dict_with_numbers(PyDict_New(), numbers, touched);
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
    static const struct number numbers[] = {
        {"map_ns", offsetof(struct tlb_fault, map_ns)},
        {"prepare_ns", offsetof(struct tlb_fault, prepare_ns)},
        {"discard_ns", offsetof(struct tlb_fault, discard_ns)},
        {"fork_ns", offsetof(struct tlb_fault, fork_ns)},
        {"unmap_ns", offsetof(struct tlb_fault, unmap_ns)},
        {0},
    };
    PyObject *const after =
        fault->after ? nanoseconds(fault->after, fault->touches.count) : Py_NewRef(Py_None);
    PyObject *const result = Py_BuildValue(
        "{sNsNsNsNsKsNsNsNsNsNsNsN}", "ns", nanoseconds(fault->touches.ns, fault->times), "after", after,
        "touched", touched_dict(&fault->touched), "touched_after", touched_dict(&fault->touched_after),
        "prepared", (unsigned long long)(fault->prepared.minor + fault->prepared.major), "scan",
        scan_dict(&fault->scan, fault->scan_status), "cached", bytes_or_none(fault->cached), "zero",
        bytes_or_none(fault->zero), "copied", bytes_or_none(fault->copied), "before",
        memory_pair(&fault->before), "mapped", memory_pair(&fault->mapped), "touched_memory",
        memory_pair(&fault->touched_memory));
    return dict_with_numbers(result, numbers, fault);
}

static PyObject *fault_run(struct tlb_fault *fault)
{
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_fault(fault, &gil.poll);
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
    static const struct number numbers[] = {
        {"map_ns", offsetof(struct tlb_shootdown, map_ns)},
        {"populate_ns", offsetof(struct tlb_shootdown, populate_ns)},
        {"overhead_ns", offsetof(struct tlb_shootdown, overhead_ns)},
        {0},
    };
    npy_intp const shape[] = {(npy_intp)shootdown->threads, (npy_intp)shootdown->calls};
    PyObject *const result =
        Py_BuildValue("{sNsNsNsNsK}", "ns", nanoseconds(shootdown->ns, shootdown->calls), "others",
                      array_of(shootdown->others, 2, shape), "quiet_ns",
                      nanoseconds(shootdown->quiet_ns, shootdown->threads), "scan",
                      scan_dict(&shootdown->scan, shootdown->scan_status), "faults",
                      (unsigned long long)(shootdown->faults.minor + shootdown->faults.major));
    return dict_with_numbers(result, numbers, shootdown);
}

static PyObject *shootdown_run(struct tlb_shootdown *shootdown)
{
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_shootdown(shootdown, &gil.poll);
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

/* -- Files ----------------------------------------------------------------------------------------------- */

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

PyMethodDef experiment_methods[] = {
    {"fault", (PyCFunction)(void (*)(void))core_fault, METH_VARARGS | METH_KEYWORDS, core_fault_doc},
    {"shootdown", (PyCFunction)(void (*)(void))core_shootdown, METH_VARARGS | METH_KEYWORDS,
     core_shootdown_doc},
    {"open_unnamed", core_open_unnamed, METH_VARARGS, core_open_unnamed_doc},
    {0},
};
