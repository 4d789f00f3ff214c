#include "bench/scale/contents.h"

#include <algorithm>
#include <cmath>

#include "bench/common.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {

// The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
Sizes::Sizes(Content content)
    : content_(content),
      photograph_(std::log(kMean) - kSigma * kSigma / 2, kSigma),
      unet3d_side_(std::sqrt(kUnet3d), kUnet3dDeviates / 2 / std::sqrt(kUnet3d)) {}

std::size_t Sizes::next() {
  switch (content_) {
    case Content::cifar10_like:
      return 3072;
    case Content::imagenet_like:
      return std::size_t{110} << 10;
    case Content::raw_imagenet_like:
      return std::size_t{192} << 10;
    case Content::resnet50_like:
      return 114660;
    case Content::photographs:
      return bounded(photograph_(random_));
    case Content::cosmoflow_like:
      return bounded(cosmoflow_(random_));
    case Content::unet3d_like:
      break;
  }
  const double side = std::max(unet3d_side_(random_), 1.0);
  return bounded(side * std::max(unet3d_side_(random_), 1.0));
}

std::size_t Sizes::bounded(double bytes) const {
  return static_cast<std::size_t>(std::clamp(bytes, 1024.0, static_cast<double>(largest(content_))));
}

std::uint64_t sum_of(std::uint64_t ordinal, const void* data, std::size_t size) {
  return mix(mix(ordinal) ^ xor_bytes(data, size) ^ mix(size));
}

}  // namespace lmdbio::bench
