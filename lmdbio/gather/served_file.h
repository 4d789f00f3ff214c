// A database file whose bytes the server of the node brings from other nodes (node/service.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/counter.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/range_reader.h"
#include "lmdbio/node/service.h"

namespace lmdbio::gather {

/// One snapshot of a database file.  Any thread.
class ServedFile {
 public:
  /// Returns the file, or nullptr if it is not served.  A file is not served without a server or without
  /// another node, on a local file system, for a snapshot that is not the newest one, and if most of it is in
  /// the page cache.  The server may also refuse it.  `path`: for messages.  `image`: of the file, or null;
  /// it is left to the server if that stores the file, too.  Call it with no lock held.  Blocks.
  static std::shared_ptr<ServedFile> get(const std::shared_ptr<const OpenFile>& file, const char* path,
                                         std::uint64_t snapshot,
                                         const std::shared_ptr<cache::Image>& image) noexcept;

  /// Reads bytes of the file.  Returns how many bytes were read, which may be fewer, or 0 if the server
  /// brings none. Blocks, as node::Service::read().
  std::size_t read(std::uint64_t offset, MutableBytes to) noexcept;
  /// Reads ranges at the same time, as read().  Their results are numbers of bytes, or 0.
  void read(std::span<RangeReader::Range> ranges) noexcept;
  /// Returns whether read() is likely to bring bytes.
  bool answers() const noexcept { return !refused_.load(std::memory_order_relaxed) && service_->answers(); }
  /// Copies counts of this process to a record of statistics.
  template <class Statistics>
  void count_into(Statistics& to) const noexcept {
    to.server_read.raise_to(read_);
  }

 private:
  ServedFile(std::shared_ptr<node::Service> service, std::string path, const node::ServedState& state,
             std::shared_ptr<cache::Image> image) noexcept
      : service_(std::move(service)), path_(std::move(path)), state_(state), image_(std::move(image)) {}
  bool is_open() noexcept;
  std::size_t take(const node::Service::Range& range) noexcept;

  static constexpr std::uint32_t kNotOpen = ~0u;
  const std::shared_ptr<node::Service> service_;
  const std::string path_;
  const node::ServedState state_;
  const std::shared_ptr<cache::Image> image_;  ///< or null
  std::atomic<std::uint32_t> number_{kNotOpen};
  std::atomic<bool> refused_{false}, opening_{false};
  Counter read_;  ///< bytes that the server has brought
};

/// Reads what the server brings, and everything else with another reader.
class ServedReader final : public RangeReader {
 public:
  ServedReader(std::shared_ptr<ServedFile> served, std::unique_ptr<RangeReader> file) noexcept
      : served_(std::move(served)), file_(std::move(file)) {}

  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    if (const std::size_t n = served_->read(offset, to); n != 0) return static_cast<long>(n);
    return file_->fill(offset, to);
  }
  void fill_all(std::span<Range> ranges) noexcept override {
    served_->read(ranges);
    for (Range& r : ranges)
      if (r.result == 0) r.result = file_->fill(r.offset, r.to);
  }
  unsigned at_once() const noexcept override { return served_->answers() ? kMostAtOnce : 1; }
  unsigned threads() const noexcept override { return file_->threads(); }

 private:
  const std::shared_ptr<ServedFile> served_;
  const std::unique_ptr<RangeReader> file_;
};

}  // namespace lmdbio::gather
