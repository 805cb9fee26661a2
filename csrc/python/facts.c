/* The clock, and facts about the processor. */
#include "bridge.h"

#include <sched.h>

PyDoc_STRVAR(core_clock_ns_doc, "clock_ns($module)\n--\n\n"
                                "Nanoseconds by the clock of every measurement, from an arbitrary begin on.");

static PyObject *core_clock_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(tlb_clock_ns());
}

/* In pieces, so that signal handlers run in between. */
static int wait_until(uint64_t end, const struct tlb_poll *poll)
{
    int status = 0;
    for (uint64_t now; status == 0 && (now = tlb_clock_ns()) < end; status = tlb_ask(poll))
        tlb_clock_wait(end - now < POLL_NS ? end - now : POLL_NS);
    return status;
}

PyDoc_STRVAR(core_clock_wait_doc,
             "clock_wait($module, seconds, /)\n--\n\n"
             "Let so much time go by on the clock of every measurement, while other threads go on.");

static PyObject *core_clock_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    enum { SECONDS_MOST = 1000 * 1000 * 1000 };
    double seconds;
    if (!PyArg_ParseTuple(args, "d:clock_wait", &seconds))
        return NULL;
    if (!(seconds >= 0 && seconds <= SECONDS_MOST))
        return PyErr_Format(PyExc_ValueError, "seconds must be from 0 to %d", SECONDS_MOST);
    struct gil_poll gil;
    gil_release(&gil);
    int const status = wait_until(tlb_clock_ns() + (uint64_t)(seconds * 1e9), &gil.poll);
    gil_acquire(&gil);
    return none_or_raise(status);
}

PyDoc_STRVAR(core_clock_moment_doc,
             "clock_moment($module)\n--\n\n"
             "One moment on CLOCK_MONOTONIC_RAW (ns), CLOCK_MONOTONIC (ns) and the tick counter (0: none).");

static PyObject *core_clock_moment(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    struct tlb_moment moment;
    tlb_clock_moment(&moment);
    return tuple_of((uint64_t[]){moment.raw_ns, moment.monotonic_ns, moment.ticks}, 3);
}

PyDoc_STRVAR(core_clock_calibrate_doc, "clock_calibrate($module)\n--\n\n"
                                       "Cost of reading the clock and its smallest step, both in ns.");

static PyObject *core_clock_calibrate(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    struct tlb_clock_cost cost;
    tlb_clock_calibrate(&cost);
    return Py_BuildValue("(dK)", cost.read_ns, (unsigned long long)cost.step_ns);
}

PyDoc_STRVAR(core_cpu_doc, "cpu($module)\n--\n\nNumber of the CPU that this thread runs on.");

static PyObject *core_cpu(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    int const cpu = sched_getcpu();
    return cpu < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(cpu);
}

PyDoc_STRVAR(core_cpuid_doc, "cpuid($module, leaf, subleaf, /)\n--\n\n"
                             "(eax, ebx, ecx, edx), or None where there is no such instruction.");

static PyObject *core_cpuid(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int leaf, subleaf;
    uint32_t registers[4];
    if (!PyArg_ParseTuple(args, "II:cpuid", &leaf, &subleaf))
        return NULL;
    if (tlb_cpuid(leaf, subleaf, registers) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(IIII)", registers[0], registers[1], registers[2], registers[3]);
}

PyMethodDef fact_methods[] = {
    {"clock_ns", core_clock_ns, METH_NOARGS, core_clock_ns_doc},
    {"clock_wait", core_clock_wait, METH_VARARGS, core_clock_wait_doc},
    {"clock_moment", core_clock_moment, METH_NOARGS, core_clock_moment_doc},
    {"clock_calibrate", core_clock_calibrate, METH_NOARGS, core_clock_calibrate_doc},
    {"cpu", core_cpu, METH_NOARGS, core_cpu_doc},
    {"cpuid", core_cpuid, METH_VARARGS, core_cpuid_doc},
    {0},
};
