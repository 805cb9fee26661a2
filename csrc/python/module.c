/*
 * The module. To Python it looks like this:
 *
 *   class Mapping:                      # memory under a page policy, outside the heap
 *       address, mapped_bytes, base_page, closed
 *       def __init__(size, *, alignment, base_page, page, huge_shift=0, piece=0, sparse=False)
 *       def advise(advice, /)
 *       def touch(shuffled, seed, /) -> minor faults
 *       def populate()
 *       def collapse()
 *       def pass_over(offset, size, /)
 *       def scan(offset, size, /) -> {"present", "huge", "zero", "swapped": bytes}
 *       def close()
 *       (buffer protocol; may be subclassed)
 *   class Session:                      # kernels prepared on parts of mappings, to be timed in turn
 *       laps, counts
 *       def __new__([(mapping, kernel, offset, size, {parameter: number}), ...])
 *       def pass_over()
 *       def verify() -> (accesses of one lap, as counted, ...)
 *       def measure(accesses, slices, groups=(), /) -> {"ns", "cpu_ns", "minor", "major", "switches",
 *                                                       "witness_ns", and "counted" where there are groups}
 *       def close()
 *       (context manager)
 *   class CounterGroup:                 # perf events of one thread, counted together or not at all
 *       def __new__([(type, config, config1, config2), ...], *, pid=0, exclude_kernel=False,
 *                   inherit=False, enable_on_exec=False)
 *       def enable()
 *       def disable()
 *       def reset()
 *       def read() -> (enabled_ns, running_ns, (value, ...))
 *       def peek() -> the same without a system call, or None
 *       def fileno() -> descriptor of the first event
 *       def close()
 *       (context manager)
 *   def kernels() -> {name: [parameter, ...]}
 *   def fault(kind, *, size, alignment, base_page, page, huge_shift=0, piece=0, advice, without_thp, fd,
 *             shared, write, step, count, block, chunk, after, order, threads, cpus)
 *       -> {"ns", "after", "touched", "touched_after", ...}, or (step, errno, signal) where it failed
 *   def shootdown(kind, *, size, alignment, base_page, page, huge_shift=0, piece=0, advice, step, calls,
 *                 cpus)
 *       -> {"ns", "others", "quiet_ns", ...}, or (step, errno, signal) where it failed
 *   def open_unnamed(folder, flags, /) -> descriptor of a file without a name
 *   def program_launch(paths, arguments, environment, streams, thp, go, report, /) -> pid
 *   def program_go(go, report, /) -> {"ns", "user_us", ..., "stage", "error"}
 *   def program_trace(pid, /)
 *   def program_resume(pid, /)
 *   def program_wait(pid, /) -> (whether it has ended and not only stopped, ns)
 *   def clock_ns() -> ns
 *   def clock_wait(seconds, /)
 *   def clock_moment() -> (ns, ns of CLOCK_MONOTONIC, ticks)
 *   def clock_calibrate() -> (ns of a read, ns of the smallest step)
 *   def cpu() -> number
 *   def cpuid(leaf, subleaf, /) -> (eax, ebx, ecx, edx), or None
 *   EVENTS_MOST, JUMP_REACH, THREADS_MOST, WITNESS_ADDS: int
 *
 * A mapping is used by one session at a time, from the first node written to the last one read: the GIL is
 * released meanwhile, and between two calls other threads and signal handlers run. Sessions and groups of
 * counters serve one call at a time. Who comes second gets a RuntimeError, with a GIL and without one.
 */
#define TLB_LOOKS_UP_NUMPY
#include "bridge.h"

static int core_exec(PyObject *module)
{
    core_state *const state = PyModule_GetState(module);
    if (PyArray_ImportNumPyAPI() < 0 || core_add_type(module, &mapping_spec, &state->mapping_type) < 0 ||
        core_add_what_is_common(module) < 0)
        return -1;
    if (PyModule_AddFunctions(module, experiment_methods) < 0 ||
        PyModule_AddFunctions(module, program_methods) < 0 || PyModule_AddFunctions(module, fact_methods) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "THREADS_MOST", TLB_THREADS);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
#ifdef Py_mod_gil
    /* The state is written by core_exec alone. What an object changes after it was made is atomic, or belongs
     * to the one call that has taken the object; and arguments are read where no other thread can change
     * them. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
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
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
