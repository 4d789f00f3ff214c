// A set of numbers to which ever larger ones are added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lmdbio::records {

/// A set of numbers.  Runs of consecutive numbers take almost no memory, others up to one bit for each number
/// of a block.  Functions take O(log size) steps.  One thread.  Adding and erasing throws bad_alloc; then
/// nothing has changed.
class NumberSet {
 public:
  /// Adds a number that is larger than all numbers that were ever in the set.
  void add(std::uint64_t number);
  /// Does the same for `count` consecutive numbers from `first` on.
  void add(std::uint64_t first, std::uint64_t count);
  /// Returns false if the set does not have it.
  bool erase(std::uint64_t number);
  std::uint64_t size() const noexcept { return size_; }
  /// Removes the smallest number, and returns it.  The set must not be empty.
  std::uint64_t pop_front() noexcept;
  /// Returns the `i`-th smallest number, from 0; `i` is less than size().
  std::uint64_t nth(std::uint64_t i) const noexcept;
  /// Returns the smallest number that is at least `number`; UINT64_MAX if there is none.
  std::uint64_t next(std::uint64_t number) const noexcept;
  /// Calls use(number) for each number, in ascending order.
  template <class Use>
  void for_each(Use&& use) const {
    for (std::size_t b = head_; b < blocks_.size(); ++b)
      for (std::uint64_t n = blocks_[b].first; n < blocks_[b].end; ++n)
        if (blocks_[b].has(n)) use(n);
  }
  std::uint64_t memory_bytes() const noexcept;

 private:
  static constexpr std::uint64_t kBlock = 4096;  ///< numbers that a block may have

  /// Numbers with the same n / kBlock.
  struct Block {
    std::uint64_t first, end;  ///< all numbers are from `first` to before `end`
    std::uint64_t count;
    std::unique_ptr<std::uint64_t[]> bits;  ///< null: the block has all these numbers
    bool has(std::uint64_t n) const noexcept {
      return bits == nullptr || (bits[n % kBlock / 64] >> n % 64 & 1) != 0;
    }
  };
  static void set_bits(std::uint64_t* bits, std::uint64_t first, std::uint64_t end) noexcept;
  void append(std::uint64_t first, std::uint64_t count);
  void make_bits(Block& b);
  void count_in(std::size_t block, std::int64_t by) noexcept;
  void drop_empty();

  std::vector<Block> blocks_;  ///< in ascending order; those before head_ are empty
  std::size_t head_ = 0;
  /// Sums of blocks_[].count, as a Fenwick tree: sums_[i] is that of the blocks from i + 1 - (lowest bit of
  /// i + 1) to i.
  std::vector<std::uint64_t> sums_;
  std::uint64_t size_ = 0, bit_bytes_ = 0;
};

}  // namespace lmdbio::records
