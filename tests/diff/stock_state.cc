#include "tests/diff/stock_state.h"

#include <cstring>

namespace lmdbio::diff {
namespace {
constexpr std::uint64_t kNoSubDatabase = 0x5ca1ab1e0ddba11;
}

const char* StockPage::node(unsigned i) const noexcept {
  const char* self = reinterpret_cast<const char*>(this);
  std::uint16_t offset = 0;
  std::memcpy(&offset, self + sizeof *this + 2 * static_cast<std::size_t>(i), sizeof offset);
  return self + offset;
}

unsigned StockPage::node_flags(unsigned i) const noexcept {
  std::uint16_t f = 0;
  std::memcpy(&f, node(i) + 4, sizeof f);
  return f;
}

unsigned StockPage::node_key_size(unsigned i) const noexcept {
  std::uint16_t f = 0;
  std::memcpy(&f, node(i) + 6, sizeof f);
  return f;
}

bool StockCursor::at_first() const noexcept {
  for (unsigned i = 0; i <= top; ++i)
    if (index[i] != 0) return false;
  return true;
}

bool StockCursor::at_last() const noexcept {
  for (unsigned i = 0; i <= top; ++i)
    if (index[i] + 1u < page[i]->keys()) return false;
  return true;
}

void mark_no_subdatabase(MDB_cursor* c) noexcept {
  StockXcursor* x = reinterpret_cast<StockCursor*>(c)->xcursor;
  if (x != nullptr) x->db.root = kNoSubDatabase;
}

bool has_subdatabase(const StockCursor& c) noexcept {
  return c.xcursor != nullptr && c.xcursor->db.root != kNoSubDatabase;
}

}  // namespace lmdbio::diff
