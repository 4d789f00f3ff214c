#include "bench/scale/contents.h"

#include <algorithm>
#include <cmath>

#include "bench/common.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {

// The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
Sizes::Sizes(Content content)
    : content_(content), photograph_(std::log(kMean) - kSigma * kSigma / 2, kSigma) {}

std::size_t Sizes::next() {
  switch (content_) {
    case Content::cifar10_like:
      return 3072;
    case Content::imagenet_like:
      return std::size_t{110} << 10;
    case Content::raw_imagenet_like:
      return std::size_t{192} << 10;
    case Content::photographs:
    case Content::cosmoflow_like:
      break;
  }
  const double size = content_ == Content::photographs ? photograph_(random_) : cosmoflow_(random_);
  return static_cast<std::size_t>(std::clamp(size, 1024.0, static_cast<double>(kLargest)));
}

std::uint64_t sum_of(std::uint64_t ordinal, const void* data, std::size_t size) {
  return mix(mix(ordinal) ^ xor_bytes(data, size) ^ mix(size));
}

}  // namespace lmdbio::bench
