// Counters of statistics, and lists of their names.  Sums and reports are made from these lists.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lmdbio {

/// A count that any thread may change.  Changes of different counters are not ordered.  A copy has the value
/// that the counter had at the time of the copy.
class Counter {
 public:
  constexpr Counter(std::uint64_t n = 0) noexcept : n_(n) {}
  Counter(const Counter& c) noexcept : n_(c) {}
  Counter& operator=(const Counter& c) noexcept {
    n_.store(c, std::memory_order_relaxed);
    return *this;
  }
  operator std::uint64_t() const noexcept { return n_.load(std::memory_order_relaxed); }
  void operator+=(std::uint64_t n) noexcept {
    if (n != 0) n_.fetch_add(n, std::memory_order_relaxed);
  }
  void operator++() noexcept { n_.fetch_add(1, std::memory_order_relaxed); }
  /// Sets the counter to `n` if its value is less than `n`.
  void raise_to(std::uint64_t n) noexcept {
    std::uint64_t now = *this;
    while (now < n && !n_.compare_exchange_weak(now, n, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<std::uint64_t> n_;
};

/// Describes one counter of the record T.  C is Counter, or std::uint64_t if only one thread changes the
/// record.
template <class T, class C = Counter>
struct CounterField {
  enum class Sum : bool { total, most };
  const char* name;  ///< in reports
  C T::*counter;
  std::uint64_t unit = 1;  ///< reports contain the count divided by this
  Sum sum = Sum::total;    ///< how records are added up
};

/// Adds up two records: for each counter in `fields`, adds the value in `from` to the value in `to`.  With
/// Sum::most, `to` gets the larger value.
template <class T, class C, std::size_t n>
void add_counters(T& to, const T& from, const CounterField<T, C> (&fields)[n]) noexcept {
  for (const CounterField<T, C>& f : fields) {
    if (f.sum == CounterField<T, C>::Sum::total)
      to.*f.counter += from.*f.counter;
    else if (to.*f.counter < from.*f.counter)
      to.*f.counter = from.*f.counter;
  }
}

}  // namespace lmdbio
