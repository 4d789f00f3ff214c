// Several files as one file, with few descriptors.
//
// The joined file contains the files one after the other, each at a multiple of kSpacing.  Reads, probes and
// mappings of the joined file open the file that they need, and close the one that was not used for the
// longest time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/page_filler.h"
#include "lmdbio/io/range_reader.h"
#include "lmdbio/io/residency.h"

namespace lmdbio {

/// Keeps at most `most` of many values open at a time.  Keeps at most `least`, or those that are open, once a
/// new value is crowded().  A value in use is never closed: if all are in use for a second, one more is
/// opened.  Any thread.
template <class T>
class FewOpen {
 public:
  FewOpen(std::size_t count, std::size_t most, std::size_t least)
      : entries_(count), most_(most), least_(least) {
    open_.reserve(count);
  }
  FewOpen(const FewOpen&) = delete;
  FewOpen& operator=(const FewOpen&) = delete;

  /// Calls body(T&) for value `i`.  Calls open(i) first if the value is not open, or if it is not usable().
  /// open() returns a Result<std::unique_ptr<T>>, whose error this function returns.  Different values are
  /// opened in parallel.  ECANCELED: in a child that was forked during the wait.  Neither function may throw.
  template <class Open, class Body>
  Status with(std::size_t i, Open&& open, Body&& body) noexcept {
    std::unique_ptr<T> closed;
    std::unique_lock lock(mutex_);
    Entry& e = entries_[i];
    ++e.users;
    while (e.opening) {
      (void)changed_.wait_for(lock, kPoll);
      if (born_ != PrivateTable::generation()) return Status::from_errno(ECANCELED);
    }
    if (e.value != nullptr && e.users == 1 && !e.value->usable()) close(i, closed);
    if (e.value == nullptr) {
      e.opening = true;
      for (int tries = 0; open_.size() >= most_ && !close_oldest(closed) && tries < kTries; ++tries)
        (void)changed_.wait_for(lock, kPoll);
      open_.push_back(i);
      lock.unlock();
      closed.reset();
      Result<std::unique_ptr<T>> made = open(i);
      lock.lock();
      e.opening = false;
      changed_.notify_all();
      if (!made) {
        std::erase(open_, i);
        --e.users;
        return made.error();
      }
      e.value = std::move(made).value();
      if (open_.size() > least_ && e.value->crowded()) most_ = std::max(least_, open_.size() - 1);
    }
    e.used = ++clock_;
    lock.unlock();
    closed.reset();
    body(*e.value);
    lock.lock();
    leave(e);
    return {};
  }

  /// Calls body(T&) if value `i` is open.  Returns false if it is not.
  template <class Body>
  bool if_open(std::size_t i, Body&& body) noexcept {
    std::unique_lock lock(mutex_);
    Entry& e = entries_[i];
    if (e.value == nullptr) return false;
    ++e.users;
    e.used = ++clock_;
    lock.unlock();
    body(*e.value);
    lock.lock();
    leave(e);
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kPoll{10};
  static constexpr int kTries = 100;
  struct Entry {
    std::unique_ptr<T> value;
    std::uint64_t used = 0;  ///< value of clock_ at the last use
    unsigned users = 0;
    bool opening = false;
  };
  // The caller of these functions holds the mutex, and destroys `closed` without it.
  void leave(Entry& e) noexcept {
    if (--e.users == 0 && open_.size() >= most_) changed_.notify_all();
  }
  void close(std::size_t i, std::unique_ptr<T>& closed) noexcept {
    closed = std::move(entries_[i].value);
    std::erase(open_, i);
  }
  bool close_oldest(std::unique_ptr<T>& closed) noexcept {
    if (closed != nullptr) return true;
    const Entry* oldest = nullptr;
    for (const std::size_t i : open_)
      if (const Entry& e = entries_[i]; e.users == 0 && (oldest == nullptr || e.used < oldest->used))
        oldest = &e;
    if (oldest == nullptr) return false;
    close(static_cast<std::size_t>(oldest - entries_.data()), closed);
    return true;
  }

  std::mutex mutex_;  ///< guards the members below
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> open_;  ///< values that are open or being opened
  std::uint64_t clock_ = 0;
  std::size_t most_;
  const std::size_t least_;
  const unsigned born_ = PrivateTable::generation();
};

/// The files, and the descriptors of those that were used last: one in the program's table for probes and
/// mappings, and one or two in the private table for reads.  The descriptors for probes stay open, since a
/// cold file is probed many times and each open may take a request.  They are not in the private table, where
/// each probe would be a call in another thread.  A program may close the descriptors in its
/// table; the file is then opened again.  Any thread, except that the functions for probes and mappings need
/// a thread that shares the program's descriptor table.
class FileSet {
 public:
  struct Part {
    std::string path;         ///< absolute
    FileIdentity id;          ///< another file at this path, or a later modification, is an error (ESTALE)
    std::uint64_t bytes = 0;  ///< nothing is read beyond it
  };
  static constexpr std::uint64_t kSpacing = std::uint64_t{2} << 20;
  /// Descriptors that are open at a time: kMostProbed in the program's table, and kMostRead in the private
  /// table.  While less than half of the numbers that RLIMIT_NOFILE allows are in use, a quarter of them may
  /// be open in the private table.
  static constexpr std::size_t kMostProbed = 8, kMostRead = 48;

  /// `direct`: files are opened for direct reads, which takes two descriptors per file.  May throw bad_alloc.
  FileSet(std::vector<Part> parts, bool direct);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;
  ~FileSet() = default;

  std::size_t size() const noexcept { return parts_.size(); }
  const Part& part(std::size_t i) const noexcept { return parts_[i]; }
  /// Returns the offset of file `i` in the joined file.
  std::uint64_t first(std::size_t i) const noexcept { return firsts_[i]; }
  /// Returns the size of the joined file, in bytes.
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Returns the number of the file that has this offset.  An offset between two files belongs to the first
  /// one.
  std::size_t at(std::uint64_t offset) const noexcept;
  /// As at(), for an offset that belongs to file `i` or to a later one.  Fast if it is one of the next files.
  std::size_t at(std::uint64_t offset, std::size_t i) const noexcept {
    constexpr std::size_t kNear = 8;
    for (std::size_t k = i; k < i + kNear; ++k)
      if (k + 1 == size() || offset < firsts_[k + 1]) return k;
    return at(offset);
  }

  // Probes and mappings.

  /// Returns the length of file `i` now, in bytes.  Returns 0 if the file is not there any more.
  std::uint64_t length(std::size_t i) noexcept;
  /// As length(), but as it was at some time before `now`: at most kRecentNs, or kRecentPerFileNs for each
  /// file of this set, which bounds the time that is spent on lengths.  `now`: the current time, as now_ns().
  std::uint64_t recent_length(std::size_t i, std::int64_t now) noexcept;
  static constexpr std::int64_t kRecentNs = 1'000'000, kRecentPerFileNs = 100'000;
  /// Returns the resident share of a range of one file, as Residency::share().
  std::optional<double> resident(std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Returns true if a range of file `i` is in the page cache.  Needs no descriptor, and returns false if the
  /// file was not mapped and probed before, or if this user cannot find out in this way.
  bool is_resident(std::size_t i, std::uint64_t offset, std::uint64_t bytes) const noexcept {
    return mapped_share(i, offset, bytes) == 1.0;
  }
  /// Maps file `i` at `to`, an address inside a reserved range.  Returns false if it cannot be mapped.
  bool map(std::size_t i, std::byte* to) noexcept;
  /// Returns the address at which file `i` is mapped, or nullptr.
  const std::byte* mapped(std::size_t i) const noexcept {
    return states_[i].mapped.load(std::memory_order_acquire);
  }
  /// Reads bytes of file `i` through the page cache, for the few bytes that are not worth an engine.
  Status read_here(std::size_t i, std::uint64_t offset, MutableBytes to) noexcept;

  // Reads.

  /// Opens file `i` for other users of its descriptors.  Errors: as OpenFile::get.
  Result<std::shared_ptr<const OpenFile>> open(std::size_t i) const noexcept;
  /// Reads a range of one file, in a thread that shares the private table.  Direct reads need a FileSet with
  /// `direct`.  Other large reads fill the page cache as a PageFiller does, if `fills`.  Returns as
  /// RangeReader::fill().
  /// Bytes beyond the end of the file are zeros if they are beyond Part::bytes.
  long read(std::uint64_t offset, MutableBytes to, bool direct, bool fills = false) noexcept;
  /// Returns the errno of the last read of file `i` if it failed, else 0.
  int error(std::size_t i) const noexcept { return states_[i].error.load(std::memory_order_relaxed); }
  /// Returns how many threads should read at once.  Each of them needs a file at a time.
  unsigned threads() const noexcept {
    return size() > most_read_ ? static_cast<unsigned>(most_read_) : ThreadsEngine::kMostThreads;
  }
  /// Makes an engine that reads the joined file, with a pool of threads.  `like` is the first file, opened as
  /// the reads need it.  Errors: as threads_engine().
  static Result<std::unique_ptr<IoEngine>> engine(std::shared_ptr<FileSet> files, const File& like,
                                                  unsigned depth, EngineKind wanted) noexcept;

 private:
  /// A descriptor in the program's table.
  struct Probed {
    Probed(UniqueFd opened, const FileIdentity& of, const Residency& by) noexcept
        : fd(std::move(opened)), id(of), residency(by) {}
    Probed(const Probed&) = delete;
    Probed& operator=(const Probed&) = delete;
    ~Probed() {
      if (!size_if_inode(fd.get(), id)) (void)fd.release();  // the number belongs to the program now
    }
    bool usable() const noexcept { return size_if_inode(fd.get(), id).has_value(); }
    static bool crowded() noexcept { return false; }
    UniqueFd fd;
    const FileIdentity id;
    const Residency residency;
  };
  /// The numbers are valid in the private table.
  struct Read {
    std::shared_ptr<const OpenFile> file;
    int buffered = -1, direct = -1;
    std::unique_ptr<PageFiller> filler;  ///< null: large reads are plain reads
    static bool usable() noexcept { return true; }
    bool crowded() const noexcept { return is_crowded; }
    bool is_crowded = false;  ///< as PrivateTable::crowded()
  };
  std::optional<double> mapped_share(std::size_t i, std::uint64_t offset, std::uint64_t bytes) const noexcept;
  template <class Body>
  Status probe(std::size_t i, Body&& body) noexcept;
  Result<std::unique_ptr<Probed>> open_probed(std::size_t i) noexcept;
  Result<std::unique_ptr<Read>> open_read(std::size_t i) const noexcept;
  Result<std::unique_ptr<Read>> open_read_here(std::size_t i) const noexcept;

  const std::vector<Part> parts_;
  std::vector<std::uint64_t> firsts_;
  std::uint64_t bytes_ = 0;
  const bool direct_;
  const std::size_t most_read_;  ///< files in read_
  const std::int64_t recent_ns_;
  struct State {
    ~State() { delete residency.load(); }
    std::atomic<int> error{0};
    std::atomic<const std::byte*> mapped{nullptr};
    std::atomic<const Residency*> residency{nullptr};  ///< set by the first probe; has no descriptor
    std::atomic<std::uint64_t> length{0};
    std::atomic<std::int64_t> length_ns{0};  ///< when it had this length
  };
  const std::unique_ptr<State[]> states_;
  FewOpen<Probed> probed_;
  FewOpen<Read> read_;
};

}  // namespace lmdbio
