#include "lmdbio/tree/env.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/format/explain.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/tree/prefetch_file.h"

namespace lmdbio::tree {

namespace {

constexpr std::size_t kWhyBytes = 160;

FileIdentity identity_or_none(int fd, const Env::Options& options) noexcept {
  if (options.id.ino != 0) return options.id;
  const Result<FileIdentity> id = identity_of(fd);
  return id ? id.value() : FileIdentity();
}

/// Returns the path of an open file, or an empty string if it is not known.
std::string path_of(int fd, const std::string& known) {
  // A path through /proc or /dev may later lead to another file.
  if (fd < 0 || (!known.empty() && !known.starts_with("/proc/") && !known.starts_with("/dev/"))) return known;
  char self[48], path[PATH_MAX];
  (void)std::snprintf(self, sizeof self, "/proc/thread-self/fd/%d", fd);
  const ssize_t n = ::readlink(self, path, sizeof path);
  return n > 0 && n < static_cast<ssize_t>(sizeof path) ? std::string(path, static_cast<std::size_t>(n)) : "";
}

/// Reads the meta page at `offset` into `page`: all of it, or what the file of `file_bytes` has.  Returns an
/// empty span if this is less than a meta page of LMDB 0.9, or if the read fails.
Bytes read_meta(IoEngine& engine, std::uint64_t file_bytes, std::uint64_t offset,
                MutableBytes page) noexcept {
  const std::uint64_t there = file_bytes - std::min(file_bytes, offset);
  if (there < format::meta_bytes(format::Version::v09)) return {};
  const MutableBytes part = page.first(static_cast<std::size_t>(std::min<std::uint64_t>(there, page.size())));
  return read_fully(engine, offset, part).ok() ? Bytes(part) : Bytes();
}

}  // namespace

Status prove_metas(const File& file, std::span<char> why, std::optional<format::Version>& version) noexcept {
  why[0] = '\0';
  version.reset();
  PreadEngine engine(file);
  std::byte buffer[format::kMetaBytes];
  format::MetaRecord metas[2];
  std::uint64_t size = 0;
  const Result<std::uint64_t> length = file.size();
  if (!length) return {};
  for (const unsigned i : {0u, 1u}) {
    const Bytes page = read_meta(engine, length.value(), i * size, buffer);
    if (page.empty()) return {};
    if (i == 0) {
      for (const format::Version v : {format::Version::v09, format::Version::v10})
        if (format::is_meta_of(v, page)) version = v;
    }
    switch (format::judge_meta(page)) {
      case format::MetaKind::other:
      case format::MetaKind::encrypted:
        return {};
      case format::MetaKind::bad_page_size:
        (void)format::explain_meta(page, why);
        return Status::from_mdb(MDB_INVALID);
      case format::MetaKind::good:
        break;
    }
    metas[i] = format::parse_meta(page).value();
    if (i == 0) size = format::page_size(metas[0]);
  }
  if (const std::uint64_t other = format::page_size(metas[1]); other != size) {
    (void)std::snprintf(why.data(), why.size(), "page size is %" PRIu64 ", but %" PRIu64 " on page 0", other,
                        size);
    return Status::from_mdb(MDB_INVALID);
  }
  if (length.value() < 2 * size) {
    (void)std::snprintf(why.data(), why.size(), "the file ends inside meta page 1, at %" PRIu64 " bytes",
                        length.value());
    return Status::from_mdb(MDB_INVALID);
  }
  const unsigned newest = metas[0].txnid < metas[1].txnid ? 1 : 0;
  const format::MetaRecord& m = metas[newest];
  if (m.last_pg < 1 || m.last_pg > (std::uint64_t{1} << 63) / size) {  // stock calculates last_pg * size
    (void)std::snprintf(why.data(), why.size(), "last page is %" PRIu64, m.last_pg);
    return Status::from_mdb(MDB_CORRUPTED);
  }
  if ((m.txnid & 1) != newest) {  // stock with locks may use another meta than stock without locks
    (void)std::snprintf(why.data(), why.size(),
                        "transaction %" PRIu64 " is on meta page %u, but belongs on the other one", m.txnid,
                        newest);
    return Status::from_mdb(MDB_CORRUPTED);
  }
  return {};
}

Env::Env(int fd, const FileIdentity& id, const Options& options, bool unmapped)
    : file_({fd, id, path_of(fd, options.path), options.name, options.pages, options.no_readahead, unmapped}),
      pages_(options.pages),
      max_dbs_(options.max_dbs + kCoreDbs),
      behaviour_(options.behaviour),
      dbx_(zeroed_array<Dbx>(max_dbs_)),
      slot_flags_(zeroed_array<std::uint16_t>(max_dbs_)) {
  dbx_[kFreeDbi].key_order = {format::Order::word};
  dbx_[kFreeDbi].ordered = true;
}

void Env::adopt_window(std::shared_ptr<window::Window> window) noexcept {
  file_.set_window(std::move(window));
  window_number_ = ahead::next_window_number();
}

Env::~Env() {
  if (const std::unique_ptr<std::shared_ptr<PrefetchFile>> told(prefetch_file_.load());
      told != nullptr && *told != nullptr)
    (*told)->slabs().close();
  for (unsigned i = kCoreDbs; i < named_end_; ++i) std::free(dbx_[i].name);
}

namespace {

// Upper limit on the address range reserved for an unmapped file, in bytes.
constexpr std::uint64_t kMostReserved = std::uint64_t{8} << 40;

/// Makes a window for a map of `map_bytes`.  Pages up to `last_pg` are in use.
Result<std::shared_ptr<window::Window>> map_window(int fd, const FileIdentity& id, std::uint64_t map_bytes,
                                                   std::uint64_t last_pg, format::PageFormat pages,
                                                   bool no_readahead) {
  const std::uint64_t used =
      std::max(std::min(last_pg + 1, id.size / pages.size), format::kMetaPages) * pages.size;
  return window::Window::shared(fd, id, map_bytes, pages, no_readahead, used);
}

}  // namespace

Result<std::unique_ptr<Env>> Env::open(int fd, const Options& options) {
  const FileIdentity id = identity_or_none(fd, options);
  Result<std::shared_ptr<window::Window>> window =
      map_window(fd, id, options.map_bytes, options.last_pg, options.pages, options.no_readahead);
  if (!window) return window.error();
  std::unique_ptr<Env> env(new Env(fd, id, options));
  env->adopt_window(std::move(window).value());
  return env;
}

Result<std::unique_ptr<Env>> Env::open_unmapped(int fd, const Options& options) {
  std::unique_ptr<Env> env(new Env(fd, identity_or_none(fd, options), options, true));
  Result<std::shared_ptr<const OpenFile>> opened =
      OpenFile::get(env->file_.origin(), OpenFile::With::buffered_alone);
  if (!opened) return opened.error();
  env->opened_ = std::move(opened).value();
  if (const Status st = env->remap(options.map_bytes, options.last_pg); !st.ok()) return st;
  return env;
}

Status Env::read_metas(MetaCopies& out) const noexcept {
  if (!unmapped()) {
    const Metas now = metas();
    out.records_[0] = now.records[0];
    out.records_[1] = now.records[1];
    return {};
  }
  const std::size_t bytes = pages_.size + format::meta_bytes(pages_.version);
  if (out.bytes_ == nullptr) out.bytes_.reset(new (std::nothrow) std::byte[bytes]);
  if (out.bytes_ == nullptr) return Status::from_errno(ENOMEM);
  out.records_[0] = out.bytes_.get() + format::page_header(pages_.version);
  out.records_[1] = out.records_[0] + pages_.size;
  const Uncancelled wait;
  Status st = Status::from_errno(EBADF);
  const File& file = opened_->base();
  (void)file.with_fd([&](int) noexcept {
    PreadEngine engine(file);
    st = read_fully(engine, 0, {out.bytes_.get(), bytes});
  });
  return st;
}

Result<std::unique_ptr<Env>> Env::over(Bytes bytes, const Options& options) {
  if (bytes.size() < 2 * options.pages.size) return Status::from_mdb(MDB_INVALID);
  std::unique_ptr<Env> env(new Env(-1, FileIdentity(), options));
  env->adopt_window(std::make_shared<window::Window>(window::Window::over(bytes, options.pages)));
  return env;
}

std::shared_ptr<PrefetchFile> Env::prefetch_file(std::uint64_t used_pages) noexcept {
  if (const auto* const there = prefetch_file_.load(std::memory_order_acquire); there != nullptr)
    return *there;
  std::unique_ptr<std::shared_ptr<PrefetchFile>> made(new (std::nothrow) std::shared_ptr<PrefetchFile>);
  if (made == nullptr) return nullptr;
  *made = file_.reads_ahead() && !unmapped() ? PrefetchFile::open(file_.origin(), used_pages << page_shift())
                                             : nullptr;
  std::shared_ptr<PrefetchFile>* none = nullptr;
  if (!prefetch_file_.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel))
    return *none;  // another thread was faster
  return *made.release();
}

Status Env::new_snapshot(std::uint64_t txnid, std::uint64_t used_pages) noexcept {
  const std::uint64_t pages = file_.fd() >= 0 ? file_pages(txnid) : 0;
  return file_.new_snapshot(txnid, pages << page_shift(), used_pages << page_shift());
}

void Env::retire_window(bool idle) noexcept {
  file_.close_window_file();
  if (idle) old_.clear();
  if (window() == nullptr) return;
  if (!idle) old_.push_back(file_.window());
  file_.set_window(nullptr);
  window_number_ = ahead::next_window_number();
}

Status Env::remap(std::uint64_t map_bytes, std::uint64_t last_pg) {
  if (file_.fd() < 0) return Status::from_errno(EINVAL);
  if (unmapped()) {
    const std::uint64_t bytes = std::min(std::max(map_bytes, (last_pg + 1) * pages_.size), kMostReserved);
    Result<window::Window> made = window::Window::reserve(bytes, pages_);
    if (!made) return made.error();
    seen_.store(0, std::memory_order_relaxed);
    adopt_window(std::make_shared<window::Window>(std::move(made).value()));
    return file_.begin_unmapped(last_pg + 1);
  }
  const Result<FileIdentity> now = identity_of(file_.fd());
  if (!now) return now.error();
  if (now.value().dev != file_.identity().dev || now.value().ino != file_.identity().ino)
    return Status::from_errno(EBADF);  // the program has closed it
  Result<std::shared_ptr<window::Window>> window =
      map_window(file_.fd(), now.value(), map_bytes, last_pg, pages_, file_.no_readahead());
  if (!window) return window.error();
  seen_.store(0, std::memory_order_relaxed);
  adopt_window(std::move(window).value());
  return {};
}

std::uint64_t Env::learn_file_pages(std::uint64_t txnid) noexcept {
  const int saved = errno;
  std::uint64_t bytes = window()->length();  // for the caller's bytes
  if (file_.fd() >= 0) {
    // One fstat gives both the identity and the length.
    const Result<FileIdentity> now = identity_of(file_.fd());
    const bool same =
        now && now.value().dev == file_.identity().dev && now.value().ino == file_.identity().ino;
    bytes = same ? now.value().size : length_without_descriptor(txnid);
  }
  const std::uint64_t pages = std::min(bytes >> std::countr_zero(pages_.size), kPageMask);
  seen_.store((txnid & kTxnidMask) << kPageBits | pages, std::memory_order_relaxed);
  errno = saved;
  return pages;
}

// Returns the file's length in bytes after the program has closed the descriptor.  If the file is open for
// read-ahead, that descriptor gives the length.  Otherwise the length is the last known one, or the
// snapshot's if the kernel can read its last page.
std::uint64_t Env::length_without_descriptor(std::uint64_t txnid) noexcept {
  const Uncancelled wait;
  const AsyncSignalsBlocked allocates;
  const std::uint64_t known = seen_.load(std::memory_order_relaxed) & kPageMask;
  if (opened_ != nullptr)
    if (const Result<std::uint64_t> size = opened_->base().size(); size) return size.value();
  if (const auto file = file_.window_file(std::max(known, format::kMetaPages)); file != nullptr)
    if (const Result<std::uint64_t> size = file->database.buffered.size(); size) return size.value();
  const std::byte* const meta = metas().records[txnid & 1];
  if (meta == nullptr || window() == nullptr) return known << page_shift();
  const std::uint64_t last = load<format::MetaRecord>(meta).last_pg;
  if (last < known || last >= window()->length() >> page_shift()) return known << page_shift();
  std::byte any;
  const iovec to{&any, 1};
  const iovec from{const_cast<std::byte*>(window()->base()) + (last << page_shift()), 1};
  const bool there = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == 1;
  return (there ? last + 1 : known) << page_shift();
}

LogLevel Env::damage_level() noexcept { return reported_.exchange(true) ? LogLevel::debug : LogLevel::warn; }

void Env::report_damage(const window::WindowView& view, const char* what, const std::byte* at) noexcept {
  const LogLevel level = damage_level();
  if (!log_enabled(level)) return;
  const format::Pgno p{static_cast<std::uint64_t>(at - view.base()) >> view.shift()};
  const std::byte* const page = view.at(p);
  char why[kWhyBytes];
  const bool told = page != nullptr && format::explain_page(pages_.version, {page, pages_.size}, p, why);
  log_line(level, "%s: page %" PRIu64 ": %s", name(), format::raw(p), told ? why : what);
}

void Env::report_damage(const window::WindowView& view, format::Pgno p) noexcept {
  const LogLevel level = damage_level();
  if (!log_enabled(level)) return;
  const std::byte* const page = view.at(p);
  char why[kWhyBytes];
  if (page == nullptr)
    log_line(level, "%s: page %" PRIu64 ": beyond the end of the file, which has %" PRIu64 " pages", name(),
             format::raw(p), view.pages());
  else
    log_line(level, "%s: page %" PRIu64 ": %s", name(), format::raw(p),
             format::explain_page(pages_.version, {page, pages_.size}, p, why)
                 ? why
                 : "was damaged when it was read, and has changed since");
}

void Env::report_bad_run(const window::WindowView& view, format::Pgno p, std::uint64_t bytes) noexcept {
  log_line(damage_level(),
           "%s: page %" PRIu64 ": a value of %" PRIu64
           " bytes starts here and reaches beyond the end of the file, which has %" PRIu64 " pages",
           name(), format::raw(p), bytes, view.pages());
}

bool Env::name_dbi(unsigned dbi, const char* name) noexcept {
  char* const copy = ::strdup(name);
  if (copy == nullptr) return false;
  std::free(dbx_[dbi].name);
  dbx_[dbi].name = copy;
  named_end_ = std::max(named_end_, dbi + 1);
  return true;
}

void Env::close_dbi(unsigned dbi) noexcept {
  if (dbi < kCoreDbs || dbi >= max_dbs_ || !dbx_[dbi].named()) return;
  std::free(dbx_[dbi].name);
  dbx_[dbi].name = nullptr;
  slot_flags_[dbi] = 0;
}

}  // namespace lmdbio::tree
