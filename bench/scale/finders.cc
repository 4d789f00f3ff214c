#include "bench/scale/finders.h"

#include <lmdb.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <string>
#include <utility>

#include "bench/common.h"
#include "lmdbio/format/layout_09.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::bench {

namespace {

using format::PageView;
using format::Pgno;

/// Pages that are read together, each with one request.
class Pages {
 public:
  Pages() = default;
  Pages(Storage& storage, std::size_t page_size, const std::vector<std::uint64_t>& numbers)
      : page_size_(page_size),
        room_(std::max(page_size, Storage::kAlignment)),
        bytes_(allocate(room_ * std::max<std::size_t>(numbers.size(), 1))) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      storage.start({numbers[i] * page_size, page_size}, bytes_.get() + i * room_);
    storage.wait();
  }
  PageView view(std::size_t i, std::uint64_t number) const {
    PageView page;
    if (!PageView::open(lmdbio::format::Version::v09, bytes_.get() + i * room_, page_size_, Pgno{number},
                        page))
      die("page %" PRIu64 " is damaged", number);
    return page;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  static std::byte* allocate(std::size_t bytes) {
    void* const p = std::aligned_alloc(Storage::kAlignment, bytes);
    if (p == nullptr) die("out of memory");
    return static_cast<std::byte*>(p);
  }
  std::size_t page_size_ = 0, room_ = 0;
  std::unique_ptr<std::byte, Free> bytes_;
};

/// The main database, read without LMDB.
struct Tree {
  std::size_t page_size = 0;
  std::uint64_t records = 0;
  std::vector<std::uint64_t> leaves;  ///< leaf pages, in key order

  explicit Tree(Storage& storage) {
    const format::MetaRecord meta = read_metas(storage);
    const format::DbRecord& db = meta.dbs[1];
    if ((db.flags & MDB_DUPSORT) != 0) die("databases with MDB_DUPSORT are not for this strategy");
    page_size = format::page_size(meta);
    if (page_size % Storage::kAlignment != 0)
      die("pages of %zu bytes are not for direct requests", page_size);
    records = db.entries;
    if (records == 0) return;
    leaves = {static_cast<std::uint64_t>(db.root)};
    for (unsigned level = 1; level < db.depth; ++level) {
      const Pages pages(storage, page_size, leaves);
      std::vector<std::uint64_t> below;
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        const PageView page = pages.view(i, leaves[i]);
        for (unsigned n = 0; n < page.count(); ++n) {
          format::Node node;
          if (!page.is_branch() || !page.node(n, node)) die("page %" PRIu64 " is damaged", leaves[i]);
          below.push_back(static_cast<std::uint64_t>(node.child()));
        }
      }
      leaves = std::move(below);
    }
  }

  Place place(const PageView& page, std::uint64_t number, unsigned slot) const {
    format::Node node;
    if (!page.is_leaf() || page.is_leaf2() || !page.node(slot, node))
      die("page %" PRIu64 " is damaged", number);
    if ((node.flags() & format::kDupData) != 0) die("duplicates are not for this strategy");
    if ((node.flags() & format::kBigData) != 0)
      return {static_cast<std::uint64_t>(node.overflow()) * page_size + format::kPageHeader,
              node.data_size()};
    return {number * page_size + static_cast<std::uint64_t>(node.data() - page.bytes()), node.data_size()};
  }

 private:
  static format::MetaRecord read_metas(Storage& storage) {
    const std::size_t most = std::min<std::uint64_t>(storage.bytes(), 2 * format::kMaxPageSize);
    std::unique_ptr<std::byte, decltype(&std::free)> bytes(
        static_cast<std::byte*>(std::aligned_alloc(Storage::kAlignment, (most + 8191) / 4096 * 4096)),
        &std::free);
    storage.start({0, most}, bytes.get());
    storage.wait();
    auto newest = format::parse_meta({bytes.get(), format::kMetaBytes});
    if (!newest) die("not an LMDB file");
    const std::size_t page = format::page_size(newest.value());
    if (page + format::kMetaBytes > most) die("not an LMDB file");
    if (const auto other = format::parse_meta({bytes.get() + page, format::kMetaBytes});
        other && other.value().txnid > newest.value().txnid)
      return other.value();
    return newest.value();
  }
};

class DirectWalk final : public Finder {
 public:
  explicit DirectWalk(Storage& storage) : storage_(storage), tree_(storage) {}
  std::uint64_t records() const override { return tree_.records; }

  std::vector<Place> find(Window window, const std::vector<std::uint64_t>& ordinals) override {
    if (window.first == 0) next_leaf_ = 0, first_ = end_ = 0;
    std::vector<Place> places;
    places.reserve(ordinals.size());
    auto next = ordinals.begin();
    for (std::uint64_t o = window.first; o < window.end(); ++o) {
      while (o >= end_) step(window.end() - o);
      if (next == ordinals.end() || *next != o) continue;
      places.push_back(tree_.place(page_, number_, static_cast<unsigned>(o - first_)));
      ++next;
    }
    return places;
  }

 private:
  /// Goes to the next leaf page.  If that page has not been read yet, reads the leaf pages that the window
  /// still needs, at most 64.  The estimate assumes that each page has as many records as the last one.
  void step(std::uint64_t needed) {
    if (at_ == numbers_.size() || next_leaf_ == 0) {
      const std::uint64_t n = end_ == first_ ? 1 : std::max<std::uint64_t>(needed / (end_ - first_), 1);
      numbers_.clear();
      for (std::uint64_t i = 0; i < std::min<std::uint64_t>(n, 64) && next_leaf_ + i < tree_.leaves.size();
           ++i)
        numbers_.push_back(tree_.leaves[next_leaf_ + i]);
      if (numbers_.empty()) die("the leaf pages have fewer records than the database");
      pages_ = Pages(storage_, tree_.page_size, numbers_);
      at_ = 0;
    }
    number_ = numbers_[at_];
    page_ = pages_.view(at_, number_);
    ++at_;
    ++next_leaf_;
    first_ = end_;
    end_ += page_.count();
  }

  Storage& storage_;
  const Tree tree_;
  std::uint64_t next_leaf_ = 0;
  std::vector<std::uint64_t> numbers_;  ///< page numbers of pages_
  Pages pages_;
  std::size_t at_ = 0;
  PageView page_ = PageView::none();
  std::uint64_t number_ = 0, first_ = 0, end_ = 0;  ///< page_: its number, and its records [first_, end_)
};

class Guess final : public Finder {
 public:
  Guess(Storage& storage, MPI_Comm readers) : storage_(storage), readers_(readers), tree_(storage) {
    if (tree_.records == 0) return;
    const Pages first(storage_, tree_.page_size, {tree_.leaves[0]});
    each_ = std::max(first.view(0, tree_.leaves[0]).count(), 1u);
  }
  std::uint64_t records() const override { return tree_.records; }
  std::uint64_t wrong_guesses() const override { return wrong_; }

  std::vector<Place> find(Window, const std::vector<std::uint64_t>& ordinals) override {
    std::vector<Place> places;
    if (firsts_.empty()) {
      int right = guessed(ordinals, places) ? 1 : 0;
      MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, readers_);
      if (right != 0) return places;
      ++wrong_;
      count_all();
    }
    places.clear();
    std::vector<std::uint64_t> leaves;
    for (const std::uint64_t o : ordinals)
      if (const std::uint64_t leaf = leaf_of(o); leaves.empty() || leaves.back() != leaf)
        leaves.push_back(leaf);
    read(leaves, [&](std::uint64_t leaf, const PageView& page, std::uint64_t number) {
      for (auto o = std::lower_bound(ordinals.begin(), ordinals.end(), firsts_[leaf]);
           o != ordinals.end() && *o < firsts_[leaf + 1]; ++o)
        places.push_back(tree_.place(page, number, static_cast<unsigned>(*o - firsts_[leaf])));
      return true;
    });
    return places;
  }

 private:
  std::uint64_t leaf_of(std::uint64_t ordinal) const {
    return static_cast<std::uint64_t>(std::upper_bound(firsts_.begin(), firsts_.end(), ordinal) -
                                      firsts_.begin()) -
           1;
  }
  template <class Use>
  bool read(const std::vector<std::uint64_t>& leaves, Use&& use) {
    std::vector<std::uint64_t> numbers;
    for (const std::uint64_t leaf : leaves) numbers.push_back(tree_.leaves[leaf]);
    const Pages pages(storage_, tree_.page_size, numbers);
    bool right = true;
    for (std::size_t i = 0; i < leaves.size(); ++i)
      right = use(leaves[i], pages.view(i, numbers[i]), numbers[i]) && right;
    return right;
  }
  // Reads the leaf pages in which this reader's records are expected, and checks the guess.
  bool guessed(const std::vector<std::uint64_t>& ordinals, std::vector<Place>& places) {
    std::vector<std::uint64_t> leaves;
    for (const std::uint64_t o : ordinals) {
      const std::uint64_t leaf = o / each_;
      if (leaf >= tree_.leaves.size()) return false;
      if (leaves.empty() || leaves.back() != leaf) leaves.push_back(leaf);
    }
    auto next = ordinals.begin();
    return read(leaves, [&](std::uint64_t leaf, const PageView& page, std::uint64_t number) {
      const std::uint64_t due =
          leaf + 1 == tree_.leaves.size() ? tree_.records - leaf * each_ : std::uint64_t{each_};
      if (!page.is_leaf() || page.count() != due) return false;
      for (; next != ordinals.end() && *next / each_ == leaf; ++next)
        places.push_back(tree_.place(page, number, static_cast<unsigned>(*next % each_)));
      return true;
    });
  }
  void count_all() {
    int rank = 0, ranks = 1;
    MPI_Comm_rank(readers_, &rank);
    MPI_Comm_size(readers_, &ranks);
    const std::uint64_t n = tree_.leaves.size();
    std::vector<std::uint64_t> counts(n);
    constexpr std::uint64_t kTogether = 256;
    const std::uint64_t begin = n * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(ranks);
    const std::uint64_t end = n * static_cast<std::uint64_t>(rank + 1) / static_cast<std::uint64_t>(ranks);
    for (std::uint64_t at = begin; at < end; at += kTogether) {
      std::vector<std::uint64_t> leaves;
      for (std::uint64_t leaf = at; leaf < std::min(end, at + kTogether); ++leaf) leaves.push_back(leaf);
      read(leaves, [&](std::uint64_t leaf, const PageView& page, std::uint64_t) {
        counts[leaf] = page.count();
        return true;
      });
    }
    MPI_Allreduce(MPI_IN_PLACE, counts.data(), static_cast<int>(n), MPI_UINT64_T, MPI_SUM, readers_);
    firsts_.assign(1, 0);
    for (const std::uint64_t c : counts) firsts_.push_back(firsts_.back() + c);
  }

  Storage& storage_;
  const MPI_Comm readers_;
  const Tree tree_;
  unsigned each_ = 1;                  ///< guessed number of records of a leaf page
  std::vector<std::uint64_t> firsts_;  ///< first record of each leaf page; empty if no guess was wrong
  std::uint64_t wrong_ = 0;
};

class CursorWalk final : public Finder {
 public:
  explicit CursorWalk(std::unique_ptr<LmdbAccess> lmdb) : lmdb_(std::move(lmdb)) {}

  std::uint64_t records() const override { return lmdb_->records(); }
  LmdbAccess* lmdb() override { return lmdb_.get(); }
  std::vector<Place> find(Window window, const std::vector<std::uint64_t>& ordinals) override {
    std::vector<Place> places;
    places.reserve(ordinals.size());
    for (const std::uint64_t o : ordinals) places.push_back(lmdb_->step_to(o));
    if (ordinals.empty() || ordinals.back() + 1 != window.end()) (void)lmdb_->step_to(window.end() - 1);
    return places;
  }

 private:
  const std::unique_ptr<LmdbAccess> lmdb_;
};

}  // namespace

std::unique_ptr<Finder> cursor_walk(std::unique_ptr<LmdbAccess> lmdb) {
  return std::make_unique<CursorWalk>(std::move(lmdb));
}
std::unique_ptr<Finder> direct_walk(Storage& storage) { return std::make_unique<DirectWalk>(storage); }
std::unique_ptr<Finder> guess(Storage& storage, MPI_Comm readers) {
  return std::make_unique<Guess>(storage, readers);
}

}  // namespace lmdbio::bench
