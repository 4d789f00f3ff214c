// Functions of a library that is loaded by name.
#pragma once

#include <dlfcn.h>

#include <type_traits>

#include "bench/common.h"

namespace lmdbio::bench {

/// The library stays loaded.  Ends the program if it, or a function, is not there.
class Functions {
 public:
  Functions(const char* library, int flags) : library_(dlopen(library, flags)) {
    if (library_ == nullptr) die("%s", dlerror());
  }
  template <class F>
  void operator()(const char* name, F& function) const {
    function = reinterpret_cast<F>(dlsym(library_, name));
    if (function == nullptr) die("%s", dlerror());
  }

 private:
  void* library_;
};

}  // namespace lmdbio::bench
