#include "lmdbio/gather/cached_engine.h"

#include <cerrno>
#include <new>
#include <utility>

#include "lmdbio/cache/cached_reader.h"
#include "lmdbio/io/engine_hosted.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/page_filler.h"

namespace lmdbio::gather {

namespace {

using Made = Result<std::unique_ptr<IoEngine>>;
using cache::CachedReader;

/// Makes the reader for what the image does not have.
Result<std::unique_ptr<RangeReader>> reader_of(const File& file, EngineKind wanted) noexcept {
  if (wanted == EngineKind::populate || wanted == EngineKind::populate_copied) {
    Result<std::unique_ptr<PageFiller>> filler = PageFiller::make(
        file, wanted == EngineKind::populate ? PageFiller::Bytes::unwanted : PageFiller::Bytes::copied);
    if (!filler) return filler.error();
    return std::unique_ptr<RangeReader>(std::move(filler).value());
  }
  std::unique_ptr<RangeReader> reader = file_reader(file);
  if (reader == nullptr) return Status::from_errno(ENOMEM);
  return reader;
}

Made engine_here(const Sources& sources, const File& file, unsigned depth, EngineKind wanted,
                 CachedReader::Bytes bytes, EventCount* results) noexcept {
  if (file.fd() < 0) return Status::from_errno(EBADF);
  Result<std::unique_ptr<RangeReader>> made = reader_of(file, wanted);
  if (!made) return made.error();
  std::unique_ptr<RangeReader> reader = std::move(made).value();
  if (sources.served != nullptr && bytes != CachedReader::Bytes::unwanted)
    reader.reset(new (std::nothrow) ServedReader(sources.served, std::move(reader)));
  if (sources.image != nullptr && reader != nullptr)
    reader.reset(new (std::nothrow) CachedReader(sources.image, std::move(reader), bytes));
  if (reader == nullptr) return Status::from_errno(ENOMEM);
  return threads_engine(file, depth, 0, std::move(reader), results);
}

}  // namespace

MakeEngine cached_engines(Sources sources, bool buffered_copies) {
  return [sources = std::move(sources), buffered_copies](const File& file, unsigned depth, EngineKind wanted,
                                                         const char** name) -> Made {
    if (wanted == EngineKind::pread || wanted == EngineKind::single || wanted == EngineKind::single_unread)
      return engine_factory()(file, depth, wanted, name);
    if (name != nullptr) *name = sources.image != nullptr ? "cache" : "server";
    const bool copies = wanted != EngineKind::populate && buffered_copies;
    const auto bytes = file.direct() ? CachedReader::Bytes::direct
                       : copies      ? CachedReader::Bytes::buffered
                                     : CachedReader::Bytes::unwanted;
    if (!file.kept() || PrivateTable::inside())
      return engine_here(sources, file, depth, wanted, bytes, nullptr);
    return hosted_engine({file.alignment(), depth, file.direct()}, wanted,
                         [&](EngineKind, EventCount* results) {
                           return engine_here(sources, file, depth, wanted, bytes, results);
                         });
  };
}

}  // namespace lmdbio::gather
