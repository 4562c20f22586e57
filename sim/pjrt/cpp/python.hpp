// The Python interpreter of this process. Waits need two of its services: its lock, and Ctrl-C.
//
// Its functions are looked up at run time, so the library builds without Python's headers.
#pragma once

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace systolith::pjrt {

template <typename F>
F python(const char* name) {
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

// Whether the interpreter is alive, so that its functions may be called.
inline bool alive() {
    static auto initialized = python<int (*)()>("Py_IsInitialized");
    return initialized && initialized();
}

// Releases the interpreter's lock for the duration of a scope, if this thread holds it.
class WithoutGil {
public:
    WithoutGil() {
        static auto held = python<int (*)()>("PyGILState_Check");
        static auto save = python<void* (*)()>("PyEval_SaveThread");
        if (alive() && held && save && held()) state_ = save();
    }
    ~WithoutGil() {
        static auto restore = python<void (*)(void*)>("PyEval_RestoreThread");
        if (state_) restore(state_);
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

private:
    void* state_ = nullptr;
};

// Runs the handlers of pending signals; returns whether one raised an exception. Does nothing on
// other threads than the main one. The exception of Ctrl-C is raised again once Python continues.
inline bool interrupted() {
    static auto ensure = python<int (*)()>("PyGILState_Ensure");
    static auto release = python<void (*)(int)>("PyGILState_Release");
    static auto check = python<int (*)()>("PyErr_CheckSignals");
    static auto clear = python<void (*)()>("PyErr_Clear");
    static auto again = python<void (*)()>("PyErr_SetInterrupt");
    if (syscall(SYS_gettid) != getpid() || !alive()) return false;
    if (!ensure || !release || !check || !clear || !again) return false;
    int state = ensure();
    bool raised = check() != 0;
    if (raised) {
        clear();
        again();
    }
    release(state);
    return raised;
}

}  // namespace systolith::pjrt
