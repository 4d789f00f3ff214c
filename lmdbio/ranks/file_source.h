// Reads records of a database file through a reader (records/reader.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lmdbio/ranks/part_source.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// Reads records through a reader.  Bytes that were read may outlive this object; they keep the reader's
/// memory.  Reads in flight must not outlive this object.
class FileSource final : public PartSource {
 public:
  /// `reader` must outlive this object.  `most`: upper limit in bytes for a read that includes the gaps
  /// between its records; 0: half of the bytes that a stream may use.  `limit`: upper limit in bytes for all
  /// buffers in use together; 0: the reader's limit.  `of_file`: share of the file that the readers of this
  /// node read in an epoch, 0 to 1.
  explicit FileSource(records::Reader& reader, std::uint64_t most = 0, std::uint64_t limit = 0,
                      double of_file = 1) noexcept
      : locations_(reader.locations()),
        shared_(reader.keep_shared()),
        most_(most != 0 ? most : shared_->share_of_one(1) / 2),
        limit_(limit != 0 ? limit : shared_->pool->limit()),
        of_file_(of_file),
        queues_(*shared_) {}

  ~FileSource() override { queues_.count(); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  /// See PartSource.  Waits until the record index is known.
  Status start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
               std::string& why) override;
  bool caches() const noexcept override { return shared_->read.path == ReadPath::page_cache; }
  double room(std::uint64_t taken) const noexcept override;

 private:
  class Read;

  const records::RecordLocations& locations_;
  const std::shared_ptr<records::Shared> shared_;
  const std::uint64_t most_, limit_;
  const double of_file_;
  records::Queues queues_;
};

}  // namespace lmdbio::ranks
