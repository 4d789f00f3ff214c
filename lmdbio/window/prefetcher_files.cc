// The Prefetcher's functions that open files, close them, and react to commits.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/prefetcher.h"
#include "lmdbio/window/whole_load.h"

namespace lmdbio::window {

namespace {

/// Walks read chunks through an image if it has at least this share of the chunks.  Chunks that are in the
/// page cache do not count: other processes may be filling the image from there.  Direct reads would then
/// read from storage what those processes read into the page cache.
constexpr double kWorthUsing = 1.0 / 16;

/// Returns the open file under `window`, or nullptr.
WindowFile* file_under(const Window& window, const std::vector<WindowFile*>& files) noexcept {
  const auto is_it = [&window](const WindowFile* f) { return f->window.get() == &window; };
  const auto found = std::find_if(files.begin(), files.end(), is_it);
  return found != files.end() ? *found : nullptr;
}

/// Returns whether no commit after `snapshot` is visible.
bool is_newest(const Window& window, std::uint64_t snapshot) noexcept {
  const std::byte* const metas = window.metas() + offsetof(format::MetaRecord, txnid);
  for (std::uint64_t page = 0; page < format::kMetaPages; ++page)
    if (__atomic_load_n(reinterpret_cast<const std::uint64_t*>(metas + (page << window.page_shift())),
                        __ATOMIC_SEQ_CST) > snapshot)
      return false;
  return true;
}

/// Returns what the cache on local disk and the server of the node have of the file, or nullptr.  If the
/// cache has all of it, `whole` receives the image as a mapping.
std::unique_ptr<const Backing> from_sources(const Backing& database, const char* name, std::uint64_t snapshot,
                                            Mapping& whole) {
  const std::shared_ptr<cache::Image> image = cache::Image::get(database.file, name, snapshot);
  std::shared_ptr<const OpenFile> file = image != nullptr ? image->whole_file() : nullptr;
  if (file != nullptr)
    (void)file->base().with_fd([&](int fd) noexcept {
      Result<Mapping> map = Mapping::map_file(fd, image->bytes(), Window::kHugePage);
      if (map) whole = std::move(map).value();
    });
  if (!whole) {
    gather::Sources sources{image, gather::ServedFile::get(database.file, name, snapshot, image)};
    if (!sources) return nullptr;
    return std::make_unique<const Backing>(database.file, database.direct, -1, std::move(sources));
  }
  const File* const direct = file->direct();
  return std::make_unique<const Backing>(std::move(file), direct, -1, gather::Sources{image, nullptr});
}

}  // namespace

Result<std::shared_ptr<WindowFile>> Prefetcher::open(const std::shared_ptr<Window>& window,
                                                     const Origin& origin, const char* name,
                                                     std::uint64_t used_bytes,
                                                     std::uint64_t snapshot) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (WindowFile* const f = file_under(*window, chunks_.files()); f != nullptr) return join(*f);
    }
    const IoMode mode = config().io;
    // It must be possible to give published chunks back to the file without a descriptor.
    bool wants_direct = may_read_directly(mode, memory_.limit());
    if (wants_direct) {
      const std::lock_guard lock(mutex_);
      wants_direct = window->prepare_restore(used_bytes);
    }
    const Result<std::shared_ptr<const OpenFile>> opened =
        OpenFile::get(origin, wants_direct ? OpenFile::With::direct : OpenFile::With::buffered_alone);
    if (!opened) return opened.error();
    const Result<std::uint64_t> size = opened.value()->base().size();
    if (!size) return size.error();
    const Backing database(opened.value(), wants_direct ? opened.value()->direct() : nullptr, origin.fd, {});
    Mapping whole;
    std::unique_ptr<const Backing> cached =
        window->has_file() ? from_sources(database, name, snapshot, whole) : nullptr;
    const Backing& backing = cached != nullptr ? *cached : database;
    const OpenFile& on = *backing.file;
    const File* const direct = backing.direct;
    ReadFacts facts;
    facts.setting = mode;
    facts.node = config().node;
    facts.local = on.local();
    facts.direct_works = direct != nullptr;
    facts.can_map = window->has_file();
    facts.kernel_readahead = on.readahead();
    facts.memory_limit = memory_.limit();
    facts.file_bytes = used_bytes;
    facts.available = memory_facts().available;
    facts.in_cache =
        !whole && (backing.served != nullptr ||
                   (backing.image != nullptr && backing.image->share_not_in_memory() >= kWorthUsing));
    const ReadDecision decision = choose_read_path(Access::walk, facts);
    const std::size_t chunk = chunks_.chunk_bytes();
    Result<ChunkTable> table =
        ChunkTable::make(static_cast<std::uint32_t>((window->capacity() + chunk - 1) / chunk));
    if (!table) return table.error();
    const std::shared_ptr<WindowFile> file =
        facts.can_map ? std::make_shared<WindowFile>(window, database, std::move(cached), decision,
                                                     std::move(table).value(), chunk, name)
                      : std::make_shared<UnmappedWindowFile>(window, database, nullptr, decision,
                                                             std::move(table).value(), chunk, name);
    // A file system may report that a file has grown before it can be read.  Without a mapping, a chunk
    // that cannot be read completely cannot be used.  So only the bytes that the snapshot needs count here.
    // An image has only the bytes of its snapshot.
    const std::uint64_t most = !facts.can_map ? used_bytes
                               : whole        ? whole.size()
                                              : window->hold(size.value());
    file->file_bytes.store(std::min(size.value(), most), std::memory_order_relaxed);
    file->used_bytes = std::min(used_bytes, size.value());
    file->source = file_source(*file);
    if (file->source == nullptr) return Status::from_errno(ENOMEM);
    file->drop_behind = decision.drops_behind;
    file->shares_chunks = shares_chunk_files(facts);
    (void)file->table.advance(snapshot, NoPlaces{});
    const std::lock_guard lock(mutex_);
    if (WindowFile* const f = file_under(*window, chunks_.files()); f != nullptr)
      return join(*f);  // another thread was faster
    // A transaction of a newer snapshot may have begun meanwhile.  Its call of advance() has found no file.
    if (file->is_cached && !is_newest(*window, snapshot)) {
      file->is_cached = false;
      whole.reset();
    }
    if (whole && !(window->prepare_restore(whole.size()) && window->map_image(std::move(whole))))
      file->is_cached = false;
    file->begin_counting(memory_.limit());
    // A file that fits into memory is read from other nodes once, and not in each epoch.
    if (backing.served != nullptr && whole_load_path(*file, used_bytes, chunks_.budget()) == ReadPath::direct)
      file->comes_around = true;
    chunks_.files().push_back(file.get());
    file->users = 1;
    if (log_enabled(LogLevel::info))
      log_line(LogLevel::info, "%s: read path for data not in memory: %s (reason: %s)", name,
               decision == ReadPath::direct       ? "direct I/O"
               : decision == ReadPath::page_cache ? "buffered reads"
                                                  : "page faults",
               decision.reason);
    return file;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

std::shared_ptr<WindowFile> Prefetcher::join(WindowFile& file) noexcept {
  ++file.users;
  std::shared_ptr<WindowFile> shared = file.shared_from_this();
  file.kept.reset();
  return shared;
}

void Prefetcher::close(const std::shared_ptr<WindowFile>& file) noexcept {
  IoWorker* stopped = nullptr;
  std::shared_ptr<Window> window;  // its addresses are released after the lock
  {
    const std::lock_guard lock(mutex_);
    if (--file->users != 0) return;
    schedule_.clear_plans(*file);
    file->load.end();
    file->source->leave();
    if (!chunks_.give_all_back(*file) || (file->window != nullptr && !file->window->unmap_image())) {
      file->kept = file;
      return;
    }
    std::erase(chunks_.files(), file.get());
    window = std::move(file->window);
    if (chunks_.files().empty()) stopped = std::exchange(worker_, nullptr);
    if (stopped != nullptr)
      stopped->stop();
    else if (worker_ != nullptr)
      worker_->wake();  // it releases the file
  }
  {
    const AsyncSignalsAllowed program;
    if (stopped != nullptr) stopped->join();
    if (file->from_cache != nullptr && file->from_cache->image != nullptr) {
      file->from_cache->image->flush();
      file->count(*file->from_cache, {});
    }
  }
  delete stopped;
}

Status Prefetcher::advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes,
                           std::uint64_t used_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  WindowFile* const found = file_under(window, chunks_.files());
  if (found == nullptr) return {};
  WindowFile& file = *found;
  if (snapshot <= file.table.newest_snapshot()) return {};
  const Result<std::size_t> gone = chunks_.advance(file, snapshot);
  if (!gone) return gone.error();
  if (!file.window->unmap_image()) return Status::from_errno(ENOMEM);
  file.is_cached = false;
  file.file_bytes.store(window.hold(file_bytes), std::memory_order_relaxed);
  file.used_bytes = std::min(used_bytes, file_bytes);
  if (file.direct() != nullptr)
    (void)file.window->prepare_restore(file_bytes);  // on failure new data is not published
  if (file.load.path == ReadPath::direct) file.load.end();
  if (gone.value() == 0) return {};
  ++file.stats.snapshots;
  schedule_.want_again(file);
  if (worker_ != nullptr) worker_->wake();
  file.changes.add();
  return {};
}

bool Prefetcher::leave_image(WindowFile& file) noexcept {
  const std::lock_guard lock(mutex_);
  if (!file.is_image()) return true;
  if (file.window == nullptr || !chunks_.give_all_back(file) || !file.window->unmap_image()) return false;
  file.is_cached = false;
  log_line(LogLevel::warn, "%s: the cache on local disk cannot be read; LMDBIO reads the database",
           file.name.c_str());
  return true;
}

void Prefetcher::use_readahead(WindowFile& file, bool on) noexcept {
  const std::lock_guard lock(mutex_);
  const unsigned before = file.readahead_walks;
  file.readahead_walks += on ? 1u : ~0u;
  if (file.window != nullptr && (before == 0) != (file.readahead_walks == 0)) file.window->use_readahead(on);
}

bool Prefetcher::begin_whole_load(WindowFile& file, std::uint64_t used_bytes) noexcept {
  const ReadPath path = whole_load_path(file, used_bytes, chunks_.budget());
  if (file.users == 0 || path == ReadPath::none || !ensure_worker()) return false;
  window::begin_whole_load(file, used_bytes, path);
  worker_->wake();
  return true;
}

bool Prefetcher::begin_load_from_sources(WindowFile& file, std::uint64_t used_bytes) noexcept {
  return file.reads_through_sources() &&
         whole_load_path(file, used_bytes, chunks_.budget()) == ReadPath::direct &&
         begin_whole_load(file, used_bytes);
}

bool Prefetcher::takes_chunks_from_cache(WindowFile& file, const ChunkRange& chunks,
                                         std::uint64_t used_bytes) noexcept {
  if (!file.reads_through_sources()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (file.users == 0) return false;
    gather::MemoryBudget& budget = chunks_.budget();
    if (!file.takes_chunks_from_cache) {
      file.takes_chunks_from_cache = whole_load_path(file, used_bytes, budget) == ReadPath::direct;
      if (*file.takes_chunks_from_cache)
        file.comes_around = true;  // keep the chunks: lookups come back to them
    }
    const std::uint64_t n = raw(chunks.last) - raw(chunks.first) + 1;
    if (!*file.takes_chunks_from_cache ||
        !budget.has_room(gather::MemoryUse::chunks, n * file.chunk_bytes, 2 * n))
      return false;
  }
  const Backing& backing = *file.from_cache;
  if (backing.served != nullptr && backing.served->answers()) return true;
  if (backing.image == nullptr) return false;
  cache::Image& image = *backing.image;
  const std::uint64_t end = file.offset(chunks.last) + file.bytes_in(chunks.last);
  for (std::uint64_t c = file.offset(chunks.first) / cache::kChunkBytes; c * cache::kChunkBytes < end; ++c)
    if (!image.has(c)) return false;
  return true;
}

void Prefetcher::watch_late_use(WindowFile& file, std::span<const std::byte* const> values,
                                std::uint64_t used_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (file.users == 0 || file.local || !ensure_worker()) return;
  const bool before = file.late_use.is_watched();
  file.late_use.add(values, used_bytes);
  if (!before && file.late_use.is_watched()) worker_->watch_late_use();
}

bool Prefetcher::empty(WindowFile& file) noexcept {
  schedule_.clear_plans(file);  // plans of transactions that have ended
  return chunks_.empty(file);
}

}  // namespace lmdbio::window
