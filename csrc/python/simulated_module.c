/*
 * The module of the second core, whose machines are simulated. To Python it looks like this:
 *
 *   class Machine:                      # a simulated processor, and its clock
 *       def __new__(numbers, /)         # struct tlb_model_config, field by field
 *       def map(address, size, page, true_page, /)
 *       def unmap(address, /)
 *       def clock_ns() -> ns
 *       def clock_wait(seconds, /)
 *       def clock_moment() -> (ns, ns, ticks of 1 GHz)
 *       def clock_calibrate() -> (ns of a read, ns of the smallest step)
 *       def counters() -> {name: number}
 *   class Session:                      # kernels prepared on parts of mappings, to be timed in turn
 *       laps, counts
 *       def __new__([(mapping, kernel, offset, size, {parameter: number}), ...], machine, /)
 *       def pass_over()                 # does nothing: a model needs no page to be there
 *       def verify() -> (accesses of one lap, as counted, ...)
 *       def measure(accesses, slices, groups=(), /) -> as in the first core
 *       def close()
 *       (context manager)
 *   class CounterGroup:                 # counters of a machine, read together
 *       def __new__([name, ...], machine, /)
 *       def enable()
 *       def disable()
 *       def reset()
 *       def read() -> (enabled_ns, running_ns, (value, ...))
 *       def close()
 *       (context manager)
 *   def kernels() -> {name: [parameter, ...]}
 *   COUNTERS: tuple of str, the names in order
 *   EVENTS_MOST, JUMP_REACH, WITNESS_ADDS: int
 *
 * Memory is real, and of the first core: mappings are its objects. What a session measures has to be mapped
 * in its machine, too. A machine serves one call at a time, as sessions and groups of counters do: who comes
 * second gets a RuntimeError.
 */
#define TLB_LOOKS_UP_NUMPY
#include "bridge.h"

#include "simulated/model.h"

/* The same struct, as the same files of this package were compiled with. */
static PyTypeObject *find_mapping_type(void)
{
    PyObject *const core = PyImport_ImportModule("tlbprobe._core");
    PyObject *const type = core ? PyObject_GetAttrString(core, "Mapping") : NULL;
    Py_XDECREF(core);
    if (!type || (PyType_Check(type) && ((PyTypeObject *)type)->tp_basicsize == sizeof(Mapping)))
        return (PyTypeObject *)type;
    Py_DECREF(type);
    PyErr_SetString(PyExc_ImportError, "tlbprobe._core and tlbprobe._simulated are of two builds");
    return NULL;
}

static PyObject *tuple_of_names(void)
{
    PyObject *const tuple = PyTuple_New(TLB_MODEL_COUNTERS);
    for (unsigned i = 0; tuple && i < TLB_MODEL_COUNTERS; i++) {
        char name[TLB_MODEL_NAME];
        tlb_model_counter_name(i, name);
        PyObject *const string = PyUnicode_FromString(name);
        if (!string || PyTuple_SetItem(tuple, i, string) < 0) {
            Py_DECREF(tuple);
            return NULL;
        }
    }
    return tuple;
}

static int add_names(PyObject *module)
{
    PyObject *const names = tuple_of_names();
    int const status = PyModule_AddObjectRef(module, "COUNTERS", names);
    Py_XDECREF(names);
    return status;
}

static int simulated_exec(PyObject *module)
{
    core_state *const state = PyModule_GetState(module);
    if (PyArray_ImportNumPyAPI() < 0 || !(state->mapping_type = find_mapping_type()) ||
        core_add_type(module, &machine_spec, &state->machine_type) < 0 || core_add_what_is_common(module) < 0)
        return -1;
    return add_names(module);
}

static PyModuleDef_Slot simulated_slots[] = {
    {Py_mod_exec, (void *)simulated_exec},
#ifdef Py_mod_gil
    /* As for the first core: a model belongs to the one call that has taken its machine, and which model a
     * thread's accesses go to is known to that thread alone. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* nor does NumPy */
#endif
    {0, NULL},
};

static struct PyModuleDef simulated_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tlbprobe._simulated",
    .m_doc = "Kernels, the slice loop and counters on simulated machines.",
    .m_size = sizeof(core_state),
    .m_slots = simulated_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
};

PyMODINIT_FUNC PyInit__simulated(void)
{
    return PyModuleDef_Init(&simulated_module);
}
