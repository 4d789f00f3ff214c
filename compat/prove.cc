#include "compat/prove.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include "compat/guard.h"
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
  const std::size_t size = format::page_size(load<format::MetaRecord>(first + format::kPageHeader));
  const Result<std::uint64_t> length = file.size();
  if (length && length.value() < size + format::kMetaBytes) {
    (void)std::snprintf(why, sizeof why, "the file ends before this page, at %" PRIu64 " bytes",
                        length.value());
    return true;
  }
  return read_fully(engine, size, second).ok() && format::explain_meta(second, why);
}

/// A transaction of the real library, so that a writer leaves the pages alone that are walked.  `real` null:
/// none.
class Held {
 public:
  Held(const Stock& stock, MDB_env* real) noexcept : stock_(stock) {
    if (real != nullptr) rc_ = stock.txn_begin(real, nullptr, MDB_RDONLY, &txn_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (txn_ != nullptr) stock_.txn_abort(txn_);
  }
  int rc() const noexcept { return rc_; }
  std::uint64_t id() const noexcept { return stock_.txn_id(txn_); }
  Status renew(std::uint64_t& txnid) const noexcept {
    stock_.txn_reset(txn_);
    if (const int rc = stock_.txn_renew(txn_); rc != 0) return as_status(rc);
    txnid = id();
    return {};
  }

 private:
  const Stock& stock_;
  MDB_txn* txn_ = nullptr;
  int rc_ = 0;
};

}  // namespace

std::string data_file(const char* path, unsigned flags) {
  return (flags & MDB_NOSUBDIR) != 0 ? path : std::string(path) + "/data.mdb";
}

void KeptFd::keep(UniqueFd fd) noexcept {
  const Result<FileIdentity> id = identity_of(fd.get());
  if (!id) return;
  reset();
  fd_ = std::move(fd);
  id_ = id.value();
}

void KeptFd::check() noexcept {
  if (fd_ && !is_inode(fd_.get(), id_)) (void)fd_.release();
}

void KeptFd::reset() noexcept {
  check();
  fd_.reset();
}

Status prove_openable(const std::string& file, KeptFd& keep) {
  keep.check();  // a forked child's is its parent's
  struct stat at;
  {
    const AsyncSignalsAllowed program;  // a server may not answer
    if (::stat(file.c_str(), &at) != 0) return {};
    if (!keep && S_ISREG(at.st_mode))
      keep.keep(UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)));
  }
  if (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode) || S_ISCHR(at.st_mode)) {
    log_line(LogLevel::warn, "%s: a %s, not a regular file", file.c_str(),
             S_ISFIFO(at.st_mode)   ? "pipe"
             : S_ISSOCK(at.st_mode) ? "socket"
                                    : "character device");
    return Status::from_mdb(MDB_INVALID);
  }
  if (!keep) return {};
  const Result<File> opened = File::from_fd(keep.get(), File::Take::borrow);
  if (!opened) return {};
  char why[kWhyBytes];
  const Status st = db::prove_metas(opened.value(), why);
  if (!st.ok()) log_line(LogLevel::warn, "%s: meta pages: %s", file.c_str(), why);
  return st;
}

void explain_refusal(const std::string& file, const KeptFd& fd) noexcept {
  struct stat at;
  if (!fd) {
    if (::stat(file.c_str(), &at) == 0 && S_ISDIR(at.st_mode))
      log_line(LogLevel::warn, "%s: a directory, not a regular file", file.c_str());
    return;
  }
  const Result<File> opened = File::from_fd(fd.get(), File::Take::borrow);
  if (!opened) return;
  if (const Result<std::uint64_t> size = opened.value().size(); size && size.value() == 0) {
    log_line(LogLevel::warn, "%s: empty: nothing has been written to this database yet", file.c_str());
    return;
  }
  char why[kWhyBytes];
  int which = 0;
  if (explain_metas(opened.value(), why, which))
    log_line(LogLevel::warn, "%s: meta page %d: %s", file.c_str(), which, why);
}

Status prove_copyable(EnvHandle& env, MDB_env* real, const ReadTxn* of) {
  db::Env& engine = *env.engine;
  if (engine.window() == nullptr) return Status::from_errno(ENOMEM);
  for (int round = 0; round < kCopyTries; ++round) {
    const Held held(*env.stock, of == nullptr ? real : nullptr);
    db::Snapshot now;
    if (of != nullptr) {
      now = of->txn.snapshot();
    } else {
      // What keeps us from a transaction will keep the copy.
      if (held.rc() != 0) return as_status(held.rc());
      now.txnid = held.id();
      Status st = db::read_snapshot(engine.metas().pages, held, now);
      if (st.raw() == MDB_BAD_TXN) st = Status::from_mdb(MDB_CORRUPTED);
      if (!st.ok()) return st;
    }
    if (engine.outgrown(now.last_pg)) return Status::from_mdb(MDB_MAP_RESIZED);
    db::CopyHazard hazard;
    const Status st =
        db::check_compact_copy(engine.window()->view(engine.file_pages(now.txnid)), now, hazard);
    if (st.ok()) return {};
    if (db::overtaken(engine.metas().pages, now.txnid)) continue;  // without locks: the writer may have done it
    log_line(LogLevel::warn, "%s: page %" PRIu64 ": %s; the database is not copied", env.stats.path.c_str(),
             hazard.page, hazard.reason);
    return st;
  }
  return Status::from_errno(EBUSY);
}

}  // namespace lmdbio::compat
