#include "lmdbio/cache/chunk_source.h"

#include <new>

#include "lmdbio/cache/file_cache.h"

namespace lmdbio::cache {

namespace {

class FileSource final : public ChunkSource {
 public:
  explicit FileSource(const FileCache& file) noexcept : file_(file) {}
  Answer claim(ChunkIndex chunk) noexcept override {
    if (!file_.decision.uses_resident) return Answer::yours;
    const auto share = file_.residency.share(file_.offset(chunk), file_.bytes_in(chunk));
    return share.value_or(0) >= kMostlyResident ? Answer::ready : Answer::yours;
  }
  void filled(ChunkIndex, bool) noexcept override {}

 private:
  const FileCache& file_;
};

}  // namespace

std::unique_ptr<ChunkSource> file_source(const FileCache& file) noexcept {
  return std::unique_ptr<ChunkSource>(new (std::nothrow) FileSource(file));
}

}  // namespace lmdbio::cache
