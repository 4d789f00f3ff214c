#include "compat/stock.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "compat/object.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"

namespace lmdbio::compat {

namespace {

constexpr unsigned kMaxLibraries = 16;
constinit std::atomic<const Stock*> libraries[kMaxLibraries]{};
constinit std::atomic<unsigned> library_count{0};
// Guards additions to the two lists; readers take no lock.  Not held while the loader is called, which has
// its own locks and may run a constructor that calls us.
constinit SignalSafeMutex mutex;

/// The result of resolve() for a caller's object and names, so that it is found only once.
struct KnownCaller {
  const void* object;
  Names names;
  Caller caller;
};
constinit std::atomic<unsigned> caller_count{0};
constinit KnownCaller callers[64]{};

const void* object_of(const void* address) noexcept {
  Dl_info info;
  return ::dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

bool is_ours(const void* function) noexcept {
  // Compares with a function that is not exported, because the address of an exported one may belong to
  // another library.
  return object_of(function) == object_of(reinterpret_cast<const void*>(&object_of));
}

// Adds the library whose function env_create, with this prefix, is `create`.  Looks up its functions through
// `handle`, which may find functions of other objects; only those of the same object are used.
const Stock* add_library(void* handle, void* create, const char* prefix = "mdb_") noexcept {
  const void* const base = object_of(create);
  std::unique_ptr<Stock> s(new (std::nothrow) Stock{});
  if (s == nullptr) return nullptr;
  const auto find = [&](const char* name) noexcept -> void* {
    char full[40];
    (void)std::snprintf(full, sizeof full, "%s%s", prefix, name);
    void* const f = ::dlsym(handle, full);
    return f != nullptr && object_of(f) == base ? f : nullptr;
  };
  bool complete = true;
#define LMDBIO_FIND(name)                                     \
  s->name = reinterpret_cast<decltype(s->name)>(find(#name)); \
  complete = complete && s->name != nullptr;
  LMDBIO_EACH_FUNCTION(LMDBIO_FIND)
  if (!complete) return nullptr;
  LMDBIO_EACH_10_FUNCTION(LMDBIO_FIND)
  LMDBIO_EACH_PY_FUNCTION(LMDBIO_FIND)
#undef LMDBIO_FIND
  int major = 0, minor = 0, patch = 0;
  (void)s->version(&major, &minor, &patch);
  s->series = major == 0 && minor == 9 && patch < 70 ? Series::v09
              : major == 1 && minor == 0             ? Series::v10
                                                     : Series::other;
  s->patch = patch;

  const std::lock_guard lock(mutex);
  const unsigned n = library_count.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < n; ++i) {
    const Stock* const known = libraries[i].load(std::memory_order_relaxed);
    if (known->env_create == s->env_create) return known;
  }
  if (n == kMaxLibraries) return nullptr;
  Dl_info info;
  s->path = ::dladdr(create, &info) != 0 ? ::strdup(info.dli_fname) : nullptr;
  if (s->path == nullptr) s->path = "";
  log_line(LogLevel::debug, "stock LMDB %d.%d.%d: %s", major, minor, patch, s->path);
  libraries[n].store(s.get(), std::memory_order_release);
  library_count.store(n + 1, std::memory_order_release);
  return s.release();
}

const Stock* add_path(const char* path) noexcept {
  void* const handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  // Reject LMDBIO itself and its other artifact, which would call back here.
  void* const create =
      ::dlsym(handle, "lmdbio_version") == nullptr ? ::dlsym(handle, "mdb_env_create") : nullptr;
  const Stock* const s = create != nullptr && !is_ours(create) ? add_library(handle, create) : nullptr;
  if (s == nullptr) ::dlclose(handle);
  return s;
}

const Stock* configured() noexcept {
  const std::string& path = config().stock_lib;
  if (path.empty()) return nullptr;
  const Stock* const s = add_path(path.c_str());
  if (s == nullptr) {
    const char* const why = ::dlerror();
    log_line(LogLevel::error, "LMDBIO_STOCK_LIB=%s is not an LMDB library: %s", path.c_str(),
             why != nullptr ? why : "it lacks LMDB functions, or it is LMDBIO itself");
  }
  return s;
}

// A caller's module: a handle of the loader, and where the module lies.  Empty for a program, whose calls are
// bound at link time.
struct Module {
  explicit Module(const void* return_address) noexcept {
    if (::dladdr1(return_address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
        map == nullptr || map->l_name == nullptr || map->l_name[0] == '\0')
      return;
    handle = ::dlopen(map->l_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  }
  Dl_info info;
  link_map* map = nullptr;
  void* handle = nullptr;
};

// Returns the LMDB that the caller's module bundles, and whether its calls of LMDB were inlined.
Caller callers_own(const void* return_address, Names names) noexcept {
  const auto [info, map, handle] = Module(return_address);
  if (handle == nullptr) return {};
  const Stock* s = nullptr;
  bool own_handles = false;
  for (const char* const prefix : {"mdb_", "mdb09_", "mdb10_"}) {
    if ((std::strcmp(prefix, "mdb10_") == 0) != (names == Names::v10)) continue;
    char name[24];
    (void)std::snprintf(name, sizeof name, "%senv_create", prefix);
    void* const create = ::dlsym(handle, name);
    if (create == nullptr || object_of(create) != info.dli_fbase || is_ours(create)) continue;
    if (s = add_library(handle, create, prefix); s == nullptr) continue;
    own_handles = has_inlined_calls(LoadedObject(map->l_addr, map->l_ld), prefix);
    break;
  }
  if (s == nullptr) ::dlclose(handle);  // else kept open: the table points into it
  if (own_handles)
    log_line(LogLevel::info, "%s: calls of the LMDB that it contains were inlined: stock LMDB serves it",
             s->path);
  return {s, own_handles};
}

#ifndef LMDBIO_SONAME_ARTIFACT

// Adds the library that contains `create`.  Returns nullptr if there is none, or if it is LMDBIO.
const Stock* add_found(void* create) noexcept {
  if (create == nullptr || is_ours(create)) return nullptr;
  Dl_info info;
  void* const handle = ::dladdr(create, &info) != 0 && info.dli_fname != nullptr
                           ? ::dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)
                           : nullptr;
  return add_library(handle != nullptr ? handle : RTLD_NEXT, create);
}

const Stock* by_search_order(const void* return_address) noexcept {
  if (const Stock* const s = add_found(::dlsym(RTLD_NEXT, "mdb_env_create")); s != nullptr) return s;
  // A module that was opened with RTLD_LOCAL: the search order does not contain what it is linked to.
  if (void* const module = Module(return_address).handle; module != nullptr) {
    const Stock* const s = add_found(::dlsym(module, "mdb_env_create"));
    ::dlclose(module);
    if (s != nullptr) return s;
  }
  for (const char* const name : {"liblmdb.so.0", "liblmdb.so.1"})
    if (const Stock* const s = add_path(name); s != nullptr) return s;
  // A wheel brings one along, for machines that have none.
  Dl_info own;
  if (::dladdr(reinterpret_cast<const void*>(&object_of), &own) == 0 || own.dli_fname == nullptr)
    return nullptr;
  const std::string_view path(own.dli_fname);
  char beside[4096];
  const int n = std::snprintf(beside, sizeof beside, "%.*s/lmdbio/stock/liblmdb.so.0",
                              static_cast<int>(path.substr(0, path.rfind('/')).size()), own.dli_fname);
  return path.find('/') != path.npos && n < static_cast<int>(sizeof beside) ? add_path(beside) : nullptr;
}

#else

// This library is liblmdb.so.0 itself, so the real one is opened by its absolute path, and must be another
// file.
const Stock* by_search_order(const void*) noexcept {
  if (void* const create = ::dlsym(RTLD_NEXT, "mdb_env_create"); create != nullptr && !is_ours(create)) {
    if (const Stock* const s = add_library(RTLD_NEXT, create); s != nullptr) return s;
  }
  Dl_info info;
  struct stat self {};
  if (::dladdr(reinterpret_cast<const void*>(&object_of), &info) == 0 || ::stat(info.dli_fname, &self) != 0)
    return nullptr;
  void* const handle = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  const Stock* found = nullptr;
  Dl_serinfo size;
  if (::dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) == 0) {
    const std::unique_ptr<char[]> room(new (std::nothrow) char[size.dls_size]);
    auto* const dirs = reinterpret_cast<Dl_serinfo*>(room.get());
    if (dirs != nullptr) {
      *dirs = size;
      const bool listed =
          ::dlinfo(handle, RTLD_DI_SERINFOSIZE, dirs) == 0 && ::dlinfo(handle, RTLD_DI_SERINFO, dirs) == 0;
      for (unsigned i = 0; listed && found == nullptr && i < dirs->dls_cnt; ++i) {
        char path[4096];
        const int n = std::snprintf(path, sizeof path, "%s/liblmdb.so.0", dirs->dls_serpath[i].dls_name);
        struct stat other {};
        if (path[0] != '/' || n >= static_cast<int>(sizeof path) || ::stat(path, &other) != 0) continue;
        if (other.st_dev == self.st_dev && other.st_ino == self.st_ino) continue;
        found = add_path(path);
      }
    }
  }
  ::dlclose(handle);
  return found;
}

#endif

Caller resolve(const void* return_address, Names names) noexcept {
  (void)config();  // sets the log level
  const Caller own = callers_own(return_address, names);
  if (own.own_handles) return own;
  if (const Stock* const s = configured();
      s != nullptr && (own.stock == nullptr || own.stock->series == s->series))
    return {s};
  if (own.stock != nullptr) return own;
  if (const Stock* const s = names == Names::plain ? by_search_order(return_address) : nullptr; s != nullptr)
    return {s};
  static constinit std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    log_line(LogLevel::error,
             "stock LMDB was not found: install liblmdb0, or set LMDBIO_STOCK_LIB to its path");
  }
  return {};
}

}  // namespace

Caller caller_at(const void* return_address, Names names) noexcept {
  const int saved = errno;
  const void* const object = object_of(return_address);
  const unsigned n = caller_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < n; ++i) {
    if (callers[i].object == object && callers[i].names == names) return callers[i].caller;
  }
  const Caller caller = resolve(return_address, names);
  if (caller.stock != nullptr) {
    const std::lock_guard lock(mutex);
    const unsigned at = caller_count.load(std::memory_order_relaxed);
    if (at < std::size(callers)) {
      callers[at] = {object, names, caller};
      caller_count.store(at + 1, std::memory_order_release);
    }
  }
  errno = saved;
  return caller;
}

const Stock* stock_of_handle(const void* return_address, Names names) noexcept {
  if (library_count.load(std::memory_order_acquire) == 1) return libraries[0].load(std::memory_order_relaxed);
  return caller_at(return_address, names).stock;
}

void lock_stock() noexcept { mutex.lock(); }
void unlock_stock() noexcept { mutex.unlock(); }

}  // namespace lmdbio::compat
