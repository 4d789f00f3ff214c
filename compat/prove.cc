#include "compat/prove.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/stat.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>

#include "compat/guard.h"
#include "compat/handle.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/check/check.h"
#include "lmdbio/format/explain.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/tree/env.h"

namespace lmdbio::compat {

namespace {

constexpr std::size_t kWhyBytes = 160;
constexpr int kCopyTries = 3;

/// Describes what is wrong with a meta page.  Returns false if both are good, or if one cannot be read.
bool explain_metas(const File& file, char (&why)[kWhyBytes], int& which) noexcept {
  PreadEngine engine(file);
  std::byte first[format::kMetaBytes], second[format::kMetaBytes];
  which = 0;
  if (!read_fully(engine, 0, first).ok()) return false;
  if (format::explain_meta(first, why)) return true;
  which = 1;
  const format::MetaRecord meta = format::parse_meta(first).value();
  const std::size_t size = format::page_size(meta);
  const Result<std::uint64_t> length = file.size();
  if (length && length.value() < size + format::meta_bytes(format::version(meta))) {
    (void)std::snprintf(why, sizeof why, "the file ends before this page, at %" PRIu64 " bytes",
                        length.value());
    return true;
  }
  return read_fully(engine, size, second).ok() && format::explain_meta(second, why);
}

/// Holds a transaction of the real library, so that writers do not reuse the pages being checked.  Holds
/// nothing if `real` is null.
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

std::int64_t ns(const timespec& t) noexcept { return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

/// Returns whether each later change will change the file's timestamps.  ext3 counts seconds, FAT two
/// seconds, others the kernel's ticks.
bool is_settled(const struct stat& at) noexcept {
  timespec now;
  if (::clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0) return false;
  const bool seconds = at.st_mtim.tv_nsec == 0 && at.st_ctim.tv_nsec == 0;
  const std::int64_t least = seconds ? 3'000'000'000 : 50'000'000;
  return ns(now) - std::max(ns(at.st_mtim), ns(at.st_ctim)) > least;
}

/// Files on local file systems whose metas were checked and have a given version, with their state at that
/// time.
/// One word per file, without a lock, because a forked child might find a lock held.  A write through a
/// mapping changes the timestamps late, so an entry may be old.  That does no harm, because the writer does
/// not damage the metas.
class Proven {
 public:
  bool has(const struct stat& at, format::Version version) const noexcept {
    const std::uint64_t hash = hash_of(at, version);
    return words_[hash % kWords].load(std::memory_order_relaxed) == hash;
  }
  void add(const struct stat& at, format::Version version) noexcept {
    const std::uint64_t hash = hash_of(at, version);
    words_[hash % kWords].store(hash, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kWords = 1021;
  static std::uint64_t hash_of(const struct stat& at, format::Version version) noexcept {
    std::uint64_t h = 1 + format::raw(version);
    for (const std::uint64_t n :
         {std::uint64_t{at.st_dev}, std::uint64_t{at.st_ino}, static_cast<std::uint64_t>(at.st_size),
          static_cast<std::uint64_t>(ns(at.st_mtim)), static_cast<std::uint64_t>(ns(at.st_ctim))})
      h = mix(h + n);
    return h;
  }
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};
constinit Proven proven;

/// Returns whether a process, possibly this one, has a POSIX lock on the file.  Also returns true if this is
/// not known.
bool may_be_locked(int fd) noexcept {
  struct flock any {};
  any.l_type = F_WRLCK;
  return ::fcntl(fd, F_OFD_GETLK, &any) != 0 || any.l_type != F_UNLCK;
}

}  // namespace

std::string data_file(const char* path, unsigned flags) {
  return (flags & MDB_NOSUBDIR) != 0 ? path : std::string(path) + "/data.mdb";
}

bool data_file(const char* path, unsigned flags, std::span<char> out) noexcept {
  const int n =
      std::snprintf(out.data(), out.size(), (flags & MDB_NOSUBDIR) != 0 ? "%s" : "%s/data.mdb", path);
  return n >= 0 && static_cast<std::size_t>(n) < out.size();
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

void KeptFd::release() noexcept {
  check();
  if (fd_ && !may_be_locked(fd_.get())) reset();
}

void KeptFd::open(const char* file) noexcept {
  check();  // in a forked child, the descriptor may be the parent's
  struct stat at;
  if (fd_ || ::stat(file, &at) != 0 || !S_ISREG(at.st_mode)) return;
  keep(UniqueFd(::open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY)));
}

Status prove_openable(const char* file, const Stock& stock, KeptFd& kept, Proof& proof) noexcept {
  proof = {};
  struct stat at;
  {
    const AsyncSignalsAllowed program;  // a server may not answer
    if (::stat(file, &at) != 0) return {};
    if (S_ISREG(at.st_mode)) {
      proof.local = proven.has(at, stock.format());
      if (proof.local) return {};
      kept.open(file);
    }
  }
  if (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode) || S_ISCHR(at.st_mode)) {
    log_line(LogLevel::warn, "%s: a %s, not a regular file", file,
             S_ISFIFO(at.st_mode)   ? "pipe"
             : S_ISSOCK(at.st_mode) ? "socket"
                                    : "character device");
    return Status::from_mdb(MDB_INVALID);
  }
  if (!kept || ::fstat(kept.get(), &at) != 0) return {};
  const bool settled = is_settled(at);  // before the metas are read
  const Result<File> opened = File::from_fd(kept.get(), File::Take::borrow);
  if (!opened) return {};
  proof.local = is_local_file_system(kept.get());
  char why[kWhyBytes];
  std::optional<format::Version> version;
  const Status st = tree::prove_metas(opened.value(), why, version);
  if (version && *version != stock.format()) {
    proof.other_release = st.ok();
    return {};  // if not, explain_refusal() has the reason
  }
  if (!st.ok()) {
    log_line(LogLevel::warn, "%s: meta pages: %s", file, why);
  } else if (proof.local) {  // other file systems would ask a server
    if (settled) proven.add(at, stock.format());
    kept.release();
  }
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
  else if (!tree::prove_metas(opened.value(), why).ok())
    log_line(LogLevel::warn, "%s: meta pages: %s", file.c_str(), why);
}

Status prove_copyable(EnvHandle& env, MDB_env* real, const ReadTxn* of) {
  tree::Env& engine = *env.engine;
  if (engine.window() == nullptr) return Status::from_errno(ENOMEM);
  for (int round = 0; round < kCopyTries; ++round) {
    const Held held(*env.stock, of == nullptr ? real : nullptr);
    tree::Snapshot now;
    if (of != nullptr) {
      now = of->txn.snapshot();
    } else {
      // Stock's copy would fail with the same error.
      if (held.rc() != 0) return as_status(held.rc());
      now.txnid = held.id();
      Status st = tree::read_snapshot(engine.metas().records, held, now);
      if (st.raw() == MDB_BAD_TXN) st = Status::from_mdb(MDB_CORRUPTED);
      if (!st.ok()) return st;
    }
    if (engine.outgrown(now.last_pg)) return Status::from_mdb(MDB_MAP_RESIZED);
    check::CopyHazard hazard;
    const Status st =
        check::check_compact_copy(engine.window()->view(engine.file_pages(now.txnid)), now, hazard);
    if (st.ok()) return {};
    if (tree::overtaken(engine.metas().records, now.txnid))
      continue;  // without locks, the writer may have changed the page meanwhile
    log_line(LogLevel::warn, "%s: page %" PRIu64 ": %s; the database is not copied", env.stats.path.c_str(),
             hazard.page, hazard.reason);
    return st;
  }
  return Status::from_errno(EBUSY);
}

}  // namespace lmdbio::compat
