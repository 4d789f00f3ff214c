// Records of a database file, read by a reader (records/reader.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lmdbio/ranks/part_source.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// What was read lives on after this, with the reader's memory; reads in flight do not.
class FileSource final : public PartSource {
 public:
  /// `reader` outlives it.  Records that are read together have the gaps between them read as well, as long
  /// as that takes at most `most` bytes; 0: half of what a stream may have.  `limit`: bytes of buffers in
  /// use, all together; 0: the reader's.
  /// `of_file`: the share of the file that readers of this node read in an epoch.
  explicit FileSource(records::Reader& reader, std::uint64_t most = 0, std::uint64_t limit = 0,
                      double of_file = 1) noexcept
      : places_(reader.places()),
        shared_(reader.keep_shared()),
        most_(most != 0 ? most : shared_->share_of_one(1) / 2),
        limit_(limit != 0 ? limit : shared_->pool->limit()),
        of_file_(of_file),
        queues_(*shared_) {}

  ~FileSource() override { queues_.count(); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  /// As PartSource; waits if it is not known yet where the records are.
  Status start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
               std::string& why) override;
  bool caches() const noexcept override { return shared_->read.path == ReadPath::page_cache; }
  double room(std::uint64_t taken) const noexcept override;

 private:
  class Read;

  const records::Places& places_;
  const std::shared_ptr<records::Shared> shared_;
  const std::uint64_t most_, limit_;
  const double of_file_;
  records::Queues queues_;
};

}  // namespace lmdbio::ranks
