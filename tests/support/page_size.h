// Databases with page sizes that this system does not have.
#pragma once

namespace lmdbio::test {

/// While one lives, sysconf(_SC_PAGESIZE) of the whole process answers `bytes`; LMDB gives a database that it
/// creates that page size.  Works on libraries loaded later too, because the program exports its own sysconf.
/// One at a time, and no other thread should be asking.
class PageSizeOverride {
 public:
  explicit PageSizeOverride(unsigned bytes) noexcept;
  ~PageSizeOverride();
  PageSizeOverride(const PageSizeOverride&) = delete;
  PageSizeOverride& operator=(const PageSizeOverride&) = delete;
};

}  // namespace lmdbio::test
