/* Somebody else's program: see csrc/program.c. */
#include "bridge.h"

/* Pointers to the bytes of a tuple, which must outlive them; NULL with an exception set. */
static char **strings_of(PyObject *tuple)
{
    Py_ssize_t const count = PyTuple_Size(tuple);
    char **const strings = PyMem_Calloc((size_t)count + 1, sizeof *strings);
    if (!strings)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; strings && i < count; i++)
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &strings[i], NULL) < 0) {
            PyMem_Free(strings);
            return NULL;
        }
    return strings;
}

PyDoc_STRVAR(core_program_launch_doc,
             "program_launch($module, paths, arguments, environment, streams, thp, go, report, /)\n--\n\n"
             "Make the process of a program, which waits for program_go; its number.");

static PyObject *core_program_launch(PyObject *Py_UNUSED(module), PyObject *args)
{
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

static const struct number start_numbers[] = {
    {"ns", offsetof(struct tlb_start, ns)},
    {"user_us", offsetof(struct tlb_start, user_us)},
    {"system_us", offsetof(struct tlb_start, system_us)},
    {"minor", offsetof(struct tlb_start, minor)},
    {"major", offsetof(struct tlb_start, major)},
    {"voluntary", offsetof(struct tlb_start, voluntary)},
    {"involuntary", offsetof(struct tlb_start, involuntary)},
    {"peak", offsetof(struct tlb_start, peak)},
    {"stage", offsetof(struct tlb_start, stage)},
    {"error", offsetof(struct tlb_start, error)},
    {0},
};

PyDoc_STRVAR(core_program_go_doc, "program_go($module, go, report, /)\n--\n\n"
                                  "Let it go; what it said before it began, or why it could not.");

static PyObject *core_program_go(PyObject *Py_UNUSED(module), PyObject *args)
{
    int go, report, status;
    struct tlb_start start;
    if (!PyArg_ParseTuple(args, "ii:program_go", &go, &report))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = tlb_program_go(go, report, &start);
    Py_END_ALLOW_THREADS
    return status < 0 ? raise_status(status) : dict_with_numbers(PyDict_New(), start_numbers, &start);
}

static PyObject *do_with(PyObject *args, const char *format, int (*work)(pid_t pid))
{
    int pid;
    return PyArg_ParseTuple(args, format, &pid) ? none_or_raise(work(pid)) : NULL;
}

PyDoc_STRVAR(core_program_trace_doc, "program_trace($module, pid, /)\n--\n\n"
                                     "From now on it stops before it exits, for this thread to resume it.");

static PyObject *core_program_trace(PyObject *Py_UNUSED(module), PyObject *args)
{
    return do_with(args, "i:program_trace", tlb_program_trace);
}

PyDoc_STRVAR(core_program_resume_doc, "program_resume($module, pid, /)\n--\n\nLet it exit.");

static PyObject *core_program_resume(PyObject *Py_UNUSED(module), PyObject *args)
{
    return do_with(args, "i:program_resume", tlb_program_resume);
}

PyDoc_STRVAR(core_program_wait_doc,
             "program_wait($module, pid, /)\n--\n\n"
             "Wait: (True, ns) when it has ended and is to be reaped, (False, ns) when "
             "it stops before its exit.");

static PyObject *core_program_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
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

PyMethodDef program_methods[] = {
    {"program_launch", core_program_launch, METH_VARARGS, core_program_launch_doc},
    {"program_go", core_program_go, METH_VARARGS, core_program_go_doc},
    {"program_trace", core_program_trace, METH_VARARGS, core_program_trace_doc},
    {"program_resume", core_program_resume, METH_VARARGS, core_program_resume_doc},
    {"program_wait", core_program_wait, METH_VARARGS, core_program_wait_doc},
    {0},
};
