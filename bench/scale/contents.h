// The contents of the databases of jobs: sizes of values, and checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace lmdbio::bench {

/// Sizes of values.
enum class Content : unsigned char {
  cifar10_like,       ///< 3 KiB: a small raw image
  imagenet_like,      ///< 110 KiB: an average photograph
  raw_imagenet_like,  ///< 192 KiB: the pixels of a photograph that was scaled to 256 x 256
  photographs,        ///< drawn from a log-normal distribution: median 96 KiB, mean 110 KiB
  /// Drawn from a normal distribution: mean 2,828,486 bytes, standard deviation 71,311.  These are the sizes
  /// of DLIO's CosmoFlow workload (https://github.com/argonne-lcf/dlio_benchmark).
  cosmoflow_like,
  /// 114,660 bytes, the size of an image in DLIO's ResNet-50 workload.
  resnet50_like,
  /// Products of two sides, each drawn from a normal distribution, as DLIO makes the images of its 3D U-Net
  /// workload: mean 146,600,628 bytes, standard deviation 48 MB.
  unet3d_like
};

constexpr bool sizes_differ(Content content) noexcept {
  return content == Content::photographs || content == Content::cosmoflow_like ||
         content == Content::unet3d_like;
}

/// Generates the sizes of the values of a database, in order.  Each object generates the same sizes.
class Sizes {
 public:
  /// Returns the size of the largest value.
  static constexpr std::size_t largest(Content content) noexcept {
    return std::size_t{content == Content::unet3d_like ? 512u : 4u} << 20;
  }

  explicit Sizes(Content content);
  std::size_t next();

 private:
  static constexpr double kMean = 110 * 1024, kSigma = 0.5;                  // of photographs
  static constexpr double kCosmoflow = 2828486, kCosmoflowDeviates = 71311;  // bytes
  // Of DLIO's U-Net: the mean and the standard deviation that it is given.  It halves the latter for a side.
  static constexpr double kUnet3d = 146600628, kUnet3dDeviates = 68341808;
  std::size_t bounded(double bytes) const;
  const Content content_;
  std::mt19937_64 random_{1};
  std::lognormal_distribution<double> photograph_;
  std::normal_distribution<double> cosmoflow_{kCosmoflow, kCosmoflowDeviates};
  std::normal_distribution<double> unet3d_side_;
};

/// Number of records of each transaction that writes a database.
constexpr std::uint64_t kRecordsOfCommit = 1000;

/// Counts the bytes and records of a database while it is written.  The database is to have at least `bytes`,
/// and a number of records that is a multiple of `multiple`.
class Written {
 public:
  Written(std::uint64_t bytes, std::uint64_t multiple) : wanted_(bytes), multiple_(multiple) {}
  bool enough() const noexcept { return bytes_ >= wanted_ && records_ % multiple_ == 0; }
  /// Adds one record: the bytes of its value in the file, and its share of leaf pages.
  void add(std::size_t value_bytes) noexcept {
    constexpr std::uint64_t kPage = 4096;
    bytes_ += (value_bytes + 16 + kPage - 1) / kPage * kPage + 32;
    ++records_;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t records() const noexcept { return records_; }

 private:
  const std::uint64_t wanted_, multiple_;
  std::uint64_t bytes_ = 0, records_ = 0;
};

/// Returns the map size with which such a database is written.
constexpr std::uint64_t map_bytes(Content content, std::uint64_t bytes, std::uint64_t multiple) noexcept {
  return bytes + bytes / 2 + multiple * Sizes::largest(content) + (std::uint64_t{64} << 20);
}

/// Returns the checksum of a record.  It depends on the ordinal, the size and all bytes.
std::uint64_t sum_of(std::uint64_t ordinal, const void* data, std::size_t size);

}  // namespace lmdbio::bench
