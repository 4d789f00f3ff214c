// The chunks of a window, for readers of the same file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/gather/kept_file.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

/// See gather::KeptFile.  The file is read as a whole after readers have needed at least an eighth of its
/// bytes, by as many requests as the whole file takes.
class KeptChunks final : public gather::KeptFile {
 public:
  /// The file must be mapped, and open as long as this object is used.  `used_bytes`: the part of it that the
  /// database uses.
  KeptChunks(std::shared_ptr<WindowFile> file, std::uint64_t used_bytes) noexcept
      : file_(std::move(file)), window_(file_->window), used_bytes_(used_bytes) {}

  const std::byte* mapped() const noexcept override { return window_->base(); }
  bool has(const Extent& extent) const noexcept override;
  void need(std::uint64_t bytes, std::uint64_t requests) noexcept override;
  bool is_loading() const noexcept override { return file_->load.is_going(); }

 private:
  const std::shared_ptr<WindowFile> file_;
  const std::shared_ptr<Window> window_;
  const std::uint64_t used_bytes_;
  std::atomic<std::uint64_t> bytes_{0}, requests_{0};  ///< needed since the last load has begun
};

}  // namespace lmdbio::window
