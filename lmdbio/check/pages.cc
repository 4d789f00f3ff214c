#include "lmdbio/check/pages.h"

#include "lmdbio/base/bytes.h"

namespace lmdbio::check {

bool PageAccounts::reachable(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from,
                             const char* what) {
  if (p < 2)
    report_.wrong(tree, from, "%s %llu is a meta page", what, ull(p));
  else if (p > last_pg_ || n - 1 > last_pg_ - p)
    report_.wrong(tree, from, "%s %llu (%llu page%s) is beyond the last page, %llu", what, ull(p), ull(n),
                  n == 1 ? "" : "s", ull(last_pg_));
  else if (p >= limit_ || n > limit_ - p)
    report_.wrong(tree, from, "%s %llu (%llu page%s) is beyond the end of the file (%llu pages)", what,
                  ull(p), ull(n), n == 1 ? "" : "s", ull(file_pages_));
  else
    return true;
  return false;
}

bool PageAccounts::use(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from) {
  for (std::uint64_t i = p; i < p + n; ++i) {
    if (!used_.add(i)) {
      report_.wrong(tree, i, "used twice, the second time by page %llu", ull(from));
      return false;
    }
    if (free_.has(i)) report_.wrong(tree, i, "used by page %llu, but also in the free list", ull(from));
  }
  return true;
}

void PageAccounts::free_list(Tree& tree, std::uint64_t p, unsigned i, const std::byte* data,
                             std::uint32_t size) {
  const std::uint64_t room = size / 8;
  const std::uint64_t count = room == 0 ? 0 : load<std::uint64_t>(data);
  if (size % 8 != 0 || room == 0 || count > room - 1) {
    report_.wrong(tree, p, "the free list of slot %u has %u bytes, which does not match %llu page numbers", i,
                  size, ull(count));
    return;
  }
  std::uint64_t above = last_pg_ + 1;
  for (std::uint64_t k = 1; k <= count && !report_.stopped(); ++k) {
    const auto id = load<std::uint64_t>(data + 8 * k);
    if (id < 2 || id > last_pg_) {
      report_.wrong(tree, p, "the free list of slot %u contains page %llu, but the last page is %llu", i,
                    ull(id), ull(last_pg_));
      return;
    }
    if (k > 1 && id >= above) {
      report_.wrong(tree, p, "the free list of slot %u is not sorted at page %llu", i, ull(id));
      return;
    }
    above = id;
    ++totals_.free_pages;
    if (id >= limit_)
      ++free_beyond_;
    else if (!free_.add(id))
      report_.wrong(tree, p, "the free list of slot %u contains page %llu, which is in the free list already",
                    i, ull(id));
    else if (used_.has(id))
      report_.wrong(tree, id, "used, but also in the free list (slot %u of page %llu)", i, ull(p));
  }
}

void PageAccounts::lost(bool which) {
  std::uint64_t begin = 0, run = 0;
  const auto end_run = [&] {
    // After errors, most lost pages belong to subtrees below a damaged page.
    if (which && run != 0 && report_.errors() == 0)
      report_.tell(Severity::warning, nullptr, begin, run, "neither used nor in the free list");
    run = 0;
  };
  for (std::uint64_t p = 2; p < limit_ && !report_.stopped();) {
    if (p % 64 == 0 && (used_.word(p / 64) | free_.word(p / 64)) == ~std::uint64_t{0}) {
      end_run();
      p += 64;
      continue;
    }
    if (used_.has(p) || free_.has(p)) {
      end_run();
    } else {
      if (run++ == 0) begin = p;
      ++totals_.lost_pages;
    }
    ++p;
  }
  end_run();
  // Stock does not write free pages at the end of the file.  All other pages are in the file.
  const std::uint64_t beyond = last_pg_ + 1 - limit_;
  if (last_pg_ >= limit_ && beyond > free_beyond_) {
    totals_.lost_pages += beyond - free_beyond_;
    if (which && report_.errors() == 0)
      report_.tell(Severity::warning, nullptr, limit_, beyond,
                   "beyond the end of the file; not in the free list: %llu", ull(beyond - free_beyond_));
  }
}

}  // namespace lmdbio::check
