/* Mapping: memory under a page policy, outside the heap. */
#include "bridge.h"

#include <unistd.h>

/* -- What is asked for ------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct tlb_region_request, member)
const struct argument request_arguments[] = {
    {"size", AS_WORD, AT(size), 1, PY_SSIZE_T_MAX},
    {"alignment", AS_WORD, AT(alignment), 1, PY_SSIZE_T_MAX},
    {"base_page", AS_WORD, AT(base_page), 1, PY_SSIZE_T_MAX},
    {"page", AS_WORD, AT(page), 1, PY_SSIZE_T_MAX},
    {"huge_shift", AS_INT, AT(huge_shift), 0, 40, .optional = true},
    {"piece", AS_WORD, AT(piece), 0, PY_SSIZE_T_MAX, .optional = true},
    {0},
};
#undef AT

int request_check(const struct tlb_region_request *request)
{
    if (request->alignment >= request->base_page && (request->alignment & (request->alignment - 1)) == 0 &&
        request->size % request->base_page == 0 && request->size % request->page == 0 &&
        request->piece % request->base_page == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "size=%zu, alignment=%zu, base_page=%zu, page=%zu, piece=%zu do not fit",
                 request->size, request->alignment, request->base_page, request->page, request->piece);
    return -1;
}

/* -- Life cycle -------------------------------------------------------------------------------------- */

/* A subclass has parameters of its own. */
static PyObject *Mapping_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    return object_new(type);
}

static const struct argument mapping_arguments[] = {
    {"sparse", AS_FLAG, offsetof(struct tlb_region_request, sparse), .optional = true},
    {0},
};

static int Mapping_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    Mapping *const self = (Mapping *)object;
    struct tlb_region_request request = {0};
    struct arguments const given[] = {{request_arguments, &request}, {mapping_arguments, &request}, {0}};
    if (arguments_read("Mapping", args, keywords, given) < 0 || request_check(&request) < 0)
        return -1;
    pid_t nobody = 0;
    if (!atomic_compare_exchange_strong(&self->owner, &nobody, getpid())) {
        /* Prepared runs point into the first mapping. */
        PyErr_SetString(PyExc_RuntimeError, "this Region was mapped before: create another one");
        return -1;
    }
    int const status = tlb_region_map(&self->region, &request);
    if (status < 0) {
        self->owner = 0;
        raise_status(status);
        return -1;
    }
    self->left = self->region;
    self->open = true;
    return 0;
}

static void Mapping_dealloc(PyObject *object)
{
    Mapping *const self = (Mapping *)object;
    if (self->left.base && self->owner == getpid()) {
        PyThreadState *const released = PyEval_SaveThread();
        tlb_region_unmap(&self->left, &(struct tlb_poll){0});
        PyEval_RestoreThread(released);
    }
    object_free(object);
}

PyDoc_STRVAR(Mapping_close_doc,
             "close($self)\n--\n\nGive the memory back; a second call does what an interrupted one left.");

static PyObject *Mapping_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Mapping *const self = (Mapping *)object;
    bool const ours = self->owner == getpid();
    Py_ssize_t const users = ours ? mapping_take(self) : 0;
    if (users && self->open) {
        mapping_refuse(users);
        return NULL;
    }
    self->open = false;
    if (!ours || users) /* another thread is closing it */
        Py_RETURN_NONE;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_region_unmap(&self->left, &gil.poll);
    gil_acquire(&gil);
    mapping_release(self);
    return none_or_raise(status); /* what is left is given back when the object goes */
}

/* -- Methods ----------------------------------------------------------------------------------------- */

PyDoc_STRVAR(Mapping_advise_doc, "advise($self, advice, /)\n--\n\nmadvise(2) for all of it.");

static PyObject *Mapping_advise(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    int advice;
    if (!PyArg_ParseTuple(args, "i:advise", &advice) || mapping_acquire(self) < 0)
        return NULL;
    int const status = tlb_region_advise(&self->region, advice);
    mapping_release(self);
    return none_or_raise(status);
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
    int const status = tlb_region_touch(&self->region, shuffled, seed, &faults, &gil.poll);
    gil_acquire(&gil);
    mapping_release(self);
    if (status < 0)
        return raise_status(status);
    return PyLong_FromUnsignedLongLong(faults);
}

static PyObject *mapping_work(Mapping *self, int (*work)(const struct tlb_region *, const struct tlb_poll *))
{
    if (mapping_acquire(self) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = work(&self->region, &gil.poll);
    gil_acquire(&gil);
    mapping_release(self);
    return none_or_raise(status);
}

PyDoc_STRVAR(Mapping_populate_doc, "populate($self)\n--\n\nFault every page in through the kernel.");

static PyObject *Mapping_populate(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return mapping_work((Mapping *)object, tlb_region_populate);
}

PyDoc_STRVAR(Mapping_collapse_doc, "collapse($self)\n--\n\nMADV_COLLAPSE: huge pages of what is there.");

static PyObject *Mapping_collapse(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return mapping_work((Mapping *)object, tlb_region_collapse);
}

PyDoc_STRVAR(Mapping_pass_over_doc, "pass_over($self, offset, size, /)\n--\n\n"
                                    "One untimed pass: read every base page once, in address order.");

static PyObject *Mapping_pass_over(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    Py_ssize_t offset, size;
    if (!PyArg_ParseTuple(args, "nn:pass_over", &offset, &size) ||
        mapping_check_range(self, offset, size) < 0 || mapping_acquire(self) < 0)
        return NULL;
    struct gil_poll gil;
    gil_release(&gil);
    int const status = tlb_region_pass(&self->region, (size_t)offset, (size_t)size, &gil.poll);
    gil_acquire(&gil);
    mapping_release(self);
    return none_or_raise(status);
}

PyDoc_STRVAR(Mapping_scan_doc, "scan($self, offset, size, /)\n--\n\n"
                               "Bytes of a range that are present, huge, zero and swapped, by PAGEMAP_SCAN.");

static PyObject *Mapping_scan(PyObject *object, PyObject *args)
{
    Mapping *const self = (Mapping *)object;
    Py_ssize_t offset, size;
    struct tlb_scan scan;
    if (!PyArg_ParseTuple(args, "nn:scan", &offset, &size) || mapping_check_range(self, offset, size) < 0)
        return NULL;
    int const status = tlb_region_scan(&self->region, (size_t)offset, (size_t)size, &scan);
    if (status < 0)
        return raise_status(status);
    if (mapping_check_open(self) < 0) /* closed meanwhile: this was somebody else's memory, perhaps */
        return NULL;
    return dict_with_numbers(PyDict_New(), scan_numbers, &scan);
}

/* One user more, unless somebody needs the mapping alone. */
static int mapping_share(Mapping *self)
{
    Py_ssize_t users = self->users;
    do
        if (users == MAPPING_TAKEN) {
            PyErr_SetString(PyExc_BufferError, "this Region is being measured: view it afterwards");
            return -1;
        }
    while (!atomic_compare_exchange_weak(&self->users, &users, users + 1));
    return 0;
}

static int Mapping_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    Mapping *const self = (Mapping *)object;
    view->obj = NULL;
    if (mapping_check_open(self) < 0 || mapping_share(self) < 0)
        return -1;
    if (mapping_check_open(self) == 0 && /* nobody has closed it meanwhile */
        PyBuffer_FillInfo(view, object, self->region.base, (Py_ssize_t)self->region.size, 0, flags) == 0)
        return 0;
    self->users--;
    return -1;
}

static void Mapping_releasebuffer(PyObject *object, Py_buffer *Py_UNUSED(view))
{
    ((Mapping *)object)->users--;
}

static PyObject *Mapping_get_address(PyObject *object, void *Py_UNUSED(unused))
{
    const Mapping *const self = (Mapping *)object;
    if (mapping_check_open(self) < 0)
        return NULL;
    return PyLong_FromVoidPtr(self->region.base);
}

static PyObject *Mapping_get_mapped_bytes(PyObject *object, void *Py_UNUSED(unused))
{
    const Mapping *const self = (Mapping *)object;
    return PyLong_FromSize_t(self->open ? self->region.size : 0);
}

static PyObject *Mapping_get_base_page(PyObject *object, void *Py_UNUSED(unused))
{
    const Mapping *const self = (Mapping *)object;
    return PyLong_FromSize_t(self->open ? self->region.base_page : 0);
}

static PyObject *Mapping_get_closed(PyObject *object, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(!((Mapping *)object)->open);
}

static PyGetSetDef Mapping_getset[] = {
    {"address", Mapping_get_address, NULL, "Address of the first byte.", NULL},
    {"mapped_bytes", Mapping_get_mapped_bytes, NULL, "Bytes mapped: whole pages; 0 once closed.", NULL},
    {"base_page", Mapping_get_base_page, NULL, "Bytes of the base page; 0 once closed.", NULL},
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

PyType_Spec mapping_spec = {
    .name = "tlbprobe._core.Mapping",
    .basicsize = sizeof(Mapping),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = Mapping_slots,
};
