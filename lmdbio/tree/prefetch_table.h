// The table of the keys that a transaction has prefetched.  No I/O.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lmdbio/format/compare.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/window/value_arena.h"

namespace lmdbio::tree {

/// Identifies a tree as it was when a key was prefetched.  A changed tree may have other values.
struct PrefetchedTree {
  MDB_dbi dbi = 0;
  std::uint64_t root = 0;
  unsigned flags = 0;
  format::Comparator order;
  bool is(const PrefetchedTree& t) const noexcept {
    return dbi == t.dbi && root == t.root && flags == t.flags && order.order == t.order.order &&
           order.user == t.order.user;
  }
};

/// The result of a prefetch for one key.
struct PrefetchedKey {
  enum class Kind : unsigned char {
    gone,    ///< the lookup searches the tree
    absent,  ///< the tree has no such key
    arena,   ///< the value is in a slab
    cached,  ///< the value is in the page cache, or on its way
  };
  Kind kind = Kind::gone;
  bool given_out = false;
  std::uint32_t bytes = 0;   ///< of the value
  std::size_t tree = 0;      ///< number of the tree, from number_of()
  std::uint64_t number = 0;  ///< number of the key, in the order of add()
  std::uint64_t page = 0;    ///< first page of the overflow run
  window::ValueArena::Slab* slab = nullptr;
  std::uint64_t use = 0;  ///< Slab::use when the value was put there
  std::size_t at = 0;     ///< offset of the run in the slab
  window::ValueArena::Read* read = nullptr;
  std::shared_ptr<ReadGroup> group;
};

/// The prefetched keys of one transaction.  One thread at a time.  Pointers to keys stay valid until add(),
/// which may drop the oldest keys, and until clear().
class PrefetchTable {
 public:
  /// Upper limit on the keys in the table.
  static constexpr std::size_t kMostKeys = std::size_t{1} << 16;

  /// Returns the result for `key` in this tree, or nullptr if there is none.
  PrefetchedKey* find(const PrefetchedTree& tree, const MDB_val& key) noexcept;
  /// Returns the number of `tree` for add(), and adds the tree if it is new.  May throw bad_alloc.
  std::size_t number_of(const PrefetchedTree& tree);
  /// Adds `key` as the youngest, with Kind::gone; the caller sets the kind.  Drops the oldest keys if there
  /// are too many.  `tree`: from number_of().  May throw bad_alloc; then the key is in the table only if it
  /// was there before.
  PrefetchedKey& add(std::size_t tree, const MDB_val& key);
  std::size_t size() const noexcept { return table_.size(); }
  template <class F>
  void for_each(F&& f) noexcept {
    for (auto& [key, known] : table_) f(known);
  }
  void clear() noexcept;

 private:
  struct KeyRef {
    MDB_dbi dbi;
    std::string_view bytes;
  };
  struct Key {
    MDB_dbi dbi;
    std::string bytes;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const KeyRef& k) const noexcept {
      return std::hash<std::string_view>{}(k.bytes) + k.dbi * std::size_t{0x9E3779B97F4A7C15u};
    }
    std::size_t operator()(const Key& k) const noexcept { return (*this)(KeyRef{k.dbi, k.bytes}); }
  };
  struct Same {
    using is_transparent = void;
    static KeyRef ref(const Key& k) noexcept { return {k.dbi, k.bytes}; }
    static KeyRef ref(const KeyRef& k) noexcept { return k; }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const noexcept {
      return ref(a).dbi == ref(b).dbi && ref(a).bytes == ref(b).bytes;
    }
  };
  using Table = std::unordered_map<Key, PrefetchedKey, Hash, Same>;
  struct Queued {
    Table::value_type* item;
    std::uint64_t number;
  };
  void drop_oldest() noexcept;

  Table table_;
  std::deque<Queued> order_;  ///< entries of table_ in the order of add()
  std::vector<PrefetchedTree> trees_;
  std::uint64_t added_ = 0;  ///< number of add() calls
};

}  // namespace lmdbio::tree
