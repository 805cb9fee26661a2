/*
 * Arguments by tables, for functions that have too many of them to be read by a row of letters: a table has a
 * line for each, and says where in a struct it goes.
 */
#include "bridge.h"

static int refuse_type(const char *function, const struct argument *argument, PyObject *value,
                       const char *wanted)
{
    PyErr_Format(PyExc_TypeError, "%s(): %s=%R must be %s", function, argument->name, value, wanted);
    return -1;
}

static int read_number(const char *function, const struct argument *argument, PyObject *value, void *place)
{
    int beyond;
    if (!PyIndex_Check(value))
        return refuse_type(function, argument, value, "an integer");
    long long const number = PyLong_AsLongLongAndOverflow(value, &beyond);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (beyond || number < argument->least || number > argument->most) {
        PyErr_Format(PyExc_ValueError, "%s(): %s=%R is out of range, %lld to %lld", function, argument->name,
                     value, argument->least, argument->most);
        return -1;
    }
    if (argument->as == AS_WORD)
        *(uint64_t *)place = (uint64_t)number;
    else
        *(int *)place = (int)number;
    return 0;
}

static int read_choice(const char *function, const struct argument *argument, PyObject *value, int *choice)
{
    if (!PyUnicode_Check(value))
        return refuse_type(function, argument, value, "a string");
    for (*choice = 0; argument->choices[*choice]; ++*choice)
        if (PyUnicode_CompareWithASCIIString(value, argument->choices[*choice]) == 0)
            return 0;
    PyErr_Format(PyExc_ValueError, "there is no %s of %s %R", argument->name, function, value);
    return -1;
}

static int read_argument(const char *function, const struct argument *argument, PyObject *value, void *place)
{
    int truth;
    switch (argument->as) {
    case AS_WORD:
    case AS_INT:
        return read_number(function, argument, value, place);
    case AS_FLAG:
        truth = PyObject_IsTrue(value);
        *(bool *)place = truth > 0;
        return truth < 0 ? -1 : 0;
    case AS_CHOICE:
        return read_choice(function, argument, value, place);
    case AS_TUPLE:
        if (!PyTuple_Check(value))
            return refuse_type(function, argument, value, "a tuple");
        break;
    case AS_OBJECT:
        break;
    }
    *(PyObject **)place = value;
    return 0;
}

static bool is_known(const struct arguments *lists, PyObject *name)
{
    for (const struct arguments *list = lists; list->table; list++)
        for (const struct argument *argument = list->table; argument->name; argument++)
            if (PyUnicode_CompareWithASCIIString(name, argument->name) == 0)
                return true;
    return false;
}

/* Of arguments more than were read, one has a name that is not known; or the first is there twice. */
static int refuse_others(const char *function, PyObject *keywords, const struct arguments *lists)
{
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(keywords, &at, &name, &value);)
        if (!is_known(lists, name)) {
            PyErr_Format(PyExc_TypeError, "%s() has no argument %R", function, name);
            return -1;
        }
    PyErr_Format(PyExc_TypeError, "%s(): %s is given twice", function, lists->table->name);
    return -1;
}

static PyObject *find(PyObject *args, PyObject *keywords, bool first, const char *name)
{
    if (first && PyTuple_Size(args) > 0)
        return PyTuple_GetItem(args, 0);
    return keywords ? PyDict_GetItemString(keywords, name) : NULL;
}

int arguments_read(const char *function, PyObject *args, PyObject *keywords, const struct arguments *lists)
{
    Py_ssize_t left = PyTuple_Size(args) + (keywords ? PyDict_Size(keywords) : 0);
    if (PyTuple_Size(args) > 1) {
        PyErr_Format(PyExc_TypeError, "%s() takes one positional argument, not %zd", function,
                     PyTuple_Size(args));
        return -1;
    }
    for (const struct arguments *list = lists; list->table; list++)
        for (const struct argument *argument = list->table; argument->name; argument++) {
            PyObject *const value = find(args, keywords, argument == lists->table, argument->name);
            if (!value && !argument->optional) {
                PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, argument->name);
                return -1;
            }
            if (value && read_argument(function, argument, value, (char *)list->into + argument->offset) < 0)
                return -1;
            left -= value != NULL;
        }
    return left ? refuse_others(function, keywords, lists) : 0;
}
