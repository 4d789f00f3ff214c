// Page views and searches over one page of any bytes: nothing outside the page is read or given out.
#include <lmdb.h>

#include <algorithm>
#include <cstring>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/format/search.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/file_image.h"

namespace {

using namespace lmdbio;
using format::Node;
using format::PageView;
using testing::ExactBytes;

volatile unsigned sink;

void touch(const std::byte* p, std::size_t n) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::to_integer<unsigned>(p[i]);
  sink = sum;
}

void check_nodes(const PageView& page, const ExactBytes& bytes) {
  for (unsigned i = 0; i < page.count(); ++i) {
    Node node, same;
    const bool ok = page.node(i, node);
    if (page.is_leaf()) {
      unsigned flags;
      std::size_t key_size, data_size;
      FUZZ_REQUIRE(page.leaf_node(i, same, flags, key_size, data_size) == ok);
      FUZZ_REQUIRE(!ok || (same.at == node.at && flags == node.flags() && key_size == node.key_size() &&
                           data_size == node.data_size()));
    }
    if (!ok) continue;
    FUZZ_REQUIRE(bytes.holds(node.key(), node.key_size()));
    touch(node.key(), node.key_size());
    if (page.is_branch()) {
      sink = static_cast<unsigned>(format::raw(node.child()));
    } else if ((node.flags() & format::kBigData) != 0) {
      sink = static_cast<unsigned>(format::raw(node.overflow()));
    } else {
      FUZZ_REQUIRE(bytes.holds(node.data(), node.data_size()));
      touch(node.data(), node.data_size());
    }
  }
}

void search(const PageView& page, Bytes key, std::size_t item_bytes, std::size_t skip) {
  using format::Order;
  MDB_val k = {key.size(), const_cast<std::byte*>(key.data())};
  for (const Order order : {Order::memn, Order::memnr, Order::cint, Order::uint, Order::word}) {
    format::Place place;
    if (format::search_page(page, {order}, k, item_bytes, place)) FUZZ_REQUIRE(place.index <= page.count());
  }
  if (page.is_leaf2()) return;
  format::Place place;
  const bool ok = page.is_leaf() ? format::search_memn<true>(page, key.data(), key.size(), skip, place)
                                 : page.count() > 0 &&
                                       format::search_memn<false>(page, key.data(), key.size(), skip, place);
  if (ok) FUZZ_REQUIRE(place.index <= page.count());
}

}  // namespace

// A key's length, the key, a length to skip, an item's size (2 bytes), the page.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4 || size > 40'000) return 0;
  const std::size_t key_size = std::min<std::size_t>(data[0], size - 4);
  const ExactBytes key_block(std::as_bytes(std::span(data + 1, key_size)));
  const Bytes key = key_block.bytes();
  const std::uint8_t* const rest = data + 1 + key_size;
  const std::size_t skip = std::min<std::size_t>(rest[0], key_size),
                    item = rest[1] | std::size_t{rest[2]} << 8;
  const ExactBytes page_block(std::as_bytes(std::span(rest + 3, size - 4 - key_size)));
  const Bytes page = page_block.bytes();

  (void)format::judge_meta(page);
  const auto meta = format::parse_meta(page);
  FUZZ_REQUIRE(meta.has_value() == (format::judge_meta(page) == format::MetaKind::good));

  PageView view;
  if (PageView::open_sub(lmdbio::format::Version::v09, page.data(), page.size(), view)) {
    if (view.is_leaf2()) {
      for (unsigned i = 0; i < view.count(); ++i) {
        const std::byte* const at = view.item(i, item);
        if (at == nullptr) break;
        FUZZ_REQUIRE(page_block.holds(at, item));
        touch(at, item);
      }
    } else {
      check_nodes(view, page_block);
    }
    search(view, key, item, skip);
  }
  if (page.size() >= format::kMinPageSize) {
    const auto pgno = load<format::Pgno>(page.data());
    FUZZ_REQUIRE(!PageView::open(lmdbio::format::Version::v09, page.data(), page.size(),
                                 format::Pgno{format::raw(pgno) + 1}, view));
    if (PageView::open(lmdbio::format::Version::v09, page.data(), page.size(), pgno, view)) {
      FUZZ_REQUIRE(view.is_branch() != view.is_leaf() || view.is_leaf2());
      if (!view.is_leaf2()) check_nodes(view, page_block);
      if (!view.is_leaf2() || !view.is_branch()) search(view, key, item, skip);
    }
  }
  return 0;
}
