// Reads a file through an engine as a program would: many reads in flight, each completion checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/io/io_engine.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::testing {

struct ScanResult {
  Status status;           // the first error
  std::size_t failed = 0;  // reads with an error
  std::size_t lost = 0;    // reads whose completion did not come, came twice, or has a foreign tag
  bool same = true;        // what was read without error is pattern()
};

/// Reads the first `size` bytes in blocks of `block`, both multiples of the engine's alignment, as deep as it
/// goes.
inline ScanResult scan(IoEngine& engine, std::size_t size, std::size_t block) {
  const std::size_t blocks = size / block;
  const AlignedBuffer buffer(size, std::max<std::size_t>(engine.caps().align, 64));
  std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{0});
  ScanResult result;
  std::vector<int> seen(blocks, 0);
  std::deque<ReadOp> todo;
  for (std::size_t i = 0; i < blocks; ++i)
    todo.push_back({i * block, buffer.bytes().subspan(i * block, block), i});
  std::vector<Completion> done(engine.caps().depth);
  while (!todo.empty() || engine.in_flight() != 0) {
    const std::vector<ReadOp> next(todo.begin(), todo.end());
    const Result<std::size_t> taken = engine.submit(next);
    if (!taken) {
      result.status = taken.error();
      return result;
    }
    todo.erase(todo.begin(), todo.begin() + static_cast<std::ptrdiff_t>(taken.value()));
    const Result<std::size_t> n = engine.reap(done, 1);
    if (!n) {  // the engine's own: what is in flight is still to come
      if (result.status.ok()) result.status = n.error();
      continue;
    }
    for (const Completion& c : std::span(done).first(n.value())) {
      if (c.tag >= blocks) {
        ++result.lost;
        continue;
      }
      ++seen[c.tag];
      if (c.status.ok()) {
        const auto want = pattern(block, c.tag * block);
        if (std::memcmp(buffer.bytes().data() + c.tag * block, want.data(), block) != 0) result.same = false;
      } else {
        ++result.failed;
        if (result.status.ok()) result.status = c.status;
      }
    }
  }
  result.lost +=
      static_cast<std::size_t>(std::count_if(seen.begin(), seen.end(), [](int s) { return s != 1; }));
  return result;
}

}  // namespace lmdbio::testing
