// What Intel-Caffe's data reader does with a cursor: its two loops, for rank r of P, written from their
// contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "caffe/util/db.hpp"

namespace lmdbio::testing {

/// The values that one rank of a job gets, one after the other.  It borrows the cursor.
class CaffeReader {
 public:
  CaffeReader(caffe::db::Cursor& cursor, std::uint64_t rank, std::uint64_t ranks)
      : cursor_(cursor), skip_(rank), ranks_(ranks) {}
  virtual ~CaffeReader() = default;

  /// `rank` steps before the first value, and `ranks` steps after each one.
  std::string read_one() {
    for (; skip_ > 0; --skip_) next();
    taken_ = ordinal();
    std::string taken = value();
    for (std::uint64_t i = 0; i < ranks_; ++i) next();
    return taken;
  }

  /// Of the record that read_one() has returned last.
  std::uint64_t taken() const { return taken_; }

 protected:
  caffe::db::Cursor& cursor_;

 private:
  virtual std::string value() = 0;
  virtual void next() = 0;
  virtual std::uint64_t ordinal() const = 0;

  std::uint64_t skip_, taken_ = 0;
  const std::uint64_t ranks_;
};

/// From the last record on to the first one.
class SequentialReader final : public CaffeReader {
 public:
  using CaffeReader::CaffeReader;

 private:
  std::string value() override { return cursor_.value(); }
  void next() override {
    cursor_.Next();
    ++at_;
    if (cursor_.valid()) return;
    cursor_.SeekToFirst();
    at_ = 0;
  }
  std::uint64_t ordinal() const override { return at_; }

  std::uint64_t at_ = 0;
};

/// `shuffle: true`: walks over all records once, and keeps a pointer to each value.  It shuffles the pointers
/// in place, again for each epoch, and all ranks with the same seed.
class ShuffledReader final : public CaffeReader {
 public:
  ShuffledReader(caffe::db::Cursor& cursor, std::uint64_t rank, std::uint64_t ranks, unsigned seed)
      : CaffeReader(cursor, rank, ranks), random_(seed) {
    for (; cursor.valid(); cursor.Next()) {
      ordinals_.push_back(pointers_.size());
      pointers_.push_back(cursor.valuePointer());
    }
    shuffle();
  }

 private:
  std::string value() override {
    if (cursor_.hasTokens()) return cursor_.tokenValue(pointers_[at_].first);
    return {static_cast<const char*>(pointers_[at_].first), static_cast<std::size_t>(pointers_[at_].second)};
  }
  void next() override {
    if (++at_ < pointers_.size()) return;
    shuffle();
    at_ = 0;
  }
  void shuffle() {
    for (std::size_t i = pointers_.size() - 1; i > 0; --i) {
      std::uniform_int_distribution<std::size_t> other(0, i);
      const std::size_t with = other(random_);
      std::swap(pointers_[i], pointers_[with]);
      std::swap(ordinals_[i], ordinals_[with]);
    }
    cursor_.tellOrder(pointers_);
  }

  std::uint64_t ordinal() const override { return ordinals_[at_]; }

  std::vector<std::pair<void*, int>> pointers_;
  std::vector<std::uint64_t> ordinals_;  // of the records that they point to
  std::size_t at_ = 0;
  std::mt19937 random_;
};

/// `seed`: of the shuffles.
inline std::unique_ptr<CaffeReader> caffe_reader(caffe::db::Cursor& cursor, std::uint64_t rank,
                                                 std::uint64_t ranks, bool shuffled, unsigned seed) {
  if (shuffled) return std::make_unique<ShuffledReader>(cursor, rank, ranks, seed);
  return std::make_unique<SequentialReader>(cursor, rank, ranks);
}

}  // namespace lmdbio::testing
