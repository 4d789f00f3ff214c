// A source of chunks as tests want it: each claim is counted and answered as told.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "lmdbio/window/chunk_source.h"

namespace lmdbio::testing {

/// What became of the chunks; outlives the source.  Any thread.
struct SourceScript {
  using Answer = window::ChunkSource::Answer;
  using Waited = window::ChunkSource::Waited;
  /// Of the `n`-th claim of a chunk, from 0.
  std::function<Answer(std::uint32_t chunk, unsigned n)> answer;

  std::atomic<unsigned> processes{1};
  std::atomic<bool> full{false};                   ///< the processes of the node may not keep more chunks
  std::atomic<std::uint32_t> to_come{UINT32_MAX};  ///< the chunk that other processes will reach
  std::atomic<unsigned> dropped{0};                ///< names that were dropped

  /// Of the `n`-th wait for a chunk, from 0; may take its time.
  std::function<Waited(std::uint32_t chunk, unsigned n)> wait;

  struct Seen {
    unsigned claims = 0, good = 0, failed = 0, waits = 0;
  };
  Seen of(std::uint32_t chunk) const {
    const std::lock_guard lock(mutex);
    const auto at = seen.find(chunk);
    return at == seen.end() ? Seen() : at->second;
  }
  mutable std::mutex mutex;
  std::map<std::uint32_t, Seen> seen;  ///< under the mutex
};

class ScriptedSource final : public window::ChunkSource {
 public:
  explicit ScriptedSource(SourceScript& script) : script_(script) {}
  Answer claim(const Wanted& wanted, window::Staging&) noexcept override {
    const std::lock_guard lock(script_.mutex);
    return script_.answer(raw(wanted.chunk), script_.seen[raw(wanted.chunk)].claims++);
  }
  Filled filled(window::ChunkIndex chunk, bool good) noexcept override {
    const std::lock_guard lock(script_.mutex);
    SourceScript::Seen& s = script_.seen[raw(chunk)];
    ++(good ? s.good : s.failed);
    return {good};
  }
  void drop(const node::ChunkName&) noexcept override { ++script_.dropped; }
  void leave() noexcept override {}
  bool is_to_come(window::ChunkIndex chunk) const noexcept override { return script_.to_come == raw(chunk); }
  unsigned processes() const noexcept override { return script_.processes; }
  bool is_full() const noexcept override { return script_.full; }
  Waited wait(window::ChunkIndex chunk) noexcept override {
    unsigned n;
    {
      const std::lock_guard lock(script_.mutex);
      n = script_.seen[raw(chunk)].waits++;
    }
    return script_.wait(raw(chunk), n);
  }

 private:
  SourceScript& script_;
};

}  // namespace lmdbio::testing
