// The result of a call, in LMDB's own numbering, so that it crosses the C boundary unchanged.
#pragma once

#include <cassert>

namespace lmdbio {

/// A result code, one int wide.  0 means success, a positive number is an errno, and a number from -30799 to
/// -30700 is an MDB_* code.
class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  /// `e`: an errno, above 0.
  static constexpr Status from_errno(int e) noexcept {
    assert(e > 0);
    return Status(e);
  }
  /// `rc`: a code of lmdb.h, such as MDB_NOTFOUND.
  static constexpr Status from_mdb(int rc) noexcept {
    assert(rc <= -30700);
    return Status(rc);
  }
  /// Converts a result of the kernel: a negative number is a negated errno, any other number means success.
  static constexpr Status from_kernel(long res) noexcept {
    return res < 0 ? from_errno(static_cast<int>(-res)) : Status();
  }
  constexpr bool ok() const noexcept { return rc_ == 0; }
  constexpr int raw() const noexcept { return rc_; }
  friend constexpr bool operator==(Status a, Status b) noexcept { return a.rc_ == b.rc_; }

 private:
  explicit constexpr Status(int rc) noexcept : rc_(rc) {}
  int rc_ = 0;
};

}  // namespace lmdbio
