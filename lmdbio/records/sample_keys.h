// The keys of the samples of a followed database.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/records/chunked.h"

namespace lmdbio::records {

/// A record as it is known between snapshots: its key, and in a database with duplicates its value.
struct SampleKey {
  Bytes key, value;
  friend bool operator==(const SampleKey& a, const SampleKey& b) noexcept;
};

/// The entry of a leaf page in which a record was found, and the number of the snapshot in which it was
/// found.
class SamplePlace {
 public:
  static constexpr std::uint64_t kMostSnapshot = 0xffff;

  SamplePlace() noexcept = default;  ///< not known
  /// From 2^36 pages or 4096 entries on, the place is not known.  `snapshot`: at most kMostSnapshot.
  SamplePlace(std::uint64_t page, unsigned index, std::uint64_t snapshot) noexcept
      : packed_(page >> 36 != 0 || index >> 12 != 0 ? 0
                                                    : page << 28 | std::uint64_t{index} << 16 | snapshot) {}
  bool known() const noexcept { return packed_ != 0; }
  std::uint64_t page() const noexcept { return packed_ >> 28; }
  unsigned index() const noexcept { return static_cast<unsigned>(packed_ >> 16) & 0xfff; }
  std::uint64_t snapshot() const noexcept { return packed_ & kMostSnapshot; }

 private:
  std::uint64_t packed_ = 0;
};

/// A list of keys.  Takes 20 bytes for each, and its bytes.
class KeyList {
 public:
  struct Entry {
    SampleKey key;
    SamplePlace place;
  };
  /// Adds a key, of at most 65,535 bytes, as its value.  Throws bad_alloc; then the list is as before.
  void add(const SampleKey& key, SamplePlace place);
  /// Returns a key, valid as long as this object.
  Entry operator[](std::size_t i) const noexcept;
  std::size_t size() const noexcept { return items_.size(); }
  void set_place(std::size_t i, SamplePlace place) noexcept { items_[i].place = place; }
  std::uint64_t memory_bytes() const noexcept {
    return items_.memory_bytes() + block_bytes_ + blocks_.capacity() * sizeof(blocks_[0]);
  }

 private:
  /// Bytes of a block.  A larger key has a block of its own.
  static constexpr std::size_t kBlock = 16384;

  struct Item {
    std::uint64_t at;  ///< block << 16 | offset of two sizes (2 bytes each), key, value
    SamplePlace place;
  };
  Chunked<Item> items_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::uint64_t block_bytes_ = 0;        ///< of all blocks
  std::size_t used_ = 0, capacity_ = 0;  ///< bytes of the last block
};

/// Keys by the number of their sample.  One thread.  Functions throw bad_alloc.
class SampleKeys {
 public:
  /// Adds a sample.  Numbers must ascend.
  void add(std::uint64_t number, const SampleKey& key, SamplePlace place = {});
  /// Adds a list of samples, from number `first` on, without copying it.  Sample first + i is
  /// keys[shuffle(seed, epoch, keys.size(), i)]; see order.h.  With `epoch` 0, it is keys[i].
  void add(std::uint64_t first, KeyList keys, std::uint64_t seed, std::uint64_t epoch);
  /// Returns the key of a sample, valid until the next call that is not const.  The sample must be known.
  KeyList::Entry get(std::uint64_t number) const noexcept;
  bool knows(std::uint64_t number) const noexcept { return find(number).part != nullptr; }
  std::uint64_t size() const noexcept { return size_; }
  /// Returns the memory that the keys take, in bytes.
  std::uint64_t memory_bytes() const noexcept;
  /// Calls use(number, entry) for each sample, in ascending order.
  template <class Use>
  void for_each(Use&& use) const {
    for (const Part& p : parts_)
      for (std::size_t i = 0; i < p.keys.size(); ++i) use(p.number(i), p.keys[p.index(i)]);
  }
  /// Sets the place of each sample to change(place).
  template <class Change>
  void change_places(Change&& change) {
    for (Part& p : parts_)
      for (std::size_t i = 0; i < p.keys.size(); ++i) p.keys.set_place(i, change(p.keys[i].place));
  }
  /// Forgets all samples that are not in `live`, which must be sorted.
  void keep(std::span<const std::uint64_t> live);
  /// Finds the sample with this key, and does not find it again.  The first call, and the first one after
  /// keep(), walks through all samples.  No two samples that were not taken may have the same key.
  std::optional<std::uint64_t> take(const SampleKey& key);

 private:
  /// Samples that were added one by one, or a list.
  struct Part {
    std::uint64_t first = 0;
    KeyList keys;
    Chunked<std::uint64_t> numbers;  ///< of samples that were added one by one; else empty
    std::uint64_t seed = 0, epoch = 0;

    bool is_list() const noexcept { return numbers.size() == 0; }
    std::uint64_t number(std::size_t i) const noexcept { return is_list() ? first + i : numbers[i]; }
    std::size_t index(std::size_t i) const noexcept;  ///< in keys
  };
  struct Found {
    const Part* part;  ///< null: there is none
    std::size_t i;
  };
  Found find(std::uint64_t number) const noexcept;
  void put(std::uint64_t number, const SampleKey& key);
  void make_table();

  std::vector<Part> parts_;
  std::uint64_t size_ = 0;
  /// A hash table of the keys, made by take(): number + 1 and 16 bits of the hash.  0: free.
  std::vector<std::uint64_t> table_;
  std::uint64_t in_table_ = 0;  ///< cells that are not free
};

}  // namespace lmdbio::records
