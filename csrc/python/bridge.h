/*
 * What the files of the bridge share, and what each of them offers to the two modules. It alone includes
 * Python.h and NumPy, and they alone include it.
 */
#ifndef TLB_BRIDGE_H
#define TLB_BRIDGE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The functions of NumPy are pointers, which the module's own file looks up for all. */
#define PY_ARRAY_UNIQUE_SYMBOL tlb_numpy
#ifndef TLB_LOOKS_UP_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "tlbprobe.h"

#include <stdatomic.h>

/* There are two cores: this machine's, and one whose machines are simulated. */
#ifdef TLB_SIMULATED
#define TLB_CORE "tlbprobe._simulated"
#else
#define TLB_CORE "tlbprobe._core"
#endif

typedef struct {
    PyTypeObject *mapping_type;
    PyTypeObject *session_type;
    PyTypeObject *group_type;
    PyTypeObject *machine_type; /* of the simulated core alone */
} core_state;

/* -- core.c: what the modules of both have in common ------------------------------------------------- */

int core_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type); /* which is kept in the state */
int core_add_what_is_common(PyObject *module); /* sessions, counters, kernels and constants */
int core_traverse(PyObject *module, visitproc visit, void *arg);
int core_clear(PyObject *module);

/* -- common.c: the GIL, objects, errors and results -------------------------------------------------- */

/* Work with the GIL released, which is taken back now and then to run Python's signal handlers. */
struct gil_poll {
    struct tlb_poll poll;    /* for functions that ask whether to go on */
    PyThreadState *released; /* what PyEval_SaveThread returned */
    uint64_t due;            /* when to take it back next */
};

enum { POLL_NS = 10 * 1000 * 1000 };

void gil_release(struct gil_poll *gil);
void gil_acquire(struct gil_poll *gil);

void *object_new(PyTypeObject *type); /* all zero */
void object_free(PyObject *object);   /* and its hold on its type */

/* An object that serves one call at a time until it is closed: so others may come while the GIL is released.
 */
struct turn {
    _Atomic bool taken;
    bool open; /* for whoever has the turn */
};

int turn_take(struct turn *turn, const char *whose);  /* RuntimeError: another call has it */
int turn_begin(struct turn *turn, const char *whose); /* and ValueError: it is closed */
void turn_end(struct turn *turn);

/* For `with`: the end of it is a call of close(). */
PyObject *context_enter(PyObject *object, PyObject *unused);
PyObject *context_exit(PyObject *object, PyObject *args);

/* NULL with the exception that -errno means; an interrupt has set its own already. */
PyObject *raise_status(int status);
PyObject *none_or_raise(int status);

PyObject *tuple_of(const uint64_t *values, Py_ssize_t count);
PyObject *array_of(const uint64_t *values, int dimensions, const npy_intp *shape); /* a copy, as int64 */

/* Puts a new value into a new dict, and takes both references; NULL if there is not the one or the other. */
PyObject *dict_with(PyObject *dict, const char *name, PyObject *value);

struct number {
    const char *name; /* in a dict; NULL ends a list */
    size_t offset;    /* in a struct, of an uint64_t */
};

PyObject *dict_with_numbers(PyObject *dict, const struct number *numbers, const void *record);

extern const struct number scan_numbers[]; /* of struct tlb_scan */

/* -- arguments.c ------------------------------------------------------------------------------------- */

enum argument_as {
    AS_WORD,   /* uint64_t or size_t: an integer from least to most */
    AS_INT,    /* int or unsigned: the same */
    AS_FLAG,   /* bool */
    AS_CHOICE, /* int or enum: the place of a string among the choices */
    AS_TUPLE,  /* PyObject *, borrowed */
    AS_OBJECT, /* the same, of any type */
};

struct argument {
    const char *name; /* NULL ends a table */
    enum argument_as as;
    size_t offset; /* in the struct that it is read into */
    long long least, most;
    const char *const *choices; /* NULL at the end */
    bool optional;              /* what is there stays where it is not given */
};

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "a word is both");

struct arguments {
    const struct argument *table; /* NULL ends a list of tables */
    void *into;
};

/* Reads the arguments of all tables, and no others. The first one of all may be given by its place. */
int arguments_read(const char *function, PyObject *args, PyObject *keywords, const struct arguments *lists);

/* -- mapping.c --------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct tlb_region region; /* as it was mapped, which nothing changes */
    struct tlb_region left;   /* of it, to be given back by the one who closes it */
    _Atomic pid_t owner;      /* a forked child does not inherit the memory; 0: not mapped yet */
    _Atomic bool open;
    _Atomic Py_ssize_t users; /* views that are alive; or MAPPING_TAKEN, by one who needs it alone */
} Mapping;

enum { MAPPING_TAKEN = -1 };

extern PyType_Spec mapping_spec;

/* What a mapping is asked for, each by itself and then all together. */
extern const struct argument request_arguments[]; /* of struct tlb_region_request */
int request_check(const struct tlb_region_request *request);

/* -- holding.c --------------------------------------------------------------------------------------- */

int mapping_check_open(const Mapping *self);
int mapping_check_range(const Mapping *self, Py_ssize_t offset, Py_ssize_t size);

/* For the one user at a time that changes or measures the memory, while there are no views of it. */
int mapping_acquire(Mapping *self);
void mapping_release(Mapping *self);

Py_ssize_t mapping_take(Mapping *self); /* 0 if it is ours now; otherwise the users that it has */
int mapping_refuse(Py_ssize_t users);   /* because of these: -1, with an exception */

/* -- simulated_machine.c: whose clock, kernels and counters a call is on ------------------------------ */

/* A simulated machine serves one call at a time. This machine is no object, and always there. */
#ifdef TLB_SIMULATED
int machine_begin(PyObject *machine);
void machine_end(PyObject *machine);

extern PyType_Spec machine_spec;
#else
static inline int machine_begin(PyObject *machine)
{
    (void)machine;
    return 0;
}

static inline void machine_end(PyObject *machine)
{
    (void)machine;
}
#endif

/* -- counters.c, and what opens groups: perf.c or simulated_counters.c -------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *machine; /* that is counted; NULL: this one */
    struct tlb_counters counters;
    struct turn turn;
} CounterGroup;

/* For a measurement by this thread on a machine, which must be what is counted. */
int group_hold(CounterGroup *self, PyObject *machine);
void group_let_go(CounterGroup *self);

int group_begin(CounterGroup *self); /* for another call */
void group_end(CounterGroup *self);

extern const char group_doc[];
PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *keywords);
PyObject *group_peek(PyObject *object, PyObject *unused);
PyObject *group_fileno(PyObject *object, PyObject *unused);
PyObject *reading_tuple(const struct tlb_reading *reading, size_t count);

extern PyType_Spec group_spec;

/* -- kernels.c --------------------------------------------------------------------------------------- */

/* Finds a kernel by its name, and its parameters in a dict. */
int kernel_read(struct tlb_run *run, const char *name, PyObject *parameters);

extern PyMethodDef kernel_methods[];

/* -- session.c, experiments.c, program.c, facts.c ---------------------------------------------------- */

extern PyType_Spec session_spec;
extern PyMethodDef experiment_methods[], program_methods[], fact_methods[];

#endif
