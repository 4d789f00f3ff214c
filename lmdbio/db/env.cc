#include "lmdbio/db/env.h"

#include <sys/stat.h>

#include <bit>
#include <new>

#include "lmdbio/io/engine_pread.h"

namespace lmdbio::db {

Result<format::MetaRecord> prove_metas(const File& file) noexcept {
  const Result<std::uint64_t> length = file.size();
  if (!length) return length.error();
  const std::uint64_t size = length.value();
  if (size == 0) return Status::from_errno(ENOENT);
  PreadEngine engine(file);
  std::byte page[format::kMetaBytes];
  format::MetaRecord newest{};
  for (unsigned i = 0; i < 2; ++i) {
    const std::uint64_t at = i == 0 ? 0 : format::page_size(newest);
    if (at + sizeof page > size) return Status::from_mdb(MDB_INVALID);
    if (const Status st = read_fully(engine, at, page); !st.ok()) return st;
    const Result<format::MetaRecord> meta = format::parse_meta(page);
    if (!meta) return meta.error();
    if (i == 0) {
      newest = meta.value();
    } else {
      if (format::page_size(meta.value()) != format::page_size(newest)) return Status::from_mdb(MDB_INVALID);
      if (meta.value().txnid > newest.txnid) newest = meta.value();
    }
  }
  return newest;
}

Env::Env(int fd, const Options& options, cache::Window window)
    : fd_(fd),
      page_size_(options.page_size),
      max_dbs_(options.max_dbs + kCoreDbs),
      no_readahead_(options.no_readahead),
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
