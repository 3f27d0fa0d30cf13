/* hand(FUNCTION): releases the GIL and computes while another thread, which has no thread state of its own, calls the function
 * with this thread's state, as an embedding program may do. For ctypes.PyDLL. */

#include <pthread.h>
#include <stddef.h>

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
PyObject *PyObject_CallObject(PyObject *, PyObject *);

struct call {
    PyThreadState *state;
    PyObject *function, *result;
    int done;
};

static void *other(void *argument)
{
    struct call *call = argument;
    PyEval_RestoreThread(call->state);
    call->result = PyObject_CallObject(call->function, NULL);
    PyEval_SaveThread();
    __atomic_store_n(&call->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

PyObject *hand(PyObject *function)
{
    struct call call = {PyEval_SaveThread(), function, NULL, 0};
    pthread_t thread;
    pthread_create(&thread, NULL, other, &call);
    while (!__atomic_load_n(&call.done, __ATOMIC_ACQUIRE))
        ;
    pthread_join(thread, NULL);
    PyEval_RestoreThread(call.state);
    return call.result;
}
