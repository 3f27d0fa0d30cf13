/* A C extension that calls back: `call_back(function, times)`, through ctypes.PyDLL. Without CPython's headers, so that it
 * works with all versions; the symbols come from the interpreter that loads it. */

extern void *PyObject_CallObject(void *callable, void *arguments);
extern void Py_DecRef(void *object);

long call_back(void *callable, long times) {
    for (long time = 0; time < times; time++) {
        void *result = PyObject_CallObject(callable, 0);
        if (!result)
            return -1;
        Py_DecRef(result);
    }
    return times;
}
