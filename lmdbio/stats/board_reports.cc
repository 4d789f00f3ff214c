#include <algorithm>

#include "lmdbio/records/shared.h"
#include "lmdbio/stats/report.h"

namespace lmdbio::stats {

namespace {

using node::CellKind;
using Shown = node::ShownBoard::Shown;

template <std::size_t n>
std::string text_of(const char (&text)[n]) {
  return std::string(text, ::strnlen(text, n));
}

std::uint64_t now(const std::atomic<std::uint64_t>& n) noexcept { return n.load(std::memory_order_relaxed); }

// Returns the content of a cell, which another process may have written.  It can be copied as bytes, because
// the counters are lock-free and have no pointers.
template <class T>
T copy_of(const Shown& cell) noexcept {
  T out;
  std::memcpy(static_cast<void*>(&out), cell.bytes.data(), std::min(cell.bytes.size(), sizeof(T)));
  return out;
}

bool is_of(const Shown& cell, const Shown& environment) noexcept {
  if (cell.facts.owner != 0) return cell.facts.owner == environment.number;
  return environment.facts.inode != 0 && cell.facts.inode == environment.facts.inode &&
         cell.facts.device == environment.facts.device;
}

void add_file(EnvironmentReport& report, const Shown& cell) {
  const auto c = copy_of<window::FileCounters>(cell);
  if (report.io) {  // there is another window on the same file
    report.io->stats.add(c.stats);
    return;
  }
  report.io = IoReport{name_of(c.path),
                       text_of(c.reason),
                       text_of(c.engine),
                       text_of(c.residency),
                       c.chunk_bytes,
                       c.memory_limit,
                       c.stats};
}

EnvironmentReport report_of(const node::ShownBoard& board, const Shown& environment,
                            std::vector<bool>& told) {
  EnvironmentReport out;
  EnvironmentCounters c;
  std::memcpy(static_cast<void*>(&c), environment.bytes.data(), std::min(environment.bytes.size(), sizeof c));
  out.without_slot = now(c.without_slot);
  out.calls = c.ended;
  out.readers = c.closed_readers;
  out.forward_get = now(c.forwarded.get);
  out.forward_cursor_get = now(c.forwarded.cursor_get);
  out.forward_txn = now(c.forwarded.txn);
  out.forward_write = now(c.forwarded.write);
  for (std::size_t i = 0; i < board.cells.size(); ++i) {
    const Shown& cell = board.cells[i];
    // If two environments use one file, the first environment reports it.
    if (told[i] || !is_of(cell, environment)) continue;
    switch (cell.facts.kind) {
      case CellKind::text: {
        const auto text = copy_of<EnvironmentText>(cell);
        out.path = text_of(text.path);
        out.reason = text_of(text.reason);
        out.ours = text.ours != 0;
        out.locks = text.without_locks == 0;
        break;
      }
      case CellKind::calls:
        out.calls.add(copy_of<tree::Counters>(cell));
        break;
      case CellKind::file:
        add_file(out, cell);
        break;
      case CellKind::reader:
        out.readers.add(copy_of<records::Counters>(cell));
        break;
      default:
        continue;
    }
    told[i] = true;
  }
  if (out.ours && !out.io) {
    out.io.emplace();
    out.io->read_path = "mmap";
    out.io->reason = "no walk or lookup found data missing in memory";
    out.io->counted = false;
  }
  return out;
}

}  // namespace

void ReaderTotals::add(const records::Counters& c) noexcept {
  ++readers;
  add_counters(counters, c, records::kCounters);
}

void ReaderTotals::add(const records::Shared& s) noexcept {
  add(s.counters);
  most_bytes = std::max(most_bytes, s.pool->counters().most_bytes);
}

std::vector<EnvironmentReport> environments_on(const node::ShownBoard& board) {
  std::vector<EnvironmentReport> found;
  std::vector<bool> told(board.cells.size());
  for (const Shown& cell : board.cells) {
    if (cell.facts.kind != CellKind::environment) continue;
    EnvironmentReport report = report_of(board, cell, told);
    if (!report.is_unused()) found.push_back(std::move(report));
  }
  return found;
}

std::string line_of(const node::ShownBoard& board) {
  std::string environments;
  for (const EnvironmentReport& r : environments_on(board)) {
    if (!environments.empty()) environments += ',';
    append_json(environments, r);
  }
  if (environments.empty()) return {};
  return process_line(board.pid, board.lives ? "running" : "ended", environments);
}

}  // namespace lmdbio::stats
