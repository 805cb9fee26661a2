/* Experiments that a process of its own does: faults and shootdowns. */
#include "bridge.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* One for each thread, in the order of the threads. */
static int read_cpus(PyObject *given, Py_ssize_t count, int *cpus)
{
    if (PyTuple_Size(given) != count) {
        PyErr_Format(PyExc_ValueError, "cpus must have %zd numbers, one for each thread, and not %zd", count,
                     PyTuple_Size(given));
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

/* -- Faults ------------------------------------------------------------------------------------------ */

static const char *const fault_kinds[] = {
#define ENTRY(name) #name,
    TLB_FAULT_KINDS(ENTRY) NULL,
#undef ENTRY
};

/* What is asked for: order and cpus are copied to where both processes find them. */
struct fault_call {
    struct tlb_fault fault;
    bool after;
    PyObject *order, *cpus;
};

#define AT(member) .offset = offsetof(struct fault_call, member)
static const struct argument fault_arguments[] = {
    {"kind", AS_CHOICE, AT(fault.kind), .choices = fault_kinds},
    {"advice", AS_INT, AT(fault.advice), -1, INT_MAX},
    {"without_thp", AS_FLAG, AT(fault.without_thp)},
    {"fd", AS_INT, AT(fault.fd), -1, INT_MAX},
    {"shared", AS_FLAG, AT(fault.shared)},
    {"write", AS_FLAG, AT(fault.touches.write)},
    {"step", AS_WORD, AT(fault.touches.step), 1, PY_SSIZE_T_MAX},
    {"count", AS_WORD, AT(fault.touches.count), 1, UINT32_MAX},
    {"block", AS_WORD, AT(fault.touches.block), 1, UINT32_MAX},
    {"chunk", AS_WORD, AT(fault.chunk), 1, PY_SSIZE_T_MAX},
    {"after", AS_FLAG, AT(after)},
    {"order", AS_OBJECT, AT(order)},
    {"threads", AS_INT, AT(fault.touches.threads), 1, TLB_THREADS},
    {"cpus", AS_TUPLE, AT(cpus)},
    {0},
};
#undef AT

/* No touch leaves the memory, and no time its record. */
static int fault_check(const struct fault_call *call)
{
    const struct tlb_touches *const touches = &call->fault.touches;
    if (touches->count % touches->block == 0 && (touches->block == 1 || !call->after) &&
        touches->count - 1 <= (call->fault.request.size - 1) / touches->step)
        return request_check(&call->fault.request);
    PyErr_SetString(PyExc_ValueError, "these parameters of a fault do not fit");
    return -1;
}

static uint64_t fault_times(const struct tlb_fault *fault)
{
    if (fault->kind == TLB_FAULT_map_populate)
        return 1;
    if (fault->kind == TLB_FAULT_fill || fault->kind == TLB_FAULT_populate_write)
        return (fault->request.size - 1) / fault->chunk + 1;
    return fault->touches.count / fault->touches.block;
}

/* Pages of the touches. */
static int copy_order(uint32_t *order, PyObject *given, Py_ssize_t count)
{
    PyArrayObject *const array =
        (PyArrayObject *)PyArray_FROMANY(given, NPY_UINT32, 1, 1, NPY_ARRAY_CARRAY_RO);
    if (!array)
        return -1;
    Py_ssize_t within = 0;
    if (PyArray_DIM(array, 0) == count) {
        memcpy(order, PyArray_DATA(array), (size_t)count * sizeof(*order));
        while (within < count && order[within] < count)
            within++;
    }
    Py_DECREF(array);
    if (within == count)
        return 0;
    PyErr_SetString(PyExc_ValueError, "order must have one page for each touch, less than their count");
    return -1;
}

/* The fault, and behind it its arrays, in memory of *size bytes that both processes share. */
static struct tlb_fault *fault_share(const struct fault_call *call, size_t *size)
{
    uint64_t const count = call->fault.touches.count, times = fault_times(&call->fault);
    uint64_t const after = call->after ? count : 0, order = call->order != Py_None ? count : 0;
    *size = sizeof(struct tlb_fault) + (times + after) * sizeof(uint64_t) + order * sizeof(uint32_t);
    struct tlb_fault *const fault = share(*size);
    if (!fault)
        return NULL;
    uint64_t *const ns = (uint64_t *)(fault + 1);
    uint32_t *const pages = (uint32_t *)(ns + times + after);
    *fault = call->fault;
    fault->times = times;
    fault->touches.ns = ns;
    fault->after = after ? ns + times : NULL;
    fault->touches.order = order ? pages : NULL;
    if (!order || copy_order(pages, call->order, (Py_ssize_t)count) == 0)
        return fault;
    munmap(fault, *size);
    return NULL;
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
    return tuple_of((uint64_t[]){memory->size, memory->resident}, 2);
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
             "fault($module, /, kind, *, size, alignment, base_page, page, huge_shift=0, piece=0, advice,\n"
             "      without_thp, fd, shared, write, step, count, block, chunk, after, order, threads, cpus)\n"
             "--\n\n"
             "Time the touches of one kind of fault in a process of its own: a dict, or where that failed a\n"
             "tuple (step, errno, signal).");

static PyObject *core_fault(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    struct fault_call call = {0};
    int cpus[TLB_THREADS];
    size_t size;
    struct arguments const given[] = {
        {fault_arguments, &call}, {request_arguments, &call.fault.request}, {0}};
    if (arguments_read("fault", args, keywords, given) < 0 || fault_check(&call) < 0 ||
        read_cpus(call.cpus, (Py_ssize_t)call.fault.touches.threads, cpus) < 0)
        return NULL;
    call.fault.touches.cpus = cpus;
    struct tlb_fault *const fault = fault_share(&call, &size);
    if (!fault)
        return NULL;
    PyObject *const result = fault_run(fault);
    munmap(fault, size);
    return result;
}

/* -- Shootdowns -------------------------------------------------------------------------------------- */

static const char *const shootdown_kinds[] = {"unmap", "protect", "dontneed", NULL};

struct shootdown_call {
    struct tlb_shootdown shootdown;
    PyObject *cpus;
};

#define AT(member) .offset = offsetof(struct shootdown_call, member)
static const struct argument shootdown_arguments[] = {
    {"kind", AS_CHOICE, AT(shootdown.kind), .choices = shootdown_kinds},
    {"advice", AS_INT, AT(shootdown.advice), -1, INT_MAX},
    {"step", AS_WORD, AT(shootdown.step), 1, PY_SSIZE_T_MAX},
    {"calls", AS_WORD, AT(shootdown.calls), 1, UINT32_MAX},
    {"cpus", AS_TUPLE, AT(cpus)},
    {0},
};
#undef AT

static int shootdown_check(const struct tlb_shootdown *shootdown, Py_ssize_t cpus)
{
    if (cpus >= 1 && cpus <= TLB_THREADS && shootdown->calls <= shootdown->request.size / shootdown->step)
        return request_check(&shootdown->request);
    PyErr_SetString(PyExc_ValueError, "these parameters of a shootdown do not fit");
    return -1;
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
    "shootdown($module, /, kind, *, size, alignment, base_page, page, huge_shift=0, piece=0, advice,\n"
    "          step, calls, cpus)\n"
    "--\n\n"
    "Time calls that take pages away, and other threads meanwhile, one on each CPU after the first:\n"
    "a dict, or where that failed a tuple (step, errno, signal).");

static PyObject *core_shootdown(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    struct shootdown_call call = {0};
    struct tlb_shootdown *const asked = &call.shootdown;
    struct arguments const given[] = {
        {shootdown_arguments, &call}, {request_arguments, &asked->request}, {0}};
    if (arguments_read("shootdown", args, keywords, given) < 0)
        return NULL;
    Py_ssize_t const cpus = PyTuple_Size(call.cpus);
    if (shootdown_check(asked, cpus) < 0 || read_cpus(call.cpus, cpus, asked->cpus) < 0)
        return NULL;
    asked->threads = (unsigned)cpus - 1;
    size_t const size = sizeof(*asked) + asked->calls * (size_t)cpus * sizeof(uint64_t);
    struct tlb_shootdown *const shootdown = share(size);
    if (!shootdown)
        return NULL;
    *shootdown = *asked;
    shootdown->ns = (uint64_t *)(shootdown + 1);
    shootdown->others = shootdown->ns + shootdown->calls;
    PyObject *const result = shootdown_run(shootdown);
    munmap(shootdown, size);
    return result;
}

/* -- Files ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(
    core_open_unnamed_doc,
    "open_unnamed($module, folder, flags, /)\n--\n\n"
    "An opener for open(): a file without a name, to be read and written, in a folder. Here and not\n"
    "in Python, where Ctrl-C may come between a descriptor and the object that closes it.");

static PyObject *core_open_unnamed(PyObject *Py_UNUSED(module), PyObject *args)
{
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
