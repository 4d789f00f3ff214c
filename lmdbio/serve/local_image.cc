#include "lmdbio/serve/local_image.h"

#include <cerrno>
#include <new>
#include <utility>
#include <vector>

#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/image_format.h"
#include "lmdbio/cache/packed_range.h"

namespace lmdbio::serve {

namespace {

using cache::kChunkBytes;
using cache::PackedRange;

/// The most bytes that wait to be stored, besides those that are in memory anyway.
constexpr std::uint64_t kMostExtra = std::uint64_t{64} << 20;

}  // namespace

/// Bytes of a chunk: compressed as in the image, or plain.  reader_ calls the functions before is_done().
class LocalImage::ImageBlock final : public Block {
 public:
  ImageBlock(std::uint64_t offset, std::size_t bytes) noexcept : Block(offset), bytes_(bytes) {}
  bool is_done() const noexcept override { return is_done_.load(std::memory_order_acquire); }
  Status status() const noexcept override { return status_; }
  Bytes bytes() const noexcept override { return plain_; }
  bool is_plain() const noexcept override { return packed_.empty(); }
  bool is_cached() const noexcept override { return true; }
  std::vector<std::byte> packed(std::uint64_t offset, std::size_t bytes) const override {
    if (packed_.empty()) return {};
    const PackedRange range = PackedRange::parse(packed_).value();  // validated by read()
    const auto at = static_cast<std::size_t>(offset % kChunkBytes);
    return range.size_of(at, bytes) < bytes ? range.part(at, bytes) : std::vector<std::byte>();
  }

  void read(cache::Image& image) noexcept {
    finish([&] {
      const std::uint64_t chunk = offset() / kChunkBytes;
      Result<std::vector<std::byte>> packed =
          image.read_packed(chunk, static_cast<std::size_t>(offset() % kChunkBytes), bytes_);
      if (packed) {
        packed_ = std::move(packed).value();
        return true;
      }
      if (packed.error().raw() != ENODATA) return false;
      plain_.resize(bytes_);
      return image.read(offset(), plain_);
    });
  }
  void unpack(const ImageBlock& from) noexcept {
    finish([&] {
      cache::Scratch scratch;
      plain_.resize(bytes_);
      const PackedRange range = PackedRange::parse(from.packed_).value();
      return range.unpack(static_cast<std::size_t>(offset() % kChunkBytes), plain_, scratch).ok();
    });
  }

 private:
  template <class Work>
  void finish(Work&& work) noexcept {
    bool good = false;
    try {
      good = work();
    } catch (const std::bad_alloc&) {
    }
    if (!good) status_ = Status::from_errno(EAGAIN);
    is_done_.store(true, std::memory_order_release);
  }

  const std::size_t bytes_;
  std::vector<std::byte> packed_, plain_;
  Status status_;
  std::atomic<bool> is_done_{false};
};

LocalImage::LocalImage(std::shared_ptr<cache::Image> image) : image_(std::move(image)) {}

LocalImage::~LocalImage() = default;

std::shared_ptr<Block> LocalImage::start(const std::shared_ptr<ImageBlock>& block,
                                         std::function<void()> job) {
  reading_.push_back(block);
  try {
    reader_.add(std::move(job));
  } catch (...) {
    reading_.pop_back();
    throw;
  }
  return block;
}

std::shared_ptr<Block> LocalImage::read(std::uint64_t offset, std::size_t bytes) {
  const std::uint64_t chunk = offset / kChunkBytes;
  if (!image_->may_have(chunk) || failed_.contains(chunk)) return nullptr;
  const auto block = std::make_shared<ImageBlock>(offset, bytes);
  return start(block, [block, image = image_] { block->read(*image); });
}

std::shared_ptr<Block> LocalImage::unpack(const std::shared_ptr<Block>& block, std::uint64_t offset,
                                          std::size_t bytes) {
  const auto from = std::static_pointer_cast<ImageBlock>(block);  // others are plain
  const auto plain = std::make_shared<ImageBlock>(offset, bytes);
  return start(plain, [plain, from] { plain->unpack(*from); });
}

void LocalImage::store(const std::shared_ptr<Block>& block, bool is_kept) {
  if (!block->is_cached() && stores()) to_store_.push_back({block, is_kept});
}

bool LocalImage::poll() {
  for (auto s = to_store_.begin(); s != to_store_.end();) {
    if (!s->block->is_done()) {
      ++s;
      continue;
    }
    const auto [block, is_kept] = *s;
    s = to_store_.erase(s);
    if (!block->status().ok() || !image_->wants(block->offset(), block->bytes().size())) continue;
    const std::uint64_t extra = is_kept ? 0 : block->bytes().size();
    if (extra_ + extra > kMostExtra) continue;  // it is read and offered again
    extra_ += extra;
    writer_.add([this, block = block, extra] {
      (void)image_->add(block->offset(), block->bytes());
      extra_ -= extra;
    });
  }
  return std::erase_if(reading_, [this](const std::shared_ptr<ImageBlock>& b) {
           if (!b->is_done()) return false;
           if (b->status().raw() == EAGAIN) failed_.insert(b->offset() / kChunkBytes);
           return true;
         }) != 0;
}

}  // namespace lmdbio::serve
