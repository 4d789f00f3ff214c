// Medians and their intervals.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lmdbio::bench {

/// Returns the median of a non-empty sample.
inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct Interval {
  double middle = NAN, low = NAN, high = NAN;
  bool within(double from, double to) const { return low >= from && high <= to; }
};

constexpr std::size_t kFewestForInterval = 6;

/// Returns the median with its confidence interval of at least 95 %, from order statistics.  Assumes only
/// that samples are independent.  With fewer than six samples there is no such interval, and low and high are
/// NAN.
inline Interval median_interval(std::vector<double> v) {
  Interval out;
  if (v.empty()) return out;
  std::sort(v.begin(), v.end());
  out.middle = median(v);
  const std::size_t n = v.size();
  // Find the largest k with P(Binomial(n, 1/2) < k) <= 2.5 %.  The interval goes from the k-th sample to the
  // k-th from the end.
  double term = std::pow(0.5, static_cast<double>(n)), below = 0;
  std::size_t k = 0;
  while (k < n / 2 && below + term <= 0.025) {
    below += term;
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  if (k > 0) {
    out.low = v[k - 1];
    out.high = v[n - k];
  }
  return out;
}

}  // namespace lmdbio::bench
