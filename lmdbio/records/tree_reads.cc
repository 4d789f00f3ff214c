#include "lmdbio/records/tree_reads.h"

#include <cerrno>
#include <utility>

namespace lmdbio::records {

BuildState::BuildState(const IndexRequest& request, IndexProblem& problem) noexcept
    : request_(request), problem_(problem) {
  facts_.page_size = request.page_size;
  facts_.version = request.version;
  facts_.file_pages = request.file_pages;
  facts_.dupsort = (request.record.flags & MDB_DUPSORT) != 0;
  facts_.dupfixed = facts_.dupsort && (request.record.flags & MDB_DUPFIXED) != 0;
}

Status BuildState::fail(Status st, const IndexProblem& problem) noexcept {
  const std::lock_guard lock(mutex_);
  stop_.store(true, std::memory_order_relaxed);
  if (status_.ok()) {
    status_ = st;
    problem_ = problem;
  }
  return Status::from_errno(ECANCELED);
}

Status BuildState::first_error(Status st) const noexcept {
  const std::lock_guard lock(mutex_);
  return status_.ok() ? st : status_;
}

void BuildState::note_damage(const IndexProblem& problem) noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = damage_.damaged;
  if (before == 0) damage_ = problem;
  damage_.damaged = before + 1;
}

Status BuildState::count_pages(std::uint64_t n) noexcept {
  if (pages_.fetch_add(n, std::memory_order_relaxed) + n <= request_.file_pages) return {};
  return corrupted(format::raw(request_.record.root), "the tree has more pages than the file");
}

void BuildState::report_progress() noexcept {
  if (request_.progress != nullptr &&
      !request_.progress(request_.context, leaves_read_.load(std::memory_order_relaxed), leaves_))
    (void)fail(Status::from_errno(ECANCELED), {});
}

bool TreeReads::go_on() noexcept {
  if (caller_) state_.report_progress();
  return !state_.stopped();
}

Status TreeReads::read_branches(std::span<const std::uint64_t> pages, std::vector<std::uint64_t>& children,
                                std::vector<Range>& by_page) {
  std::vector<WantedPage> wanted;
  wanted.reserve(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) wanted.push_back({pages[i], i});
  Rows rows;
  std::vector<Range> came(pages.size());
  const Status st = read(wanted, [&](const WantedPage& w, const std::byte* page, IndexProblem& problem) {
    came[w.index].begin = rows.children.size();
    const bool good = scan_branch(state_.facts(), w.page, page, rows, problem);
    came[w.index].end = rows.children.size();
    if (!good || rows.children.size() <= state_.facts().file_pages) return good;
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

}  // namespace lmdbio::records
