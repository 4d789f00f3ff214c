// What this process keeps of a database file in its memory, as readers see it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/io/extents.h"

namespace lmdbio::gather {

/// One snapshot of a database file.  Any thread, with no lock held.
class KeptFile {
 public:
  virtual ~KeptFile() = default;
  /// Returns the address of the file's first byte, which is the same as long as this object exists.  Pages
  /// that are not kept are those of the page cache: read them as those of any mapping of the file.
  virtual const std::byte* mapped() const noexcept = 0;
  /// Returns whether all bytes of the extent are kept.  They may be dropped at any time.  Then their pages
  /// are those of the page cache, which have the same bytes.
  virtual bool has(const Extent& extent) const noexcept = 0;
  /// Records that a reader needs bytes that are not kept, by so many requests, or will need them soon. Begins
  /// to read the whole file in the background if that is likely to pay.
  virtual void need(std::uint64_t bytes, std::uint64_t requests) noexcept = 0;
  /// Returns whether the whole file is being read.
  virtual bool is_loading() const noexcept = 0;
};

}  // namespace lmdbio::gather
