#include "lmdbio/format/explain.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "lmdbio/format/meta_view.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::format {

namespace {

__attribute__((format(printf, 2, 3))) bool say(std::span<char> out, const char* fmt, ...) noexcept {
  va_list args;
  va_start(args, fmt);
  (void)std::vsnprintf(out.data(), out.size(), fmt, args);
  va_end(args);
  return true;
}

bool explain_slots(const PageView& view, std::span<char> out) noexcept {
  for (unsigned i = 0; i < view.count(); ++i) {
    Node node;
    if (view.node(i, node)) continue;
    const std::size_t at = slot_base(view.version()) + load<std::uint16_t>(view.slots() + 2 * std::size_t{i});
    if (at < page_header(view.version()) + 2 * view.count() || at + kNodeHeader > view.size())
      return say(out, "slot %u points to offset %zu, outside the nodes", i, at);
    if (view.is_leaf())
      return say(out, "node %u: key of %u and data of %" PRIu32 " bytes reach beyond the page", i,
                 node.key_size(), node.data_size());
    return say(out, "node %u: key of %u bytes reaches beyond the page", i, node.key_size());
  }
  return false;
}

}  // namespace

bool explain_page(Version version, Bytes page, Pgno expect, std::span<char> out) noexcept {
  out[0] = '\0';
  const std::size_t header = page_header(version), base = slot_base(version);
  if (page.size() < header) return say(out, "%zu bytes, less than a page header", page.size());
  const auto number = load<std::uint64_t>(page, 0);
  const unsigned flags = load<std::uint16_t>(page, at_flags(version));
  const std::size_t lower = base + load<std::uint16_t>(page, at_lower(version)),
                    upper = base + load<std::uint16_t>(page, at_upper(version));
  if (raw(expect) < kMetaPages) return say(out, "a meta page as part of a tree");
  if (Pgno{number} != expect) return say(out, "page number is %" PRIu64, number);
  if (((flags & kBranch) != 0) == ((flags & kLeaf) != 0))
    return say(out, "flags are 0x%x: a page must be either a branch or a leaf", flags);
  if (lower < header) return say(out, "lower bound is %zu, inside the header", lower);
  if ((flags & kLeaf2) == 0 && lower > upper)
    return say(out, "lower bound %zu is above upper bound %zu", lower, upper);
  if ((flags & kLeaf2) == 0 && upper > page.size())
    return say(out, "upper bound is %zu on a page of %zu bytes", upper, page.size());
  PageView view;
  if (!PageView::open(version, page.data(), page.size(), expect, view)) return say(out, "invalid header");
  if (view.is_leaf2()) return false;
  if (view.count() == 0) return say(out, "no entries");
  return explain_slots(view, out);
}

bool explain_meta(Bytes page, std::span<char> out) noexcept {
  out[0] = '\0';
  if (page.size() < meta_bytes(Version::v09))
    return say(out, "%zu bytes, less than a meta page", page.size());
  const auto word = [&](std::size_t at) { return load<std::uint32_t>(page, at); };
  const Version v = word(page_header(Version::v10)) == kMagic ? Version::v10 : Version::v09;
  if (page.size() < meta_bytes(v)) return say(out, "%zu bytes, less than a meta page", page.size());
  const auto m = load<MetaRecord>(page, page_header(v));
  constexpr std::size_t kMagicOf32Bit = 12;  // behind the shorter page header of 32-bit systems
  if (m.magic == __builtin_bswap32(kMagic)) return say(out, "written on a machine with the other byte order");
  if (m.magic != kMagic && word(kMagicOf32Bit) == kMagic) return say(out, "written by a 32-bit LMDB");
  const unsigned flags = load<std::uint16_t>(page, at_flags(v));
  if ((flags & kMeta) == 0) return say(out, "flags are 0x%x: not a meta page", flags);
  if (m.magic != kMagic) return say(out, "magic number is 0x%08" PRIx32 ", which is not LMDB's", m.magic);
  if (m.version != meta_version(v))
    return say(out, "data format version %" PRIu32 "; LMDB 0.9 has version 1, and LMDB 1.0 version 3",
               m.version);
  switch (judge_meta(page)) {
    case MetaKind::bad_page_size:
      return say(out, "page size is %" PRIu32 ", which no LMDB file has", m.dbs[0].pad);
    case MetaKind::encrypted:
      return say(out, "the pages are encrypted");
    case MetaKind::good:
    case MetaKind::other:
      break;
  }
  return false;
}

}  // namespace lmdbio::format
