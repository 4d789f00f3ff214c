// An engine for single reads that a thread of the program waits for.
#pragma once

#include <memory>
#include <optional>

#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {

/// Makes one read at a time.  For a kept file, an existing thread of the private table reads.  The caller
/// waits, and can detect that the read takes long.  For any other file, submit() reads, with the program's
/// signals unblocked.  A read costs one system call and, for a kept file, two context switches.  The File
/// must outlive the engine.
class SingleEngine final : public IoEngine {
 public:
  enum class Bytes : unsigned char {
    copied,    ///< to the destination
    unwanted,  ///< into the page cache only; reaching the end of the file is no error
  };
  /// Makes an engine for `file`.  Errors: ENOMEM; EBADF if there is no private table (any more).
  static Result<std::unique_ptr<IoEngine>> make(const File& file, Bytes bytes) noexcept;

  ~SingleEngine() override;
  void wait_briefly(std::int64_t ns) noexcept override;
  void forget() noexcept override;

 private:
  /// A read, shared with the thread that makes it.
  struct Request {
    const File& file;
    const Bytes bytes;
    RawRead read{};
    long result = 0;
    std::optional<PrivateTable::Job> job{};
    std::optional<OneShot> done{};
    void run(int fd) noexcept;
  };

  SingleEngine(std::unique_ptr<Request> request, std::shared_ptr<PrivateTable> table) noexcept;
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override;
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override;

  std::unique_ptr<Request> request_;           // null after forget() in a forked child
  const std::shared_ptr<PrivateTable> table_;  // if null, submit() reads
  bool busy_ = false;                          // the request has not been reaped
};

}  // namespace lmdbio
