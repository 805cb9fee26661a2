/* What the modules of both cores have in common. */
#include "bridge.h"

#include "code.h"

int core_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

int core_add_what_is_common(PyObject *module)
{
    core_state *const state = PyModule_GetState(module);
    const struct tlb_code *const code = tlb_code_here();
    if (core_add_type(module, &session_spec, &state->session_type) < 0 ||
        core_add_type(module, &group_spec, &state->group_type) < 0 ||
        PyModule_AddFunctions(module, kernel_methods) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "EVENTS_MOST", TLB_EVENTS) < 0 ||
        PyModule_AddIntConstant(module, "JUMP_REACH", code ? (long)code->reach : 0) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "WITNESS_ADDS", TLB_WITNESS_ADDS);
}

int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *const state = PyModule_GetState(module);
    Py_VISIT(state->mapping_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->group_type);
    Py_VISIT(state->machine_type);
    return 0;
}

int core_clear(PyObject *module)
{
    core_state *const state = PyModule_GetState(module);
    Py_CLEAR(state->mapping_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->group_type);
    Py_CLEAR(state->machine_type);
    return 0;
}
