#include "compat/error_text.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace lmdbio::compat {

namespace {

constexpr std::size_t kBytes = 512;

// Thread-specific memory, allocated only in threads that have an error.  A libc function frees it, so that
// threads may outlive this library.
constinit pthread_once_t once = PTHREAD_ONCE_INIT;
constinit pthread_key_t key = 0;
constinit bool made = false;
void make_key() { made = ::pthread_key_create(&key, std::free) == 0; }

}  // namespace

void set_error_text(const std::string& text) noexcept {
  const int saved = errno;
  (void)::pthread_once(&once, make_key);
  char* at = made ? static_cast<char*>(::pthread_getspecific(key)) : nullptr;
  if (made && at == nullptr) {
    at = static_cast<char*>(std::calloc(1, kBytes));
    if (at != nullptr && ::pthread_setspecific(key, at) != 0) {
      std::free(at);
      at = nullptr;
    }
  }
  if (at != nullptr) {
    const std::size_t n = std::min(text.size(), kBytes - 1);
    std::memcpy(at, text.data(), n);
    at[n] = '\0';
  }
  errno = saved;
}

const char* error_text() noexcept {
  (void)::pthread_once(&once, make_key);
  const char* const at = made ? static_cast<const char*>(::pthread_getspecific(key)) : nullptr;
  return at != nullptr ? at : "";
}

}  // namespace lmdbio::compat
