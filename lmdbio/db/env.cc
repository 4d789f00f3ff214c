#include "lmdbio/db/env.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lmdbio/format/explain.h"
#include "lmdbio/io/engine_pread.h"

namespace lmdbio::db {

namespace {
constexpr std::size_t kWhyBytes = 160;
}

bool page_size_is_sane(const File& file) noexcept {
  PreadEngine engine(file);
  std::byte page[format::kMetaBytes];
  std::uint64_t second = 0;
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{1}}) {
    if (!read_fully(engine, at == 0 ? 0 : second, page).ok()) return true;
    switch (format::judge_meta(page)) {
      case format::MetaKind::other:
        return true;
      case format::MetaKind::bad_page_size:
        return false;
      case format::MetaKind::good:
        break;
    }
    const std::uint64_t size = load<std::uint32_t>(page + format::kPageHeader + offsetof(format::MetaRecord, dbs));
    if (at == 0)
      second = size;
    else if (size != second)
      return false;
  }
  return true;
}

Env::Env(int fd, const Options& options, cache::Window window)
    : fd_(fd),
      page_size_(options.page_size),
      max_dbs_(options.max_dbs + kCoreDbs),
      no_readahead_(options.no_readahead),
      behaviour_(options.behaviour),
      name_(options.name),
      dbx_(zeroed_array<Dbx>(max_dbs_)),
      slot_flags_(zeroed_array<std::uint16_t>(max_dbs_)) {
  dbx_[kFreeDbi].key_order = {Order::word};
  dbx_[kFreeDbi].ordered = true;
  adopt_window(std::make_unique<cache::Window>(std::move(window)));
}

void Env::adopt_window(std::unique_ptr<cache::Window> window) noexcept {
  const cache::WindowView metas = window->view(2);
  metas_[0] = metas.at(format::Pgno{0});
  metas_[1] = metas.at(format::Pgno{1});
  window_ = std::move(window);
  ++window_number_;
}

Env::~Env() {
  for (unsigned i = kCoreDbs; i < named_end_; ++i) std::free(dbx_[i].name);
}

Result<std::unique_ptr<Env>> Env::open(int fd, const Options& options) {
  Result<cache::Window> window =
      cache::Window::map(fd, options.map_bytes, options.page_size, options.no_readahead);
  if (!window) return window.error();
  return std::unique_ptr<Env>(new Env(fd, options, std::move(window).value()));
}

Result<std::unique_ptr<Env>> Env::over(Bytes bytes, const Options& options) {
  if (bytes.size() < 2 * options.page_size) return Status::from_mdb(MDB_INVALID);
  return std::unique_ptr<Env>(new Env(-1, options, cache::Window::over(bytes, options.page_size)));
}

void Env::retire_window(bool idle) noexcept {
  if (idle) old_.clear();
  if (window_ == nullptr) return;
  last_length_ = window_->length();
  if (idle)
    window_.reset();
  else
    old_.push_back(std::move(window_));
  ++window_number_;
}

Status Env::remap(std::uint64_t map_bytes) {
  if (fd_ < 0) return Status::from_errno(EINVAL);
  Result<cache::Window> window = cache::Window::map(fd_, map_bytes, page_size_, no_readahead_);
  if (!window && last_length_ < map_bytes) window = cache::Window::map(fd_, last_length_, page_size_, no_readahead_);
  if (!window) return window.error();
  seen_.store(0, std::memory_order_relaxed);
  adopt_window(std::make_unique<cache::Window>(std::move(window).value()));
  return {};
}

std::uint64_t Env::learn_file_pages(std::uint64_t txnid) noexcept {
  std::uint64_t bytes = window_->length();  // of the caller's bytes
  if (fd_ >= 0) {
    struct stat sb;
    bytes = ::fstat(fd_, &sb) == 0 ? static_cast<std::uint64_t>(sb.st_size) : 0;
  }
  const std::uint64_t pages = std::min(bytes >> std::countr_zero(page_size_), kPageMask);
  seen_.store((txnid & kTxnidMask) << kPageBits | pages, std::memory_order_relaxed);
  return pages;
}

LogLevel Env::damage_level() noexcept { return reported_.exchange(true) ? LogLevel::debug : LogLevel::warn; }

void Env::report_damage(const cache::WindowView& view, const char* what, const std::byte* at) noexcept {
  const LogLevel level = damage_level();
  if (!log_enabled(level)) return;
  const format::Pgno p{static_cast<std::uint64_t>(at - view.base()) >> view.shift()};
  const std::byte* const page = view.at(p);
  char why[kWhyBytes];
  const bool told = page != nullptr && format::explain_page({page, page_size_}, p, why);
  log_line(level, "%s: page %" PRIu64 ": %s", name(), format::raw(p), told ? why : what);
}

void Env::report_damage(const cache::WindowView& view, format::Pgno p) noexcept {
  const LogLevel level = damage_level();
  if (!log_enabled(level)) return;
  const std::byte* const page = view.at(p);
  char why[kWhyBytes];
  if (page == nullptr)
    log_line(level, "%s: page %" PRIu64 ": beyond the end, the file has %" PRIu64 " pages", name(), format::raw(p),
             view.pages());
  else
    log_line(level, "%s: page %" PRIu64 ": %s", name(), format::raw(p),
             format::explain_page({page, page_size_}, p, why) ? why : "damaged, and changed meanwhile");
}

void Env::report_bad_run(const cache::WindowView& view, format::Pgno p, std::uint64_t bytes) noexcept {
  log_line(damage_level(),
           "%s: page %" PRIu64 ": a value of %" PRIu64 " bytes there reaches beyond the end, the file has %" PRIu64
           " pages",
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

}  // namespace lmdbio::db
