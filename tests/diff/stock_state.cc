#include "tests/diff/stock_state.h"

#include <cstring>

namespace lmdbio::diff {
namespace {

constexpr std::uint64_t kNoSubDatabase = 0x5ca1ab1e0ddba11;
bool of_10 = false;

struct Txn09 {
  void* before[10];
  StockDbx* dbxs;
  StockDb* dbs;
  unsigned* dbiseqs;
  StockCursor** cursors;
  unsigned char* dbflags;
  MDB_dbi numdbs;
};

struct Txn10 {
  void* before[19];
  StockDbx* dbxs;
  StockDb* dbs;
  unsigned* dbiseqs;
  StockCursor** cursors;
  unsigned char* dbflags;
  void* rpages;
  unsigned rpcheck;
  MDB_dbi numdbs;
};

template <class Txn>
StockTxn members(const MDB_txn* t) noexcept {
  const Txn& of = *reinterpret_cast<const Txn*>(t);
  return {of.dbxs, of.dbs, of.dbflags, of.numdbs};
}

std::size_t header_bytes() noexcept { return of_10 ? 24 : 16; }

}  // namespace

void set_stock_release(bool is_10) noexcept { of_10 = is_10; }

std::uint16_t StockPage::at(std::size_t offset) const noexcept {
  std::uint16_t value = 0;
  std::memcpy(&value, reinterpret_cast<const char*>(this) + offset, sizeof value);
  return value;
}

unsigned StockPage::keys() const noexcept {
  const unsigned lower = at(header_bytes() - 4);
  return (of_10 ? lower : lower - 16) / 2;
}

bool StockPage::leaf2() const noexcept { return (at(header_bytes() - 6) & 0x20) != 0; }

std::size_t StockPage::node(unsigned i) const noexcept {
  return at(header_bytes() + 2 * std::size_t{i}) + (of_10 ? header_bytes() : 0);
}

unsigned StockPage::node_flags(unsigned i) const noexcept { return at(node(i) + 4); }
unsigned StockPage::node_key_size(unsigned i) const noexcept { return at(node(i) + 6); }

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

StockDb& StockXcursor::db() noexcept {
  return *reinterpret_cast<StockDb*>(reinterpret_cast<char*>(this) + sizeof cursor + (of_10 ? 8 : 0));
}

const StockDbx& StockXcursor::dbx() const noexcept {
  return *reinterpret_cast<const StockDbx*>(&const_cast<StockXcursor*>(this)->db() + 1);
}

StockTxn stock(const MDB_txn* t) noexcept { return of_10 ? members<Txn10>(t) : members<Txn09>(t); }

void mark_no_subdatabase(MDB_cursor* c) noexcept {
  StockXcursor* x = reinterpret_cast<StockCursor*>(c)->xcursor;
  if (x != nullptr) x->db().root = kNoSubDatabase;
}

bool has_subdatabase(const StockCursor& c) noexcept {
  return c.xcursor != nullptr && c.xcursor->db().root != kNoSubDatabase;
}

}  // namespace lmdbio::diff
