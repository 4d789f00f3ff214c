// The engines of the thread that reads ahead, as tests want them: counted, failing at the k-th read, held up.
#pragma once

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/window/io_worker.h"

namespace lmdbio::testing {

/// What all engines together are to do, and have done, since the last reset().  Any thread.
class EngineScript {
 public:
  std::atomic<unsigned> fail_nth{0}, fail_times{1};  ///< attempts at reads, counted from 1; 0: none fails
  std::atomic<int> error{0};                         ///< that they give; 0: they are short
  std::atomic<bool> fail_make{false};                ///< no engine can be made
  std::atomic<unsigned> reads{0}, failed{0};

  void reset() {
    fail_nth = 0;
    fail_times = 1;
    error = 0;
    fail_make = false;
    reads = failed = 0;
    release();
    const std::lock_guard lock(mutex_);
    at_.clear();
  }
  /// From now on reads are taken and not answered, until release().
  void hold() {
    seen_held_ = false;
    held_ = true;
  }
  void release() { held_ = false; }
  /// Until a read waits for release().
  void wait_for_held() const {
    while (!seen_held_) ::sched_yield();
  }
  /// Attempts by offset.
  std::map<std::uint64_t, unsigned> attempts() const {
    const std::lock_guard lock(mutex_);
    return at_;
  }

 private:
  friend class ScriptedEngine;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, unsigned> at_;
  std::atomic<bool> held_{false}, seen_held_{false};
};

inline EngineScript& engine_script() {
  static EngineScript script;
  return script;
}
/// The same for what threads of the program read by themselves, and wait for (gather/needed_pages.h): the
/// other script does not count it.
inline EngineScript& need_script() {
  static EngineScript script;
  return script;
}

/// Around another engine, with the same caps.
class ScriptedEngine final : public IoEngine {
 public:
  explicit ScriptedEngine(std::unique_ptr<IoEngine> inner, EngineScript& script = engine_script())
      : IoEngine(inner->caps()), script_(script), inner_(std::move(inner)) {}

  int ready_fd() const noexcept override {
    const EngineScript& s = script_;
    if (s.held_) return -1;  // who polls looks from time to time
    return !ready_.empty() || inner_->poll_timeout_ms() >= 0 ? always_.get() : inner_->ready_fd();
  }
  void wait_briefly(std::int64_t ns) noexcept override {
    if (script_.held_ || !ready_.empty()) return;
    if (inner_->ready_fd() < 0)
      inner_->wait_briefly(ns);
    else
      IoEngine::wait_briefly(ns);
  }
  void forget() noexcept override { inner_->forget(); }

  /// For gather::engine_factory().
  static Result<std::unique_ptr<IoEngine>> make(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept {
    const bool need = wanted == EngineKind::single || wanted == EngineKind::single_unread;
    EngineScript& script = need ? need_script() : engine_script();
    if (script.fail_make) return Status::from_errno(EMFILE);
    Result<std::unique_ptr<IoEngine>> made = select_engine(file, depth, wanted, name);
    if (!made) return made;
    return std::unique_ptr<IoEngine>(new ScriptedEngine(std::move(made).value(), script));
  }

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    EngineScript& s = script_;
    for (const RawRead& r : reads) {
      const unsigned n = ++s.reads, nth = s.fail_nth;
      {
        const std::lock_guard lock(s.mutex_);
        ++s.at_[r.offset];
      }
      MutableBytes dst = r.dst;
      if (nth != 0 && n >= nth && n - nth < s.fail_times) {
        ++s.failed;
        if (const int e = s.error; e != 0) {
          ready_.push_back({r.slot, -static_cast<long>(e)});
          continue;
        }
        dst = dst.first(std::max(align_down(dst.size() / 2, caps().align), caps().align));
      }
      const ReadOp op{r.offset, dst, r.slot, 1};  // what is short stays so
      const Result<std::size_t> passed = inner_->submit({&op, 1});
      if (!passed || passed.value() != 1) ready_.push_back({r.slot, -EIO});
    }
    return reads.size();
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t) noexcept override {
    EngineScript& s = script_;
    if (s.held_) {
      s.seen_held_ = true;
      ::pthread_testcancel();  // as system calls that wait
      return std::size_t{0};
    }
    Completion got[64];
    const Result<std::size_t> n = inner_->reap(got, 0);
    for (const Completion& c : std::span(got, n ? n.value() : 0))
      ready_.push_back({static_cast<unsigned>(c.tag),
                        c.status.ok() ? static_cast<long>(c.bytes) : -static_cast<long>(c.status.raw())});
    const std::size_t k = std::min(out.size(), ready_.size());
    std::copy_n(ready_.begin(), k, out.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(k));
    return k;
  }

  EngineScript& script_;
  const std::unique_ptr<IoEngine> inner_;
  std::vector<RawResult> ready_;
  const UniqueFd always_{::eventfd(1, EFD_CLOEXEC)};
};

/// From now on all reads are scripted and direct, with so much memory (LMDBIO_MEMORY).  Before anything asks
/// for the configuration: the initializer of a test's constant.  True.
inline bool script_all_reads(const char* memory) {
  ::setenv("LMDBIO_IO", "direct", 1);
  ::setenv("LMDBIO_MEMORY", memory, 1);
  gather::engine_factory() = ScriptedEngine::make;
  return true;
}

}  // namespace lmdbio::testing
