/* The kernels by their names. */
#include "bridge.h"

static const struct tlb_kernel *const kernels[] = {
#define ENTRY(name) &tlb_kernel_##name,
    TLB_KERNELS(ENTRY)
#undef ENTRY
};

enum { KERNELS = sizeof(kernels) / sizeof(*kernels) };

static const struct tlb_kernel *find_kernel(const char *name)
{
    for (size_t i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i]->name, name) == 0)
            return kernels[i];
    PyErr_Format(PyExc_ValueError, "there is no kernel '%s'", name);
    return NULL;
}

/* Of a dict that another thread may be changing: so the value is held while it is read. */
static int read_parameter(uint64_t *parameter, const char *kernel, const char *name, PyObject *parameters)
{
    PyObject *const value = PyMapping_GetItemString(parameters, name);
    if (!value) {
        PyErr_Format(PyExc_TypeError, "kernel '%s' needs the parameter '%s'", kernel, name);
        return -1;
    }
    *parameter = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

int kernel_read(struct tlb_run *run, const char *name, PyObject *parameters)
{
    run->kernel = find_kernel(name);
    if (!run->kernel)
        return -1;
    Py_ssize_t count = 0;
    for (; count < TLB_PARAMETERS && run->kernel->parameters[count]; count++)
        if (read_parameter(&run->parameter[count], name, run->kernel->parameters[count], parameters) < 0)
            return -1;
    if (PyDict_Size(parameters) == count)
        return 0;
    PyErr_Format(PyExc_TypeError, "kernel '%s' has %zd parameters, %zd were given", name, count,
                 PyDict_Size(parameters));
    return -1;
}

static PyObject *list_of_names(const char *const *names)
{
    PyObject *const list = PyList_New(0);
    int status = list ? 0 : -1;
    for (; status == 0 && *names; names++) {
        PyObject *const name = PyUnicode_FromString(*names);
        status = name ? PyList_Append(list, name) : -1;
        Py_XDECREF(name);
    }
    if (status == 0)
        return list;
    Py_XDECREF(list);
    return NULL;
}

PyDoc_STRVAR(core_kernels_doc, "kernels($module)\n--\n\nNames of the kernels and of their parameters.");

static PyObject *core_kernels(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *result = PyDict_New();
    for (size_t i = 0; result && i < KERNELS; i++)
        result = dict_with(result, kernels[i]->name, list_of_names(kernels[i]->parameters));
    return result;
}

PyMethodDef kernel_methods[] = {
    {"kernels", core_kernels, METH_NOARGS, core_kernels_doc},
    {0},
};
