// The files of the file system, as a server reads them: past the page cache if possible.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/io/content_state.h"
#include "lmdbio/io/extents.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/serve/home_files.h"
#include "lmdbio/serve/local_image.h"
#include "lmdbio/serve/read_window.h"

namespace lmdbio::serve {

namespace {

using gather::ReadKind;

class FileBlock final : public Block {
 public:
  FileBlock(std::uint64_t offset, std::size_t bytes, Mapping memory, std::size_t before) noexcept
      : Block(offset), bytes_(bytes), memory_(std::move(memory)), before_(before) {}
  bool is_done() const noexcept override { return held == 0 && group.done(); }
  Status status() const noexcept override { return group.status; }
  Bytes bytes() const noexcept override { return {memory_.data() + before_, bytes_}; }
  std::byte* memory() const noexcept { return memory_.data(); }

  ReadGroup group;
  unsigned held = 0;  ///< requests that are not in the queue yet

 private:
  const std::size_t bytes_;
  const Mapping memory_;
  const std::size_t before_;  ///< bytes that are read before offset(), for the alignment
};

enum class Contents : unsigned char { same, other, unknown };

/// Compares the contents of a file with those of a state.  Reads the file.
Contents compare(const OpenFile& file, const node::ServedState& state) noexcept {
  try {
    const auto contents = content_state(file.base(), format::kMetaPages * state.page_bytes, state.snapshot);
    if (!contents) return Contents::unknown;
    return *contents == state.contents ? Contents::same : Contents::other;
  } catch (const std::bad_alloc&) {
    return Contents::unknown;
  }
}

/// Calls `f` in a thread of its own.  Returns an invalid future if there is none.
template <class F>
auto in_thread(F&& f) -> std::future<decltype(f())> {
  try {
    return std::async(std::launch::async, std::forward<F>(f));
  } catch (const std::system_error&) {
    return {};
  }
}

template <class T>
bool is_under_way(const std::future<T>& f) noexcept {
  return f.valid() && f.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

/// A file.  Threads of its own open and compare it, because these reads wait behind others.
class SystemFile final : public HomeFile {
 public:
  SystemFile(std::string path, const node::ServedState& state, unsigned nodes)
      : state_(state),
        opening_(in_thread([path = std::move(path), state, nodes] { return open(path, state, nodes); })) {}
  ~SystemFile() override {
    if (queue_ != nullptr) queue_->drop_all();
  }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  std::optional<Status> opened() noexcept override {
    if (is_under_way(opening_)) return {};
    if (opening_.valid()) opened_ = start(opening_.get());
    return opened_;
  }

  std::uint64_t size() const noexcept override { return size_; }

  Result<std::shared_ptr<Block>> read(std::uint64_t offset, std::size_t bytes) noexcept override {
    try {
      if (image_ != nullptr)
        if (std::shared_ptr<Block> cached = image_->read(offset, bytes); cached != nullptr) return cached;
      const Extent extent{offset, bytes};
      Result<Mapping> memory = Mapping::zeroed(queue_->room(extent));
      if (!memory) return memory.error();
      const auto before = static_cast<std::size_t>(offset - align_down(offset, queue_->alignment()));
      const auto block = std::make_shared<FileBlock>(offset, bytes, std::move(memory).value(), before);
      reading_.push_back(block);
      const std::uint64_t start = offset - before;
      split_aligned(extent, queue_->alignment(), size_, ReadQueue::kMostRequest, [&](const ReadPiece& r) {
        held_.push_back({block, {r.offset, r.minimum}, block->memory() + (r.offset - start)});
        ++block->held;
      });
      submit();
      return std::shared_ptr<Block>(block);
    } catch (const std::exception&) {
      return Status::from_errno(ENOMEM);
    }
  }

  Result<std::shared_ptr<Block>> unpack(const std::shared_ptr<Block>& block, std::uint64_t offset,
                                        std::size_t bytes) noexcept override {
    try {
      return image_->unpack(block, offset, bytes);
    } catch (const std::exception&) {
      return Status::from_errno(ENOMEM);
    }
  }

  void store(const std::shared_ptr<Block>& block, bool is_kept) noexcept override {
    try {
      if (image_ != nullptr) image_->store(block, is_kept);
    } catch (const std::exception&) {  // it is not stored
    }
  }
  bool stores() const noexcept override { return image_ != nullptr && image_->stores(); }
  bool is_storing() const noexcept override { return image_ != nullptr && image_->is_storing(); }

  bool start_check() noexcept override {
    if (is_under_way(checking_)) return false;
    take_check();
    checking_ = in_thread([file = file_, state = state_] { return compare(*file, state); });
    return checking_.valid();
  }

  bool is_current() noexcept override {
    if (!is_under_way(checking_)) take_check();
    return is_current_;
  }

  bool is_busy() const noexcept override {
    return is_under_way(opening_) || is_under_way(checking_) || !reading_.empty() ||
           (image_ != nullptr && image_->is_busy());
  }

  bool poll() noexcept override {
    const bool advanced = poll_image();
    if (reading_.empty()) return advanced;
    const std::size_t before = queue_->in_flight() + queue_->waiting();
    queue_->pump();
    const std::size_t ended = before - queue_->in_flight() - queue_->waiting();
    window_.ended(static_cast<unsigned>(ended), now_ns());
    reading_.remove_if([](const std::shared_ptr<FileBlock>& b) { return b->is_done(); });
    submit();
    return ended != 0 || advanced;
  }

 private:
  struct Opened {
    Status status;
    std::shared_ptr<const OpenFile> file;
    std::uint64_t size = 0;
    std::shared_ptr<cache::Image> image{};
  };

  struct Held {
    std::shared_ptr<FileBlock> block;
    Extent extent;
    std::byte* to;
  };

  static Opened open(const std::string& path, const node::ServedState& state, unsigned nodes) noexcept {
    Result<std::shared_ptr<const OpenFile>> file = OpenFile::open(path.c_str());
    if (!file) return {file.error(), nullptr};
    if (compare(*file.value(), state) != Contents::same) return {Status::from_errno(ESTALE), nullptr};
    const Result<std::uint64_t> size = file.value()->base().size();
    if (!size) return {size.error(), nullptr};
    (void)file.value()->direct();  // opens and tries it
    const FileIdentity id = file.value()->identity();
    return {
        {}, std::move(file).value(), size.value(), nodes > 1 ? image_of(path, id, state, nodes) : nullptr};
  }

  // Returns the image of the file on local disk, or nullptr.
  static std::shared_ptr<cache::Image> image_of(const std::string& path, const FileIdentity& id,
                                                const node::ServedState& state, unsigned nodes) noexcept {
    if (config().cache_dir.empty()) return nullptr;
    // Images need a file of the private table.
    const Result<std::shared_ptr<const OpenFile>> file =
        OpenFile::get({-1, path.c_str(), id}, OpenFile::With::buffered_alone);
    return file ? cache::Image::get(file.value(), path.c_str(), state.snapshot, nodes) : nullptr;
  }

  Status start(Opened opened) noexcept {
    if (!opened.status.ok()) return opened.status;
    file_ = std::move(opened.file);
    size_ = opened.size;
    const ReadKind kind = file_->direct() != nullptr ? ReadKind::chunk_direct : ReadKind::chunk_cached;
    Result<std::unique_ptr<ReadQueue>> queue = gather::make_queue(kind, *file_, size_);
    if (!queue) return queue.error();
    queue_ = std::move(queue).value();
    try {
      if (opened.image != nullptr) image_ = std::make_unique<LocalImage>(std::move(opened.image));
    } catch (const std::bad_alloc&) {  // no cache
    }
    return {};
  }

  bool poll_image() noexcept {
    try {
      return image_ != nullptr && image_->poll();
    } catch (const std::exception&) {  // something is not stored
      return false;
    }
  }

  // Starts as many requests as the window allows.
  void submit() noexcept {
    unsigned started = 0;
    while (!held_.empty() && queue_->in_flight() + queue_->waiting() < window_.size()) {
      const Held first = std::move(held_.front());
      held_.pop_front();
      --first.block->held;
      if (const Status st = queue_->add(first.block->group, first.extent, first.to); !st.ok()) {
        if (first.block->group.status.ok()) first.block->group.status = st;
        continue;
      }
      ++started;
    }
    queue_->submit();
    window_.started(started, now_ns());
  }

  // The check has ended, if there was one.
  void take_check() noexcept {
    if (checking_.valid() && checking_.get() == Contents::other) is_current_ = false;
  }

  const node::ServedState state_;
  std::future<Opened> opening_;  ///< valid until the file is open
  Status opened_ = Status::from_errno(EAGAIN);
  std::shared_ptr<const OpenFile> file_;
  std::uint64_t size_ = 0;
  std::unique_ptr<ReadQueue> queue_;
  ReadWindow window_;
  std::deque<Held> held_;                          ///< beyond the window
  std::list<std::shared_ptr<FileBlock>> reading_;  ///< the queue writes to their memory
  std::unique_ptr<LocalImage> image_;              ///< on local disk, or null
  std::future<Contents> checking_;
  bool is_current_ = true;
};

class FileSystem final : public HomeFiles {
 public:
  explicit FileSystem(unsigned nodes) noexcept : nodes_(nodes) {}
  std::unique_ptr<HomeFile> open(const std::string& path, const node::ServedState& state) override {
    return std::make_unique<SystemFile>(path, state, nodes_);
  }

 private:
  const unsigned nodes_;
};

}  // namespace

std::unique_ptr<HomeFiles> file_system(unsigned nodes) { return std::make_unique<FileSystem>(nodes); }

}  // namespace lmdbio::serve
