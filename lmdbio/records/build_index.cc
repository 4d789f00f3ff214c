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
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/records/dup_trees.h"
#include "lmdbio/records/index_packer.h"
#include "lmdbio/records/scan_leaf.h"
#include "lmdbio/records/tree_reads.h"

namespace lmdbio::records {
namespace {

/// A thread takes leaf pages in chunks.  A chunk has at most kChunkPages pages and about kChunkBytes of rows.
/// A finished chunk stays in memory until all chunks before it are finished.
constexpr std::uint64_t kChunkBytes = 8 << 20, kChunkPages = 1 << 14, kLeastChunkPages = 1 << 10;
/// If leaf pages are not in key order, each chunk is spread over the whole file.  The build then uses fewer
/// and larger chunks.
constexpr std::uint64_t kScatteredBytes = 32 << 20, kScatteredPages = 1 << 19;
constexpr unsigned kMostThreads = 4;
/// A chunk takes at most one kChunkShare-th of the process's memory.
constexpr std::uint64_t kChunkShare = 32;
/// Bytes per leaf page while the build finds leaf pages.
constexpr std::uint64_t kFoundBytes = 24;

unsigned processors() noexcept {
  cpu_set_t set;
  const int n = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return n > 0 ? static_cast<unsigned>(n) : 1;
}

/// Returns the maximum number of records in a leaf page without duplicates.
std::uint64_t most_records(std::size_t page_size) noexcept {
  return page_size / (format::kNodeHeader + sizeof(std::uint16_t));
}

/// One build of an index: finds the leaf pages, and reads them with several threads.
class Build {
 public:
  Build(const IndexRequest& request, IndexProblem& problem) noexcept
      : request_(request), problem_(problem), state_(request, problem) {}

  Status run(RecordIndex& out, TakenMemory* taken);
  const IndexReads& reads() const noexcept { return reads_; }

 private:
  Status corrupted(std::uint64_t page, const char* format, auto... values) noexcept {
    tell_problem(problem_, page, format, values...);
    return Status::from_mdb(MDB_CORRUPTED);
  }
  Status find_leaves(TreeReads& reads);
  std::uint64_t choose_chunk() noexcept;
  Status read_leaves(TreeReads& own);

  // Several threads call the functions below.
  static void* helper(void* self) noexcept;
  void work(TreeReads& reads) noexcept;
  Status read_chunk(TreeReads& reads, std::size_t which, std::unique_ptr<Chunk> chunk);

  const IndexRequest& request_;
  IndexProblem& problem_;
  BuildState state_;
  std::vector<std::uint64_t> leaves_;  ///< leaf pages of the part
  std::uint64_t chunk_pages_ = 1;
  std::uint64_t records_each_ = 1;  ///< records per leaf page, estimated
  std::uint64_t leaf_bytes_ = 1;    ///< bytes that a leaf page takes in a chunk, estimated
  TakenMemory leaves_taken_;
  std::atomic<std::size_t> next_{0};  ///< the next chunk to read

  std::mutex mutex_;  ///< guards the members below
  std::vector<std::unique_ptr<Chunk>> ready_;
  std::size_t appended_ = 0;
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
  if (!in_file(state_.facts(), root))
    return corrupted(root, "the root is not in the file, which has %" PRIu64 " pages", request_.file_pages);
  if (r.depth == 0 || r.depth > format::kMaxDepth)
    return corrupted(root, "the record gives the tree a depth of %u", unsigned{r.depth});
  // If the record is damaged, its number of leaf pages may exceed the number of pages in the file.
  const std::uint64_t leaves = std::min<std::uint64_t>(r.leaf_pages, request_.file_pages);
  if (!leaves_taken_.take(request_.memory, MemoryUse::index, leaves * kFoundBytes, Urgency::last,
                          request_.cancelled))
    return Status::from_errno(ENOMEM);
  TreeReads reads(state_, true);
  Status st = find_leaves(reads);
  if (st.ok()) leaves_taken_.count(request_.memory, MemoryUse::index, leaves_.size() * sizeof leaves_[0]);
  if (st.ok()) st = read_leaves(reads);
  if (!st.ok()) return st;
  const bool whole = request_.parts == 1;
  // The missing records must fit into the damaged pages.
  const std::uint64_t most_damaged =
      state_.facts().dupsort ? UINT64_MAX : packer_.damaged_pages() * most_records(state_.facts().page_size);
  if (packer_.damaged_pages() != 0 &&
      (r.entries - packer_.totals.records > most_damaged || !packer_.place_damaged(r.entries))) {
    return corrupted(
        root, "number of entries: %" PRIu64 " in the record, %" PRIu64 " in undamaged pages of the tree",
        r.entries, packer_.totals.records);
  }
  problem_ = state_.damage();
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

// Reads the branch pages level by level.
Status Build::find_leaves(TreeReads& reads) {
  std::vector<std::uint64_t> level{format::raw(request_.record.root)};
  for (unsigned depth = request_.record.depth; depth > 1; --depth) {
    std::vector<std::uint64_t> below;
    std::vector<Range> by_branch;
    if (const Status st = reads.read_branches(level, below, by_branch); !st.ok())
      return state_.first_error(st);
    if (request_.part == 0) packer_.totals.branch_pages += level.size();
    level = std::move(below);
    if (level.size() > request_.file_pages)
      return corrupted(format::raw(request_.record.root), "the tree has more pages than the file");
  }
  records_each_ = std::clamp<std::uint64_t>(request_.record.entries / level.size() + 1, 1,
                                            most_records(state_.facts().page_size));
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

// Returns the number of leaf pages per chunk, and sets leaf_bytes_.
std::uint64_t Build::choose_chunk() noexcept {
  std::uint64_t back = 0;
  for (std::size_t i = 1; i < leaves_.size(); ++i) back += leaves_[i] < leaves_[i - 1];
  const bool scattered = back > leaves_.size() / 16;
  std::uint64_t each = sizeof(WantedPage) + sizeof(Range) + sizeof(BlockRow);
  if (request_.record.overflow_pages != 0) each += records_each_ * sizeof(RunRow);
  if (state_.facts().dupsort) each += records_each_ * sizeof(DupTree);
  leaf_bytes_ = each;
  if (request_.chunk_pages != 0) return request_.chunk_pages;
  std::uint64_t bytes = scattered ? kScatteredBytes : kChunkBytes;
  if (request_.memory != nullptr) bytes = std::min(bytes, request_.memory->limit() / kChunkShare);
  return std::clamp(bytes / each, kLeastChunkPages, scattered ? kScatteredPages : kChunkPages);
}

Status Build::read_leaves(TreeReads& own) {
  const std::uint64_t leaves = leaves_.size();
  if (leaves == 0) return {};  // a part of a small tree may be empty
  state_.set_leaves(leaves);
  chunk_pages_ = choose_chunk();
  const auto chunks = static_cast<std::size_t>((leaves + chunk_pages_ - 1) / chunk_pages_);
  ready_.resize(chunks);
  const std::size_t most = request_.threads != 0 ? request_.threads : std::min(processors(), kMostThreads);
  std::vector<pthread_t> helpers;
  helpers.reserve(most);  // push_back() must not throw, because each thread must be joined
  while (helpers.size() + 1 < std::min(most, chunks)) {
    pthread_t thread;
    if (request_.file->base().start_thread(thread, helper, this) != 0) break;  // continue with fewer threads
    helpers.push_back(thread);
  }
  work(own);
  for (const pthread_t t : helpers) (void)::pthread_join(t, nullptr);
  const std::lock_guard lock(mutex_);
  const IndexReads mine = own.reads();
  reads_.requests += mine.requests;
  reads_.bytes += mine.bytes;
  reads_.direct = reads_.direct || mine.direct;
  reads_.threads = static_cast<unsigned>(helpers.size() + 1);
  packer_.totals.leaf_pages += leaves;
  return state_.first_error();
}

void* Build::helper(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-index");
  Build& build = *static_cast<Build*>(self);
  TreeReads reads(build.state_, false);
  build.work(reads);
  const std::lock_guard lock(build.mutex_);
  build.reads_.requests += reads.reads().requests;
  build.reads_.bytes += reads.reads().bytes;
  return nullptr;
}

void Build::work(TreeReads& reads) noexcept {
  try {
    // A helper that gets no buffers ends, and the other threads read its pages.
    if (!reads.is_caller() && !reads.prepare({leaves_[0], 0})) return;
    while (reads.go_on()) {
      // If there is no memory for the chunk, a helper ends, but the caller's thread continues.
      auto chunk = std::make_unique<Chunk>();
      const std::uint64_t bytes = std::min<std::uint64_t>(chunk_pages_, leaves_.size()) * leaf_bytes_;
      if (!chunk->taken.take(request_.memory, MemoryUse::index, bytes, Urgency::ahead)) {
        if (!reads.is_caller()) return;
        chunk->taken.count(request_.memory, MemoryUse::index, bytes);
      }
      const std::size_t which = next_.fetch_add(1, std::memory_order_relaxed);
      if (which >= ready_.size()) return;
      if (const Status st = read_chunk(reads, which, std::move(chunk)); !st.ok()) {
        (void)state_.fail(st, {});
        return;
      }
    }
  } catch (...) {
    (void)state_.fail(Status::from_errno(ENOMEM), {});
  }
}

Status Build::read_chunk(TreeReads& reads, std::size_t which, std::unique_ptr<Chunk> chunk) {
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
        reads.read(wanted, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
          Range& r = chunk->by_leaf[w.index];
          Rows& rows = chunk->rows;
          r.begin = rows.blocks.size();
          const std::size_t runs = rows.runs.size(), trees = rows.trees.size();
          bool good = scan_leaf(state_.facts(), w.page, page, rows, problem);
          if (!good && request_.tolerant) {
            rows.blocks.resize(r.begin);
            rows.runs.resize(runs);
            rows.trees.resize(trees);
            BlockRow row;
            row.leaf = w.page;
            row.slot = no_slot(state_.facts().page_size);
            row.kind = BlockKind::counted;
            row.damaged = true;
            rows.blocks.push_back(row);
            state_.note_damage(problem);
            good = true;
          }
          r.end = rows.blocks.size();
          state_.count_leaf();
          return good;
        });
    if (!st.ok()) return st;
  }
  if (!chunk->rows.trees.empty())
    if (const Status st = read_dup_trees(reads, *chunk); !st.ok()) return st;
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

}  // namespace

Status build_index(const IndexRequest& request, RecordIndex& out, IndexProblem& problem, IndexReads* reads,
                   TakenMemory* taken) noexcept {
  problem = {};
  if (!is_power_of_two(request.page_size) || request.page_size < format::kMinPageSize ||
      request.page_size > format::max_page_size(request.version) ||
      request.file_pages > INT64_MAX / request.page_size)
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
