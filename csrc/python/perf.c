/* CounterGroup of this machine: perf events of one thread, counted together or not at all. */
#include "bridge.h"

#include <inttypes.h>
#include <sys/syscall.h>
#include <unistd.h>

static pid_t this_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* -- Opening ----------------------------------------------------------------------------------------- */

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

PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
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

const char group_doc[] = PyDoc_STR("CounterGroup(events, *, pid=0, exclude_kernel=False, inherit=False, "
                                   "enable_on_exec=False)\n--\n\n"
                                   "Perf events of one thread that are counted together, or not at all.");

/* -- Counting ---------------------------------------------------------------------------------------- */

int group_hold(CounterGroup *self, PyObject *Py_UNUSED(machine))
{
    if (turn_begin(&self->turn, "CounterGroup") < 0)
        return -1;
    if (self->counters.thread == this_thread())
        return 0;
    turn_end(&self->turn);
    PyErr_Format(PyExc_RuntimeError, "this CounterGroup counts thread %d, not the one that measures",
                 (int)self->counters.thread);
    return -1;
}

PyObject *group_peek(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    struct tlb_reading reading = {0};
    if (group_begin(self) < 0)
        return NULL;
    bool const readable =
        self->counters.thread == this_thread() && tlb_counters_peek(&self->counters, &reading) == 0;
    PyObject *const result = readable ? reading_tuple(&reading, self->counters.count) : Py_NewRef(Py_None);
    group_end(self);
    return result;
}

PyObject *group_fileno(PyObject *object, PyObject *Py_UNUSED(unused))
{
    CounterGroup *const self = (CounterGroup *)object;
    if (group_begin(self) < 0)
        return NULL;
    int const fd = self->counters.fd[0];
    group_end(self);
    return PyLong_FromLong(fd);
}
