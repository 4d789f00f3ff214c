#include "compat/prove.h"

#include <lmdb.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "compat/handle.h"
#include "lmdbio/base/log.h"
#include "lmdbio/db/check.h"
#include "lmdbio/db/env.h"
#include "lmdbio/format/explain.h"
#include "lmdbio/io/engine_pread.h"

namespace lmdbio::compat {

namespace {

constexpr std::size_t kWhyBytes = 160;
constexpr int kCopyTries = 3;

/// False: nothing can be said against either meta page, or they cannot be read.
bool explain_metas(const File& file, char (&why)[kWhyBytes], int& which) noexcept {
  PreadEngine engine(file);
  std::byte first[format::kMetaBytes], second[format::kMetaBytes];
  which = 0;
  if (!read_fully(engine, 0, first).ok()) return false;
  if (format::explain_meta(first, why)) return true;
  which = 1;
  const auto m = load<format::MetaRecord>(first + format::kPageHeader);
  const std::size_t size = format::page_size(m);
  const Result<std::uint64_t> length = file.size();
  if (length && length.value() < size + format::kMetaBytes) {
    (void)std::snprintf(why, sizeof why, "the file ends before it, at %llu bytes",
                        static_cast<unsigned long long>(length.value()));
    return true;
  }
  if (!read_fully(engine, size, second).ok()) return false;
  if (format::explain_meta(second, why)) return true;
  const auto n = load<format::MetaRecord>(second + format::kPageHeader);
  if (format::page_size(n) == size) return false;
  (void)std::snprintf(why, sizeof why, "page size is %zu, but %zu on page 0", format::page_size(n), size);
  return true;
}

}  // namespace

std::string data_file(const char* path, unsigned flags) {
  return (flags & MDB_NOSUBDIR) != 0 ? path : std::string(path) + "/data.mdb";
}

Status prove_openable(const std::string& file) {
  struct stat at;
  if (::stat(file.c_str(), &at) != 0) return {};
  if (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode) || S_ISCHR(at.st_mode)) {
    log_line(LogLevel::warn, "%s: not a file but a %s", file.c_str(),
             S_ISFIFO(at.st_mode) ? "pipe" : S_ISSOCK(at.st_mode) ? "socket" : "character device");
    return Status::from_mdb(MDB_INVALID);
  }
  const Result<File> opened = File::open(file.c_str(), File::Mode::buffered);
  if (!opened || db::page_size_is_sane(opened.value())) return {};
  explain_refusal(file);
  return Status::from_mdb(MDB_INVALID);
}

void explain_refusal(const std::string& file) noexcept {
  if (!log_enabled(LogLevel::warn)) return;
  const Result<File> opened = File::open(file.c_str(), File::Mode::buffered);
  if (!opened) {
    if (opened.error().raw() == EISDIR) log_line(LogLevel::warn, "%s: a directory, not a file", file.c_str());
    return;
  }
  if (const Result<std::uint64_t> size = opened.value().size(); size && size.value() == 0) {
    log_line(LogLevel::warn, "%s: empty: a database that nobody has written yet", file.c_str());
    return;
  }
  char why[kWhyBytes];
  int which = 0;
  if (explain_metas(opened.value(), why, which))
    log_line(LogLevel::warn, "%s: meta page %d: %s", file.c_str(), which, why);
}

Status prove_copyable(EnvHandle& env) {
  db::Env& engine = *env.engine;
  const db::MetaSource source(engine.metas());
  for (int round = 0; round < kCopyTries; ++round) {
    db::Snapshot now;
    if (engine.window() == nullptr) return Status::from_errno(ENOMEM);
    if (const Status st = source.renew(now.txnid); !st.ok()) return st;
    Status st = db::read_snapshot(engine.metas(), source, now);
    if (st.raw() == MDB_BAD_TXN) st = Status::from_mdb(MDB_CORRUPTED);
    if (!st.ok()) return st;
    db::CopyHazard hazard;
    st = db::check_compact_copy(engine.window()->view(engine.file_pages(now.txnid)), now, hazard);
    if (st.ok()) return {};
    std::uint64_t newest = 0;
    (void)source.renew(newest);
    if (newest > now.txnid + 1) continue;  // no reader slot held the pages: a writer may have changed them
    log_line(LogLevel::warn, "%s: page %llu: %s: not copied", env.stats.path.c_str(),
             static_cast<unsigned long long>(hazard.page), hazard.reason);
    return st;
  }
  return {};  // a file that is written to all the time: as stock
}

}  // namespace lmdbio::compat
