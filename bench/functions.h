// Looks up functions of a library that is loaded by name.
#pragma once

#include <dlfcn.h>

#include <type_traits>

#include "bench/common.h"

namespace lmdbio::bench {

/// Loads a library, which stays loaded.  Ends the program if the library or a function is missing.
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
