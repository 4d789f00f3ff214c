// Reads the pages of trees for the threads of an index build.
#pragma once

#include <lmdb.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "lmdbio/records/build_index.h"
#include "lmdbio/records/index_packer.h"
#include "lmdbio/records/page_reads.h"
#include "lmdbio/records/scan_leaf.h"

namespace lmdbio::records {

/// State that the threads of one build share: its errors and its progress.  Any thread, except where noted.
class BuildState {
 public:
  /// `request` and `problem` must outlive this object.
  BuildState(const IndexRequest& request, IndexProblem& problem) noexcept;

  const IndexRequest& request() const noexcept { return request_; }
  const TreeFacts& facts() const noexcept { return facts_; }

  /// Stops the build.  Stores the error and the problem, unless the build has failed before.  Returns
  /// ECANCELED, which the calling thread must return.
  Status fail(Status st, const IndexProblem& problem) noexcept;
  /// Calls fail() with MDB_CORRUPTED.  `format` and `values` are arguments of printf.
  Status corrupted(std::uint64_t page, const char* format, auto... values) noexcept {
    IndexProblem problem;
    tell_problem(problem, page, format, values...);
    return fail(Status::from_mdb(MDB_CORRUPTED), problem);
  }
  /// Returns the first error that was reported, or `st` if there was none.
  Status first_error(Status st = {}) const noexcept;
  bool stopped() const noexcept { return stop_.load(std::memory_order_relaxed); }
  /// Counts a damaged page that a tolerant build leaves out.
  void note_damage(const IndexProblem& problem) noexcept;
  /// Returns the damage.  Only after all threads have ended.
  const IndexProblem& damage() const noexcept { return damage_; }

  /// Counts `n` pages that are about to be read.  Fails if the trees have more pages than the file.
  Status count_pages(std::uint64_t n) noexcept;
  void count_leaf() noexcept { leaves_read_.fetch_add(1, std::memory_order_relaxed); }
  /// Calls the progress callback.  Only in the caller's thread.
  void report_progress() noexcept;
  /// Sets the number of leaf pages to read.  Call it before the threads start.
  void set_leaves(std::uint64_t leaves) noexcept { leaves_ = leaves; }

 private:
  const IndexRequest& request_;
  TreeFacts facts_;
  std::uint64_t leaves_ = 0;
  std::atomic<std::uint64_t> pages_{0}, leaves_read_{0};
  std::atomic<bool> stop_{false};

  mutable std::mutex mutex_;  ///< guards the members below
  Status status_;
  IndexProblem& problem_;
  IndexProblem damage_;
};

/// Reads pages for one thread of a build.
class TreeReads {
 public:
  /// `caller`: true for the thread that has called build_index().  This thread reports progress, and gets
  /// buffers even if memory is short.
  TreeReads(BuildState& state, bool caller) noexcept
      : state_(state), caller_(caller), pages_(state.request(), caller) {}

  BuildState& state() noexcept { return state_; }
  bool is_caller() const noexcept { return caller_; }
  /// Returns true if this thread has buffers for reads.
  bool prepare(const WantedPage& page) noexcept { return pages_.prepare({&page, 1}).ok(); }
  /// Reads pages in file order, and calls take(wanted, bytes, problem) -> bool for each.  Sorts `wanted`.  If
  /// take() sets `problem` and returns false, stops the build.  Returns ECANCELED if the build has stopped.
  /// Otherwise as PageReads::read().
  template <class Take>
  Status read(std::vector<WantedPage>& wanted, Take&& take);
  /// Sets `children` to the child pages of the branch pages `pages`, in the order of `pages`.  Sets `by_page`
  /// to the range of each page's children.  Errors as read().  May throw bad_alloc.
  Status read_branches(std::span<const std::uint64_t> pages, std::vector<std::uint64_t>& children,
                       std::vector<Range>& by_page);
  /// Reports progress.  Returns false if the build has stopped.
  bool go_on() noexcept;
  IndexReads reads() const noexcept { return pages_.reads(); }

 private:
  BuildState& state_;
  const bool caller_;
  PageReads pages_;
};

template <class Take>
Status TreeReads::read(std::vector<WantedPage>& wanted, Take&& take) {
  const auto before = [](const WantedPage& a, const WantedPage& b) { return a.page < b.page; };
  if (!std::is_sorted(wanted.begin(), wanted.end(), before)) std::sort(wanted.begin(), wanted.end(), before);
  if (wanted.empty()) return {};
  if (const Status st = state_.count_pages(wanted.size()); !st.ok()) return st;
  if (const Status st = pages_.prepare(wanted); !st.ok()) return st;
  IndexProblem problem;
  return pages_.read(
      wanted,
      [&](const WantedPage& w, const std::byte* page) {
        if (take(w, page, problem)) return true;
        (void)state_.fail(Status::from_mdb(MDB_CORRUPTED), problem);
        return false;
      },
      [&] { return go_on(); });
}

}  // namespace lmdbio::records
