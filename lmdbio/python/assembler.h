// Assembles batches for lmdbio.torch.TensorLoader: threads copy the records of each batch into one buffer.
#pragma once

#include <lmdbio/lmdbio.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/python/batch.h"
#include "lmdbio/python/buffer_store.h"
#include "lmdbio/python/handle.h"
#include "lmdbio/python/layout.h"
#include "lmdbio/python/made.h"
#include "lmdbio/python/stream.h"

namespace lmdbio::python {

/// The bytes of an assembled batch, which Python sees as a writable buffer.  Gives the memory back to the
/// store when the last view of it is gone.
class Assembled {
 public:
  using PythonClass = void;  ///< see made.h
  Assembled(std::shared_ptr<BufferStore> store, BufferStore::Memory memory, std::size_t used) noexcept
      : store_(std::move(store)), memory_(memory), used_(used) {}
  Assembled(const Assembled&) = delete;
  Assembled& operator=(const Assembled&) = delete;
  ~Assembled() { store_->give_back(memory_); }

  std::byte* data() const noexcept { return memory_.data; }
  std::size_t size() const noexcept { return used_; }

 private:
  const std::shared_ptr<BufferStore> store_;
  const BufferStore::Memory memory_;
  const std::size_t used_;
};

/// Reads batches, or gets them from a lmdbio.Follow, and copies each of their records once, to its place in a
/// buffer.  One thread at a time reads a batch.  The threads copy the oldest batch that still has records to
/// copy.
///
/// The oldest batch is always prepared.  A later batch waits until it is the oldest one if the process may
/// not use more memory.
///
/// The caller holds the GIL in all functions.  The threads never take it.  No other lock is taken while
/// `mutex_` is held.
class Assembler {
 public:
  using PythonClass = void;  ///< see made.h
  /// Copies with `threads` threads, which exist until close().  `buffers`: number of buffers that are kept
  /// for later batches.  `reader`: without a reader of the library, only add_batch() may be called.
  Assembler(std::shared_ptr<Handle> reader, std::unique_ptr<Layout> layout, unsigned threads,
            std::size_t buffers);
  Assembler(const Assembler&) = delete;
  Assembler& operator=(const Assembler&) = delete;
  ~Assembler() { close(); }

  /// Opens a stream of an lmdbio.Order, from which the batches of later calls of add() come.
  void open(const pybind11::object& order);
  /// Returns true if the process may use `bytes` bytes more for a buffer of the caller.  They count for the
  /// next batch that is requested with an address.
  bool reserve(std::size_t bytes);
  /// Requests the next batch of the stream.  `to`: address of its buffer, which must stay valid until next()
  /// has returned the batch, or until close(); 0: a buffer of this class.
  void add(std::uintptr_t to);
  /// Requests a batch that was read already.  Raises ValueError if it is null.
  void add_batch(OwnedBatch batch, std::uintptr_t to);
  /// Requests a batch of these ordinals.
  void add_ordinals(const Ordinals& ordinals, std::uintptr_t to);
  /// Returns the oldest batch that was requested, as its number of records and its buffer.  The buffer is
  /// None if add() got an address.  Waits until the batch is complete.  If it fails, raises the exception of
  /// the stream, or ValueError if a record does not fit the layout; close() is the only call that may follow.
  pybind11::tuple next();
  /// Returns BufferStore::peak().
  std::size_t peak() const noexcept { return store_->peak(); }
  /// Ends the threads.  Buffers stay valid.  Any thread; another thread in next() gets CancelledError.  Does
  /// nothing in a forked child, which has none of the threads.
  void close() noexcept;

  /// Destroys an Assembler.  In a forked child, which has none of the threads and may have inherited a locked
  /// mutex, the memory is not released.
  struct Delete {
    void operator()(Assembler* a) const noexcept;
  };

 private:
  struct Job {
    std::shared_ptr<Stream> stream;  ///< null: `ordinals`, unless `batch` was given
    std::vector<std::uint64_t> ordinals;
    std::byte* to = nullptr;  ///< the buffer; null: `memory`, which read() takes
    BufferStore::Memory memory;
    std::size_t bytes = 0;  ///< of the batch in its buffer
    OwnedBatch batch;       ///< null until read() has read it or add_batch() got it, and when `done` is set
    std::size_t records = 0;
    std::size_t slice = 1;              ///< number of records that a thread copies at a time
    std::size_t taken = 0, copied = 0;  ///< numbers of records
    bool done = false;                  ///< all records were copied, or `rc` was set
    int rc = 0;                         ///< an errno or an MDB_ code
    std::string why;
  };

  void add(Job job, std::uintptr_t to);
  void work() noexcept;
  /// Reads the batch of a job, and takes a buffer for it.  Returns an error code and sets `why`.  After
  /// ENOMEM, it may be called again.  `oldest`: the buffer is taken even if the process may not use more
  /// memory.
  int read(Job& job, bool oldest, std::string& why) const noexcept;
  /// Copies records first, ..., end - 1 of a job.  Returns an error code and sets `why`.
  int copy(const Job& job, std::size_t first, std::size_t end, std::string& why) const noexcept;
  /// Ends a job: stores `rc`, and drops the job's batch once no thread copies its records.  `rc` is 0 if all
  /// records were copied.  Call it under the lock.
  void end(Job& job, int rc, std::string why) noexcept;

  const std::shared_ptr<Handle> reader_;
  const std::unique_ptr<Layout> layout_;
  const std::shared_ptr<BufferStore> store_;
  // Guarded by the GIL.
  std::shared_ptr<Stream> stream_;
  bool busy_ = false;  ///< a thread is in next()
  BufferStore::Memory reserved_;

  std::mutex mutex_;  ///< guards all members below
  std::condition_variable wake_threads_, wake_caller_;
  std::deque<Job> jobs_;    ///< oldest first; references to elements stay valid
  std::size_t unread_ = 0;  ///< index in jobs_ of the next batch to read
  bool reading_ = false;    ///< a thread is in read()
  bool failed_ = false;     ///< no further batch is read
  bool waits_ = false;      ///< the next batch is read when it is the oldest one, since memory is short
  std::vector<std::thread> threads_;
  std::atomic<bool> closing_{false};  ///< set under the lock, read by waits for storage as well
};

/// Makes an Assembler.  layout: a tuple that describes the layout; see _fields.py.
std::unique_ptr<Assembler, Assembler::Delete> make_assembler(std::shared_ptr<Handle> reader,
                                                             const pybind11::tuple& layout, unsigned threads,
                                                             std::size_t buffers);
/// Adds the classes _Assembler and _Assembled, and the function _datum(), to `module`.
void add_assembler(pybind11::module_& module);

}  // namespace lmdbio::python
