// Records of a database file, read by a reader (reader/reader.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lmdbio/dist/part_source.h"
#include "lmdbio/reader/reader.h"

namespace lmdbio::dist {

/// What was read lives on after this, with the reader's memory; reads in flight do not.
class FileSource final : public PartSource {
 public:
  /// `reader` outlives it.
  explicit FileSource(reader::Reader& reader) noexcept
      : places_(reader.places()), shared_(reader.keep_shared()), queues_(*shared_) {}

  ~FileSource() override { queues_.count(); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  /// As PartSource; waits if it is not known yet where the records are.
  Status start(std::span<const std::uint64_t> ordinals, std::unique_ptr<PartRead>& out,
               std::string& why) override;

 private:
  class Read;

  const reader::Places& places_;
  const std::shared_ptr<reader::Shared> shared_;
  reader::Queues queues_;
};

}  // namespace lmdbio::dist
