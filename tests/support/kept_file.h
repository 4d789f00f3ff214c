// A file of which a process seems to keep some parts in its memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "lmdbio/gather/kept_file.h"
#include "tests/support/reader_file.h"

namespace lmdbio::testing {

class KeptParts final : public gather::KeptFile {
 public:
  explicit KeptParts(const ReaderFile& file) : bytes_(file.bytes()) {
    EXPECT_EQ(::pread(file.fd(), bytes_.data(), bytes_.size(), 0), static_cast<ssize_t>(bytes_.size()));
  }
  const std::byte* mapped() const noexcept override { return bytes_.data(); }
  bool has(const Extent& e) const noexcept override {
    for (const Extent& part : kept)
      if (e.offset >= part.offset && e.offset + e.bytes <= part.offset + part.bytes) return true;
    return false;
  }
  void need(std::uint64_t bytes, std::uint64_t requests) noexcept override {
    needed_bytes += bytes;
    needed_requests += requests;
  }
  bool is_loading() const noexcept override { return loading; }
  void keep_page(std::uint64_t page, std::uint64_t pages) {
    kept.push_back({page * ReaderFile::kPage, pages * ReaderFile::kPage});
  }

  std::vector<Extent> kept;
  std::uint64_t needed_bytes = 0, needed_requests = 0;
  bool loading = false;

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace lmdbio::testing
