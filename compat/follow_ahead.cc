// Batches that a program reads before it takes them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "compat/follow.h"

namespace lmdbio::compat {
namespace {

/// Returns another batch with the same records.
std::unique_ptr<records::Batch> again(const records::Batch& batch) {
  auto made = std::make_unique<records::Batch>();
  made->rows = batch.rows;
  made->keep = batch.keep;
  made->count = made->rows.size();
  made->records = made->rows.data();
  made->position = batch.position;
  return made;
}

}  // namespace

// Returns false if batch `i`, from the first one that is not decided, cannot be made from the records that
// are known.
bool Follow::foresee(std::uint64_t i, records::Rehearsal::Batch& out) const {
  if (i >= options_.terms.lag || !has_batch(i)) return false;
  const std::uint64_t fresh = options_.terms.fresh, first = i * fresh;
  if (first < order_.pending()) {
    out.fresh.reserve(static_cast<std::size_t>(std::min(fresh, order_.pending() - first)));
    for (std::uint64_t n = order_.pending_at(first); n != UINT64_MAX && out.fresh.size() < fresh;
         n = order_.pending_from(n + 1))
      out.fresh.push_back(n);
  }
  out.old = order_.upcoming()[static_cast<std::size_t>(i)];
  return true;
}

// Returns the batch with this number if it was read with these samples.  Drops it if it has others.
const Follow::Ahead* Follow::find_ahead(std::uint64_t batch, const records::Rehearsal::Batch& samples) {
  const auto found =
      std::find_if(ahead_.begin(), ahead_.end(), [&](const Ahead& a) { return a.number == batch; });
  if (found == ahead_.end()) return nullptr;
  if (found->samples.fresh == samples.fresh && found->samples.old == samples.old) return &*found;
  ahead_.erase(found);
  return nullptr;
}

Status Follow::ahead(std::uint64_t i, std::unique_ptr<records::Batch>& out, std::size_t& fresh,
                     std::string& why) {
  if (!permanent_.ok()) {
    why = permanent_why_;
    return permanent_;
  }
  const std::uint64_t decided = unread_ ? 1 : 0, number = order_.batch() - decided + i;
  records::Rehearsal::Batch samples;
  if (i < decided)
    samples = *unread_;
  else if (!foresee(i - decided, samples))
    return Status::from_mdb(MDB_NOTFOUND);
  if (const Ahead* const there = find_ahead(number, samples); there != nullptr) {
    fresh = there->fresh;
    out = again(*there->batch);
    return {};
  }
  std::unique_ptr<records::Batch> made;
  const Status st =
      i < decided ? read(samples, made, fresh, why) : read_once(samples, number, made, fresh, why);
  if (!st.ok()) return i < decided ? send_result(st, why) : st;
  out = again(*made);
  const auto behind =
      std::find_if(ahead_.begin(), ahead_.end(), [&](const Ahead& a) { return a.number > number; });
  ahead_.insert(behind, {number, std::move(samples), fresh, std::move(made)});
  return {};
}

}  // namespace lmdbio::compat
