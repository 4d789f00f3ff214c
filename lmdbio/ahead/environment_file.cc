#include "lmdbio/ahead/environment_file.h"

#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/io/time_byte.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

namespace {

ReadDecision how_lookups_read(const EnvironmentFile::Facts& f) noexcept {
  if (f.fd < 0) return {};
  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes = f.id.size;
  facts.can_map = !f.unmapped;
  return choose_read_path(Access::lookup, facts);
}

}  // namespace

EnvironmentFile::EnvironmentFile(Facts facts) noexcept
    : facts_(std::move(facts)), lookups_(how_lookups_read(facts_)) {}

EnvironmentFile::~EnvironmentFile() {
  close_window_file();
  delete residency_.load();
}

Status EnvironmentFile::begin_unmapped(std::uint64_t used_pages) {
  std::shared_ptr<window::WindowFile> first = window_file(used_pages);
  if (first == nullptr) return Status::from_errno(ENOMEM);
  unmapped_file_ = std::make_unique<UnmappedFile>(origin(), facts_.pages, name(), window_, std::move(first));
  return {};
}

void EnvironmentFile::close_window_file() noexcept {
  unmapped_file_.reset();
  const std::unique_ptr<std::shared_ptr<window::WindowFile>> file(window_file_.exchange(nullptr));
  if (file != nullptr) window::Prefetcher::existing()->close(*file);
}

std::shared_ptr<window::WindowFile> EnvironmentFile::existing_window_file() const noexcept {
  const std::shared_ptr<window::WindowFile>* const there = window_file_.load(std::memory_order_acquire);
  return there != nullptr ? *there : nullptr;
}

std::shared_ptr<window::WindowFile> EnvironmentFile::window_file(std::uint64_t used_pages) noexcept {
  if (auto there = existing_window_file(); there != nullptr) return there;
  window::Prefetcher* const prefetcher = window::Prefetcher::get();
  if (prefetcher == nullptr || window_ == nullptr) return nullptr;
  Result<std::shared_ptr<window::WindowFile>> file = prefetcher->open(
      window_, origin(), name(), used_pages * facts_.pages.size, newest_.load(std::memory_order_relaxed));
  if (!file) return nullptr;
  auto* const mine = new (std::nothrow) std::shared_ptr<window::WindowFile>(file.value());
  std::shared_ptr<window::WindowFile>* none = nullptr;
  if (mine == nullptr || !window_file_.compare_exchange_strong(none, mine, std::memory_order_acq_rel)) {
    prefetcher->close(file.value());  // another thread was faster, or memory is short
    delete mine;
  }
  return existing_window_file();
}

std::shared_ptr<window::WindowFile> EnvironmentFile::window_file(const window::WindowView& view) noexcept {
  return unmapped_file_ != nullptr ? unmapped_file_->file_at(view.base()) : window_file(view.pages());
}

Status EnvironmentFile::bring(gather::NeededPages& needs, window::WindowFile& file, std::uint64_t offset,
                              std::uint64_t bytes) noexcept {
  for (;;) {
    const window::Backing& from = file.backing();
    const bool is_image = file.is_image(from);
    const Status st = needs.bring(from.file, file.name.c_str(), is_image ? -1 : facts_.fd, offset, bytes);
    file.count(from, needs.take_counts());
    if (st.ok() || st.raw() == EBADF || !is_image || !window::Prefetcher::existing()->leave_image(file))
      return st;
  }
}

Status EnvironmentFile::new_snapshot(std::uint64_t txnid, std::uint64_t file_bytes,
                                     std::uint64_t used_bytes) noexcept {
  std::uint64_t newest = newest_.load(std::memory_order_relaxed);
  while (newest < txnid && !newest_.compare_exchange_weak(newest, txnid)) {
  }
  // Another environment may have published chunks in the same window, so the Prefetcher has to know, even if
  // this environment has opened no WindowFile.
  window::Prefetcher* const prefetcher = facts_.fd >= 0 ? window::Prefetcher::existing() : nullptr;
  return prefetcher != nullptr ? prefetcher->advance(*window_, txnid, file_bytes, used_bytes) : Status();
}

// Returns nullptr if memory is short.
const Residency* EnvironmentFile::residency() noexcept {
  const Residency* there = residency_.load(std::memory_order_acquire);
  if (there != nullptr) return there;
  const bool ours = !facts_.unmapped && is_inode(facts_.fd, facts_.id);
  auto* const mine = new (std::nothrow) Residency(ours ? facts_.fd : -1);
  if (mine == nullptr || residency_.compare_exchange_strong(there, mine, std::memory_order_acq_rel))
    return mine;
  delete mine;  // another thread was faster
  return there;
}

std::optional<double> EnvironmentFile::cached_share(std::uint64_t offset, std::uint64_t bytes,
                                                    const window::WindowView& view) noexcept {
  const std::byte* const mapped = facts_.unmapped ? nullptr : view.base();
  if (const auto file = existing_window_file(); file != nullptr && file->is_image())
    return file->residency().share(offset, bytes, mapped);
  if (const Residency* const r = residency(); r != nullptr && !r->samples())
    if (const std::optional<double> share = r->share(offset, bytes, mapped); share) return share;
  const std::shared_ptr<window::WindowFile> file = window_file(view.pages());
  return file != nullptr ? file->residency().share(offset, bytes, mapped) : std::nullopt;
}

std::optional<std::int64_t> EnvironmentFile::time_read(std::uint64_t offset,
                                                       const window::WindowView& view) noexcept {
  const std::shared_ptr<window::WindowFile> file = window_file(view.pages());
  return file != nullptr ? time_byte(file->buffered(), offset) : std::nullopt;
}

}  // namespace lmdbio::ahead
