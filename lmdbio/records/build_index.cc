#include "lmdbio/records/build_index.h"

#include <lmdb.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/records/index_packer.h"
#include "lmdbio/records/page_reads.h"
#include "lmdbio/records/scan_leaf.h"

namespace lmdbio::records {
namespace {

/// A thread takes leaf pages in chunks of at most kChunkPages pages, about kChunkBytes of rows.  A finished
/// chunk stays in memory until all chunks before it are finished.
constexpr std::uint64_t kChunkBytes = 8 << 20, kChunkPages = 1 << 14, kLeastChunkPages = 1 << 10;
/// If leaf pages do not lie in key order, each chunk is spread over the whole file.  The chunks are fewer
/// and larger then.
constexpr std::uint64_t kScatteredBytes = 32 << 20, kScatteredPages = 1 << 19;
constexpr unsigned kMostThreads = 4;
/// A chunk takes at most this fraction of the process's memory.
constexpr std::uint64_t kChunkShare = 32;
/// Bytes per leaf page while the build finds leaf pages.
constexpr std::uint64_t kFoundBytes = 24;

unsigned processors() noexcept {
  cpu_set_t set;
  const int n = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return n > 0 ? static_cast<unsigned>(n) : 1;
}

/// Returns how many records fit at most into a leaf page without duplicates.
std::uint64_t most_records(std::size_t page_size) noexcept {
  return page_size / (format::kNodeHeader + sizeof(std::uint16_t));
}

Status cancelled() noexcept { return Status::from_errno(ECANCELED); }

/// Sets the record counts of damaged leaf pages in a tree of `entries` duplicates.  All pages from the
/// first to the last damaged one count as damaged.  Their records get page `no_page`, which no tree can
/// have, so that reads of them fail.  Returns false if there are too many entries, or too few.
bool place_damaged_dups(std::span<BlockRow> leaves, std::uint64_t entries, std::uint64_t no_page) noexcept {
  const auto is_damaged = [](const BlockRow& r) { return r.damaged; };
  const auto first = std::find_if(leaves.begin(), leaves.end(), is_damaged);
  if (first == leaves.end()) return true;
  auto last = first;
  std::uint64_t known = 0;
  for (auto leaf = leaves.begin(); leaf != leaves.end(); ++leaf) {
    known += leaf->records;
    if (leaf->damaged) last = leaf;
  }
  std::uint64_t missing = entries - known;
  for (auto leaf = first; leaf <= last; ++leaf) missing += leaf->records;
  const auto pages = static_cast<std::uint64_t>(last - first) + 1;
  if (known > entries || missing < pages || missing - pages >= UINT32_MAX) return false;
  for (auto leaf = first; leaf <= last; ++leaf) {
    leaf->records = leaf == first ? static_cast<std::uint32_t>(missing - (pages - 1)) : 1;
    leaf->where = no_page;
    leaf->damaged = false;
  }
  return true;
}

/// One build: the state that its threads share.
class Build {
 public:
  Build(const IndexRequest& request, IndexProblem& problem) noexcept : request_(request), problem_(problem) {
    facts_.page_size = request.page_size;
    facts_.file_pages = request.file_pages;
    facts_.dupsort = (request.record.flags & MDB_DUPSORT) != 0;
    facts_.dupfixed = facts_.dupsort && (request.record.flags & MDB_DUPFIXED) != 0;
  }

  Status run(RecordIndex& out, TakenMemory* taken);
  const IndexReads& reads() const noexcept { return reads_; }

 private:
  Status corrupted(std::uint64_t page, const char* format, auto... values) noexcept {
    tell_problem(problem_, page, format, values...);
    return Status::from_mdb(MDB_CORRUPTED);
  }
  Status find_leaves(PageReads& reads);
  std::uint64_t choose_chunk() noexcept;
  Status read_leaves(PageReads& own);

  // Called by several threads.
  static void* helper(void* self) noexcept;
  void work(PageReads& reads, bool caller) noexcept;
  Status read_chunk(PageReads& reads, std::size_t which, std::unique_ptr<Chunk> chunk, bool caller);
  Status read_dup_trees(PageReads& reads, Chunk& chunk, bool caller);
  Status expand(PageReads& reads, std::span<const std::uint64_t> pages, std::vector<std::uint64_t>& children,
                std::vector<Range>& by_page, bool caller);
  template <class Take>
  Status read(PageReads& reads, std::vector<WantedPage>& wanted, bool caller, Take&& take);
  bool go_on(bool caller) noexcept;
  void fail(Status st, const IndexProblem& problem) noexcept;
  void note_damage(const IndexProblem& problem) noexcept;

  const IndexRequest& request_;
  IndexProblem& problem_;
  TreeFacts facts_;
  std::vector<std::uint64_t> leaves_;  ///< of the part
  std::uint64_t chunk_pages_ = 1;
  std::uint64_t records_each_ = 1;  ///< records per leaf page, estimated
  std::uint64_t leaf_bytes_ = 1;    ///< bytes that a leaf page takes in a chunk, estimated
  TakenMemory leaves_taken_;
  std::atomic<std::uint64_t> pages_{0};  ///< pages of all trees so far
  std::atomic<std::uint64_t> done_{0};   ///< leaf pages read
  std::atomic<std::size_t> next_{0};     ///< the next chunk to read
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  ///< guards the members below
  Status status_;
  std::vector<std::unique_ptr<Chunk>> ready_;
  std::size_t appended_ = 0;
  IndexProblem damage_;  ///< damage that was tolerated
  IndexPacker packer_;
  TakenMemory packer_taken_;
  IndexReads reads_;
};

Status Build::run(RecordIndex& out, TakenMemory* taken) {
  const format::DbRecord& r = request_.record;
  if (r.root == format::kNoPage) {
    if (r.entries != 0) return corrupted(0, "the record gives %" PRIu64 " entries, but no tree", r.entries);
    out = packer_.finish();
    return {};
  }
  const std::uint64_t root = format::raw(r.root);
  if (!in_file(facts_, root))
    return corrupted(root, "the root is not in the file, which has %" PRIu64 " pages", request_.file_pages);
  if (r.depth == 0 || r.depth > format::kMaxDepth)
    return corrupted(root, "the record gives the tree a depth of %u", unsigned{r.depth});
  // A damaged record may give more leaf pages than the file has pages.
  const std::uint64_t leaves = std::min<std::uint64_t>(r.leaf_pages, request_.file_pages);
  if (!leaves_taken_.take(request_.memory, MemoryUse::index, leaves * kFoundBytes, Urgency::last,
                          request_.cancelled))
    return Status::from_errno(ENOMEM);
  PageReads reads(request_);
  Status st = find_leaves(reads);
  if (st.ok()) leaves_taken_.count(request_.memory, MemoryUse::index, leaves_.size() * sizeof leaves_[0]);
  if (st.ok()) st = read_leaves(reads);
  if (!st.ok()) return st;
  const bool whole = request_.parts == 1;
  // Damaged pages cannot hold more records than they have room for.
  const std::uint64_t most_damaged =
      facts_.dupsort ? UINT64_MAX : packer_.damaged_pages() * most_records(facts_.page_size);
  if (packer_.damaged_pages() != 0 &&
      (r.entries - packer_.totals.records > most_damaged || !packer_.place_damaged(r.entries))) {
    return corrupted(
        root, "number of entries: %" PRIu64 " in the record, %" PRIu64 " in undamaged pages of the tree",
        r.entries, packer_.totals.records);
  }
  problem_ = damage_;
  if (whole ? packer_.totals.records != r.entries : packer_.totals.records > r.entries)
    return corrupted(root, "number of entries: %" PRIu64 " in the record, %" PRIu64 " in the tree", r.entries,
                     packer_.totals.records);
  out = packer_.finish();
  if (taken != nullptr) {
    *taken = std::move(packer_taken_);
    taken->count(request_.memory, MemoryUse::index, out.memory_bytes());
  }
  return {};
}

// Called between requests.  Returns false if the build has to stop.
bool Build::go_on(bool caller) noexcept {
  if (caller && request_.progress != nullptr &&
      !request_.progress(request_.context, done_.load(std::memory_order_relaxed), leaves_.size()))
    fail(cancelled(), {});
  return !stop_.load(std::memory_order_relaxed);
}

void Build::fail(Status st, const IndexProblem& problem) noexcept {
  const std::lock_guard lock(mutex_);
  stop_.store(true, std::memory_order_relaxed);
  if (!status_.ok()) return;
  status_ = st;
  problem_ = problem;
}

void Build::note_damage(const IndexProblem& problem) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = damage_.damaged;
  if (before == 0) damage_ = problem;
  damage_.damaged = before + 1;
}

// Returns ECANCELED if take() finds damage; status_ then has the error already.
template <class Take>
Status Build::read(PageReads& reads, std::vector<WantedPage>& wanted, bool caller, Take&& take) {
  const auto before = [](const WantedPage& a, const WantedPage& b) { return a.page < b.page; };
  if (!std::is_sorted(wanted.begin(), wanted.end(), before)) std::sort(wanted.begin(), wanted.end(), before);
  if (wanted.empty()) return {};
  if (pages_.fetch_add(wanted.size(), std::memory_order_relaxed) + wanted.size() > request_.file_pages) {
    IndexProblem problem;
    tell_problem(problem, format::raw(request_.record.root), "the tree has more pages than the file");
    fail(Status::from_mdb(MDB_CORRUPTED), problem);
    return cancelled();
  }
  if (const Status st = reads.prepare(wanted); !st.ok()) return st;
  IndexProblem problem;
  return reads.read(
      wanted,
      [&](const WantedPage& w, const std::byte* page) {
        if (take(w, page, problem)) return true;
        fail(Status::from_mdb(MDB_CORRUPTED), problem);
        return false;
      },
      [&] { return go_on(caller); });
}

// Reads the children of `pages` into `children`, in the order of `pages`.  `by_page` gets the range of each
// page's children.
Status Build::expand(PageReads& reads, std::span<const std::uint64_t> pages,
                     std::vector<std::uint64_t>& children, std::vector<Range>& by_page, bool caller) {
  std::vector<WantedPage> wanted;
  wanted.reserve(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) wanted.push_back({pages[i], i});
  Rows rows;
  std::vector<Range> came(pages.size());
  const Status st =
      read(reads, wanted, caller, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
        came[w.index].begin = rows.children.size();
        const bool good = scan_branch(facts_, w.page, page, rows, problem);
        came[w.index].end = rows.children.size();
        if (!good || rows.children.size() <= request_.file_pages) return good;
        tell_problem(problem, w.page, "the tree has more pages than the file");
        return false;
      });
  if (!st.ok()) return st;
  children.clear();
  children.reserve(rows.children.size());
  for (Range& r : came) {
    const std::size_t begin = children.size();
    for (std::size_t i = r.begin; i < r.end; ++i) children.push_back(rows.children[i]);
    r = {begin, children.size()};
  }
  by_page = std::move(came);
  return {};
}

Status Build::find_leaves(PageReads& reads) {
  std::vector<std::uint64_t> level{format::raw(request_.record.root)};
  for (unsigned depth = request_.record.depth; depth > 1; --depth) {
    std::vector<std::uint64_t> below;
    std::vector<Range> by_branch;
    const Status st = expand(reads, level, below, by_branch, true);
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    if (!st.ok()) return st;
    if (request_.part == 0) packer_.totals.branch_pages += level.size();
    level = std::move(below);
    if (level.size() > request_.file_pages)
      return corrupted(format::raw(request_.record.root), "the tree has more pages than the file");
  }
  records_each_ = std::clamp<std::uint64_t>(request_.record.entries / level.size() + 1, 1,
                                            most_records(facts_.page_size));
  const auto cut = [&](std::uint64_t part) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::ptrdiff_t>(Wide{level.size()} * part / request_.parts);
  };
  if (request_.parts == 1)
    leaves_ = std::move(level);
  else
    leaves_.assign(level.begin() + cut(request_.part), level.begin() + cut(request_.part + 1));
  return {};
}

// Sets leaf_bytes_, too.
std::uint64_t Build::choose_chunk() noexcept {
  std::uint64_t back = 0;
  for (std::size_t i = 1; i < leaves_.size(); ++i) back += leaves_[i] < leaves_[i - 1];
  const bool scattered = back > leaves_.size() / 16;
  std::uint64_t each = sizeof(WantedPage) + sizeof(Range) + sizeof(BlockRow);
  if (request_.record.overflow_pages != 0) each += records_each_ * sizeof(RunRow);
  if (facts_.dupsort) each += records_each_ * sizeof(DupTree);
  leaf_bytes_ = each;
  if (request_.chunk_pages != 0) return request_.chunk_pages;
  std::uint64_t bytes = scattered ? kScatteredBytes : kChunkBytes;
  if (request_.memory != nullptr) bytes = std::min(bytes, request_.memory->limit() / kChunkShare);
  return std::clamp(bytes / each, kLeastChunkPages, scattered ? kScatteredPages : kChunkPages);
}

Status Build::read_leaves(PageReads& own) {
  const std::uint64_t leaves = leaves_.size();
  if (leaves == 0) return {};  // a part of a small tree may be empty
  chunk_pages_ = choose_chunk();
  const auto chunks = static_cast<std::size_t>((leaves + chunk_pages_ - 1) / chunk_pages_);
  ready_.resize(chunks);
  const std::size_t most = request_.threads != 0 ? request_.threads : std::min(processors(), kMostThreads);
  std::vector<pthread_t> helpers;
  helpers.reserve(most);  // push_back() must not throw: each thread has to be joined
  while (helpers.size() + 1 < std::min(most, chunks)) {
    pthread_t thread;
    if (request_.file->base().start_thread(thread, helper, this) != 0) break;  // go on with fewer threads
    helpers.push_back(thread);
  }
  work(own, true);
  for (const pthread_t t : helpers) (void)::pthread_join(t, nullptr);
  const std::lock_guard lock(mutex_);
  const IndexReads mine = own.reads();
  reads_.requests += mine.requests;
  reads_.bytes += mine.bytes;
  reads_.direct = reads_.direct || mine.direct;
  reads_.threads = static_cast<unsigned>(helpers.size() + 1);
  packer_.totals.leaf_pages += leaves;
  return status_;
}

void* Build::helper(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-index");
  Build& build = *static_cast<Build*>(self);
  PageReads reads(build.request_, false);
  build.work(reads, false);
  const std::lock_guard lock(build.mutex_);
  build.reads_.requests += reads.reads().requests;
  build.reads_.bytes += reads.reads().bytes;
  return nullptr;
}

void Build::work(PageReads& reads, bool caller) noexcept {
  try {
    // A helper without buffers ends: the other threads read its pages.
    if (const WantedPage first{leaves_[0], 0}; !caller && !reads.prepare({&first, 1}).ok()) return;
    while (go_on(caller)) {
      // Without memory for the chunk, a helper ends, but the caller's thread goes on.
      auto chunk = std::make_unique<Chunk>();
      const std::uint64_t bytes = std::min<std::uint64_t>(chunk_pages_, leaves_.size()) * leaf_bytes_;
      if (!chunk->taken.take(request_.memory, MemoryUse::index, bytes, Urgency::ahead)) {
        if (!caller) return;
        chunk->taken.count(request_.memory, MemoryUse::index, bytes);
      }
      const std::size_t which = next_.fetch_add(1, std::memory_order_relaxed);
      if (which >= ready_.size()) return;
      if (const Status st = read_chunk(reads, which, std::move(chunk), caller); !st.ok()) return fail(st, {});
    }
  } catch (...) {
    fail(Status::from_errno(ENOMEM), {});
  }
}

Status Build::read_chunk(PageReads& reads, std::size_t which, std::unique_ptr<Chunk> chunk, bool caller) {
  const std::uint64_t begin = which * chunk_pages_;
  const std::uint64_t count = std::min<std::uint64_t>(chunk_pages_, leaves_.size() - begin);
  chunk->by_leaf.resize(count);
  chunk->rows.blocks.reserve(count);
  if (request_.record.overflow_pages != 0) chunk->rows.runs.reserve(count * records_each_);
  {
    std::vector<WantedPage> wanted;
    wanted.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) wanted.push_back({leaves_[begin + i], i});
    const Status st =
        read(reads, wanted, caller, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
          Range& r = chunk->by_leaf[w.index];
          Rows& rows = chunk->rows;
          r.begin = rows.blocks.size();
          const std::size_t runs = rows.runs.size(), trees = rows.trees.size();
          bool good = scan_leaf(facts_, w.page, page, rows, problem);
          if (!good && request_.tolerant) {
            rows.blocks.resize(r.begin);
            rows.runs.resize(runs);
            rows.trees.resize(trees);
            BlockRow row;
            row.leaf = w.page;
            row.slot = no_slot(facts_.page_size);
            row.kind = BlockKind::counted;
            row.damaged = true;
            rows.blocks.push_back(row);
            note_damage(problem);
            good = true;
          }
          r.end = rows.blocks.size();
          done_.fetch_add(1, std::memory_order_relaxed);
          return good;
        });
    if (!st.ok()) return st;
  }
  if (!chunk->rows.trees.empty())
    if (const Status st = read_dup_trees(reads, *chunk, caller); !st.ok()) return st;
  std::unique_lock lock(mutex_);
  ready_[which] = std::move(chunk);
  for (; appended_ < ready_.size() && ready_[appended_] != nullptr; ++appended_) {
    packer_.append(*ready_[appended_]);
    ready_[appended_].reset();
  }
  packer_taken_.count(request_.memory, MemoryUse::index, packer_.memory_bytes());
  lock.unlock();
  if (request_.memory == nullptr ||
      request_.memory->take_of_readers(MemoryUse::index, 0, Urgency::last, request_.cancelled))
    return {};
  return Status::from_errno(ENOMEM);
}

// Reads all trees of duplicates of the chunk together, level by level.
Status Build::read_dup_trees(PageReads& reads, Chunk& chunk, bool caller) {
  struct Node {
    std::size_t tree;
    std::uint64_t page;
    unsigned below;  ///< levels of branch pages from here down
  };
  const std::vector<DupTree>& trees = chunk.rows.trees;
  const auto wrong = [&](const DupTree& t, const char* format, auto... values) {
    IndexProblem problem;
    tell_problem(problem, t.leaf, format, values...);
    fail(Status::from_mdb(MDB_CORRUPTED), problem);
    return cancelled();
  };
  std::vector<Node> nodes;
  nodes.reserve(trees.size());
  for (std::size_t t = 0; t < trees.size(); ++t) {
    const format::DbRecord& r = trees[t].record;
    nodes.push_back({t, format::raw(r.root), r.depth - 1u});
  }
  for (;;) {
    std::vector<std::uint64_t> branches, children;
    for (const Node& n : nodes)
      if (n.below != 0) branches.push_back(n.page);
    if (branches.empty()) break;
    std::vector<Range> by_branch;
    if (const Status st = expand(reads, branches, children, by_branch, caller); !st.ok()) return st;
    if (children.size() > facts_.file_pages)
      return wrong(trees[0], "trees of duplicates have more pages than the file");
    chunk.branch_pages += branches.size();
    std::vector<Node> next;
    next.reserve(nodes.size() - branches.size() + children.size());
    std::size_t branch = 0;
    for (const Node& n : nodes) {
      if (n.below == 0) {
        next.push_back(n);
        continue;
      }
      const Range r = by_branch[branch++];
      for (std::size_t i = r.begin; i < r.end; ++i) next.push_back({n.tree, children[i], n.below - 1});
    }
    nodes = std::move(next);
  }
  std::vector<WantedPage> wanted;
  wanted.reserve(nodes.size());
  chunk.dups.resize(nodes.size());
  chunk.by_tree.resize(trees.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const DupTree& t = trees[nodes[i].tree];
    BlockRow& row = chunk.dups[i];
    row.leaf = t.leaf;
    row.slot = t.slot;
    row.kind = BlockKind::dups;
    row.where = nodes[i].page;
    wanted.push_back({nodes[i].page, i});
    Range& r = chunk.by_tree[nodes[i].tree];
    if (r.end == 0) r.begin = i;
    r.end = i + 1;
  }
  const Status st =
      read(reads, wanted, caller, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
        const format::DbRecord& r = trees[nodes[w.index].tree].record;
        BlockRow& row = chunk.dups[w.index];
        if (scan_dup_leaf(facts_, r, w.page, page, row.records, problem)) return true;
        if (!request_.tolerant) return false;
        row.damaged = true;
        note_damage(problem);
        return true;
      });
  if (!st.ok()) return st;
  for (std::size_t t = 0; t < trees.size(); ++t) {
    const std::span<BlockRow> leaves(chunk.dups.begin() + static_cast<std::ptrdiff_t>(chunk.by_tree[t].begin),
                                     chunk.dups.begin() + static_cast<std::ptrdiff_t>(chunk.by_tree[t].end));
    if (!place_damaged_dups(leaves, trees[t].record.entries, facts_.file_pages))
      return wrong(trees[t], "entry %u: its tree of duplicates has too many entries for its undamaged pages",
                   unsigned{trees[t].slot});
    std::uint64_t records = 0;
    for (const BlockRow& leaf : leaves) records += leaf.records;
    if (records != trees[t].record.entries)
      return wrong(trees[t],
                   "entry %u: number of duplicates: %" PRIu64 " in the record, %" PRIu64 " in the tree",
                   unsigned{trees[t].slot}, trees[t].record.entries, records);
  }
  return {};
}

}  // namespace

Status build_index(const IndexRequest& request, RecordIndex& out, IndexProblem& problem, IndexReads* reads,
                   TakenMemory* taken) noexcept {
  problem = {};
  if (!is_power_of_two(request.page_size) || request.page_size < format::kMinPageSize ||
      request.page_size > format::kMaxPageSize || request.file_pages > INT64_MAX / request.page_size)
    return Status::from_errno(EINVAL);
  struct User {
    Memory* memory;
    explicit User(Memory* m) noexcept : memory(m) {
      if (memory != nullptr) memory->join(MemoryUse::index);
    }
    ~User() {
      if (memory != nullptr) memory->leave(MemoryUse::index);
    }
  } const user(request.memory.get());
  try {
    Build build(request, problem);
    const Status st = build.run(out, taken);
    if (reads != nullptr) *reads = build.reads();
    return st;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

}  // namespace lmdbio::records
