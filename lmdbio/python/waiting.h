// Calls that may wait: without the GIL, and so that Python's signal handlers run meanwhile.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <lmdbio/lmdbio.h>
#include <unistd.h>

namespace lmdbio::python {

/// While it lives, the calling thread does not hold the GIL.
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
      // The interpreter ends, and with it this daemon thread.  Up to Python 3.13 it is unwound, which no
      // function of the library allows; later, it waits here for the end of the process.
      for (;;) ::pause();
    }
  }
  void give_up() noexcept { thread_ = PyEval_SaveThread(); }

 private:
  PyThreadState* thread_;
};

/// The same for calls of the library.  If a signal handler raises an exception (KeyboardInterrupt), the call
/// ends with ECANCELED, and the exception is set: see raise().
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

  /// Of a program that embeds Python.
  lmdbio_interrupt_func* programs_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace lmdbio::python
