// Calls that may wait: without the GIL, and so that Python's signal handlers run meanwhile.
#pragma once

#include <Python.h>
#include <lmdbio/lmdbio.h>

namespace lmdbio::python {

/// While it lives, the calling thread does not hold the GIL.  If a signal handler raises an exception
/// (KeyboardInterrupt), the library's call ends with ECANCELED, and the exception is set: see raise().
class Waiting {
 public:
  Waiting() noexcept : thread_(PyEval_SaveThread()) { lmdbio_set_interrupt(&Waiting::ask, this); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    lmdbio_set_interrupt(nullptr, nullptr);
    PyEval_RestoreThread(thread_);
  }

 private:
  static int ask(void* self) {
    Waiting& w = *static_cast<Waiting*>(self);
    PyEval_RestoreThread(w.thread_);
    const int raised = PyErr_CheckSignals();
    w.thread_ = PyEval_SaveThread();
    return raised;
  }
  PyThreadState* thread_;
};

}  // namespace lmdbio::python
