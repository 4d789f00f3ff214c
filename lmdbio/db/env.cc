#include "lmdbio/db/env.h"

#include <sys/stat.h>

#include <bit>
#include <new>

#include "lmdbio/io/engine_pread.h"

namespace lmdbio::db {

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
      dbx_(new Dbx[max_dbs_]),
      slot_flags_(new std::uint16_t[max_dbs_]{}) {
  dbx_[kFreeDbi].key_order = {Order::word};
  dbx_[kFreeDbi].ordered = true;
  adopt_window(std::make_unique<cache::Window>(std::move(window)));
}

void Env::adopt_window(std::unique_ptr<cache::Window> window) noexcept {
  const cache::WindowView metas = window->view(2);
  metas_[0] = metas.at(format::Pgno{0});
  metas_[1] = metas.at(format::Pgno{1});
  window_ = std::move(window);
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

Status Env::remap(std::uint64_t map_bytes) {
  if (fd_ < 0) return Status::from_errno(EINVAL);
  Result<cache::Window> window = cache::Window::map(fd_, map_bytes, page_size_, no_readahead_);
  if (!window) return window.error();
  auto next = std::make_unique<cache::Window>(std::move(window).value());
  old_.push_back(std::move(window_));
  adopt_window(std::move(next));
  return {};
}

std::uint64_t Env::learn_file_pages(std::uint64_t txnid) noexcept {
  std::uint64_t bytes = window_->length();
  if (fd_ >= 0) {
    struct stat sb;
    bytes = ::fstat(fd_, &sb) == 0 ? static_cast<std::uint64_t>(sb.st_size) : 0;
  }
  const std::uint64_t pages = bytes >> std::countr_zero(page_size_);
  // A racing reader that finds our txnid may see a newer length than ours: never an older one.
  seen_pages_.store(pages, std::memory_order_relaxed);
  seen_txnid_.store(txnid, std::memory_order_release);
  return pages;
}

void Env::close_dbi(unsigned dbi) noexcept {
  if (dbi < kCoreDbs || dbi >= max_dbs_ || !dbx_[dbi].named) return;
  dbx_[dbi].named = false;
  dbx_[dbi].name.clear();
  slot_flags_[dbi] = 0;
}

}  // namespace lmdbio::db
