#include "lmdbio/io/engine_select.h"

#include <string.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>

#include "lmdbio/base/log.h"
#include "lmdbio/io/engine_hosted.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/io/engine_single.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/engine_uring.h"
#include "lmdbio/io/page_filler.h"

namespace lmdbio {
namespace {

using Made = Result<std::unique_ptr<IoEngine>>;

struct Entry {
  EngineKind kind;
  const char* name;
  Made (*make)(const File&, unsigned depth, EventCount* results) noexcept;
};

constexpr Entry kEngines[] = {
    {EngineKind::uring, "io_uring",
     [](const File& f, unsigned d, EventCount*) noexcept { return uring_engine(f, d); }},
    {EngineKind::threads, "threads",
     [](const File& f, unsigned d, EventCount* results) noexcept {
       return threads_engine(f, d, 0, nullptr, results);
     }},
    {EngineKind::pread, "pread",
     [](const File& f, unsigned, EventCount*) noexcept -> Made {
       std::unique_ptr<IoEngine> e(new (std::nothrow) PreadEngine(f));
       if (e == nullptr) return Status::from_errno(ENOMEM);
       return e;
     }},
};

}  // namespace

EngineKind engine_kind(IoEngineChoice choice) noexcept {
  switch (choice) {
    case IoEngineChoice::uring:
      return EngineKind::uring;
    case IoEngineChoice::threads:
      return EngineKind::threads;
    case IoEngineChoice::pread:
      return EngineKind::pread;
    case IoEngineChoice::automatic:
      break;
  }
  return EngineKind::automatic;
}

Result<std::unique_ptr<IoEngine>> select_engine(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept {
  if (depth == 0) return Status::from_errno(EINVAL);
  if (wanted == EngineKind::single || wanted == EngineKind::single_unread) {
    if (name != nullptr) *name = "single";
    return SingleEngine::make(
        file, wanted == EngineKind::single ? SingleEngine::Bytes::copied : SingleEngine::Bytes::unwanted);
  }
  if (file.kept() && !PrivateTable::inside()) return hosted_engine(file, depth, wanted, name);
  return select_engine_here(file, depth, wanted, name, nullptr);
}

Result<std::unique_ptr<IoEngine>> select_engine_here(const File& file, unsigned depth, EngineKind wanted,
                                                     const char** name, EventCount* results) noexcept {
  static std::atomic<bool> told{false};
  if (file.fd() < 0) return Status::from_errno(EBADF);
  if (wanted == EngineKind::populate || wanted == EngineKind::populate_copied) {
    if (name != nullptr) *name = "populate";
    return populate_engine(
        file, depth, wanted == EngineKind::populate ? PageFiller::Bytes::unwanted : PageFiller::Bytes::copied,
        results);
  }
  char why[160] = "";
  std::size_t used = 0;
  Status last;
  for (const Entry& e : kEngines) {
    if (wanted != EngineKind::automatic && e.kind < wanted) continue;
    Made made = e.make(file, depth, results);
    if (made) {
      if (name != nullptr) *name = e.name;
      if (log_enabled(LogLevel::info) && !told.exchange(true, std::memory_order_relaxed))
        log_line(LogLevel::info, "read engine: %s%s", e.name, why);
      return made;
    }
    last = made.error();
    const char* const text = ::strerrordesc_np(last.raw());
    const int n = std::snprintf(why + used, sizeof why - used, "; %s is not available: %s", e.name,
                                text != nullptr ? text : "unknown error");
    if (n > 0) used = std::min(used + static_cast<std::size_t>(n), sizeof why - 1);
  }
  return last;
}

}  // namespace lmdbio
