/* CounterGroup: perf events of one thread, counted together or not at all. */
#include "bridge.h"

#include <inttypes.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -- Data -------------------------------------------------------------------------------------------- */

static pid_t this_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

static int group_begin(CounterGroup *self)
{
    return turn_begin(&self->turn, "CounterGroup");
}

int group_hold(CounterGroup *self)
{
    if (group_begin(self) < 0)
        return -1;
    if (self->counters.thread == this_thread())
        return 0;
    turn_end(&self->turn);
    PyErr_Format(PyExc_RuntimeError, "this CounterGroup counts thread %d, not the one that measures",
                 (int)self->counters.thread);
    return -1;
}

void group_let_go(CounterGroup *self)
{
    turn_end(&self->turn);
}

/* -- Life cycle -------------------------------------------------------------------------------------- */

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
        self->turn.open = true;
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
    CounterGroup *const self = object_new(type);
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
    if (self->turn.open)
        tlb_counters_close(&self->counters);
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
    turn_end(&self->turn);
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

static PyObject *CounterGroup_read(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_begin(self) < 0)
        return NULL;
    int const status = tlb_counters_read(&self->counters, &reading);
    PyObject *const result =
        status < 0 ? raise_status(status) : reading_tuple(&reading, self->counters.count);
    turn_end(&self->turn);
    return result;
}

PyDoc_STRVAR(CounterGroup_peek_doc,
             "peek($self)\n--\n\n"
             "Read without a system call, in the thread that is counted; None where that cannot be.");

static PyObject *CounterGroup_peek(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_begin(self) < 0)
        return NULL;
    bool const readable =
        self->counters.thread == this_thread() && tlb_counters_peek(&self->counters, &reading) == 0;
    PyObject *const result = readable ? reading_tuple(&reading, self->counters.count) : Py_NewRef(Py_None);
    turn_end(&self->turn);
    return result;
}

PyDoc_STRVAR(CounterGroup_fileno_doc, "fileno($self)\n--\n\nFile descriptor of the first event.");

static PyObject *CounterGroup_fileno(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    if (group_begin(self) < 0)
        return NULL;
    int const fd = self->counters.fd[0];
    turn_end(&self->turn);
    return PyLong_FromLong(fd);
}

static PyMethodDef CounterGroup_methods[] = {
    {"enable", CounterGroup_enable, METH_NOARGS, CounterGroup_enable_doc},
    {"disable", CounterGroup_disable, METH_NOARGS, CounterGroup_disable_doc},
    {"reset", CounterGroup_reset, METH_NOARGS, CounterGroup_reset_doc},
    {"read", CounterGroup_read, METH_NOARGS, CounterGroup_read_doc},
    {"peek", CounterGroup_peek, METH_NOARGS, CounterGroup_peek_doc},
    {"fileno", CounterGroup_fileno, METH_NOARGS, CounterGroup_fileno_doc},
    {"close", CounterGroup_close, METH_NOARGS, CounterGroup_close_doc},
    {"__enter__", context_enter, METH_NOARGS, "__enter__($self)\n--\n\n"},
    {"__exit__", context_exit, METH_VARARGS, "__exit__($self, kind, error, trace, /)\n--\n\n"},
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

PyType_Spec group_spec = {
    .name = "tlbprobe._core.CounterGroup",
    .basicsize = sizeof(CounterGroup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = CounterGroup_slots,
};
