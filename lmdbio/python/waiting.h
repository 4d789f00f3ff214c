// Releases the GIL during calls that may wait, and runs Python's signal handlers meanwhile.
//
// When the interpreter ends, Python up to 3.13 unwinds the stack of each daemon thread that requests the GIL.
// C++ code cannot be unwound in this way: the library's functions are noexcept, and pybind11's destructors
// need the GIL.  The functions below therefore make a daemon thread wait for the end of the process.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <lmdbio/lmdbio.h>
#include <unistd.h>

namespace lmdbio::python {

/// Waits for the end of the process.
[[noreturn]] inline void wait_for_exit() noexcept {
  for (;;) ::pause();
}

/// Calls a function that is written in Python.  Returns a new reference, or sets an exception and returns
/// nullptr.
inline PyObject* call_python(PyObject* function, PyObject* argument) noexcept {
  try {
    return PyObject_CallOneArg(function, argument);
  } catch (abi::__forced_unwind&) {
    wait_for_exit();
  }
}

/// Releases the GIL while this object exists.
class WithoutGil {
 public:
  WithoutGil() noexcept : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { take_back(); }

  void take_back() noexcept {
    try {
      PyEval_RestoreThread(thread_);
    } catch (abi::__forced_unwind&) {
      wait_for_exit();
    }
  }
  void give_up() noexcept { thread_ = PyEval_SaveThread(); }

 private:
  PyThreadState* thread_;
};

/// Releases the GIL during a call of the library.  If a signal handler raises an exception such as
/// KeyboardInterrupt, the call fails with ECANCELED and the exception is set; see raise().
class Waiting : public WithoutGil {
 public:
  Waiting() noexcept {
    lmdbio_get_interrupt(&programs_, &context_);
    lmdbio_set_interrupt(&Waiting::ask, this);
  }
  ~Waiting() { lmdbio_set_interrupt(programs_, context_); }

 private:
  static int ask(void* self) {
    Waiting& w = *static_cast<Waiting*>(self);
    w.take_back();
    const int raised = PyErr_CheckSignals();
    w.give_up();
    if (raised != 0 || w.programs_ == nullptr) return raised;
    return w.programs_(w.context_);
  }

  /// The earlier interrupt function, which a program that embeds Python may have set.
  lmdbio_interrupt_func* programs_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace lmdbio::python
