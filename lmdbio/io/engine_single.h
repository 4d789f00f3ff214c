// The engine of single reads that a thread of the program waits for.
#pragma once

#include <memory>
#include <optional>

#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {

/// One read deep.  A kept file is read by a thread of the private table, which is there already: the caller
/// waits, and can tell when that takes long.  Any other file is read within submit(), with the program's
/// signals let through.  Costs one system call a read and, for a kept file, two changes of threads.  The File
/// outlives it.
class SingleEngine final : public IoEngine {
 public:
  enum class Bytes : unsigned char {
    copied,    ///< to where they are asked for
    unwanted,  ///< into the page cache and nowhere else; the end of the file is no error: as far as it goes
  };
  /// Errors: ENOMEM; EBADF: there is no private table (any more).
  static Result<std::unique_ptr<IoEngine>> make(const File& file, Bytes bytes) noexcept;

  ~SingleEngine() override;
  void wait_briefly(std::int64_t ns) noexcept override;
  void forget() noexcept override;

 private:
  /// A read, for the thread that makes it.
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

  std::unique_ptr<Request> request_;           // null: a forked child's, which has forgotten it
  const std::shared_ptr<PrivateTable> table_;  // null: reads within submit()
  bool busy_ = false;                          // the request has not been reaped
};

}  // namespace lmdbio
