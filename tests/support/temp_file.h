// A file for one test, removed with the object.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio::testing {

class TempFile {
 public:
  explicit TempFile(Bytes contents = {}) : path_(::testing::TempDir() + "lmdbio_XXXXXX") {
    fd_.reset(::mkstemp(path_.data()));
    EXPECT_TRUE(fd_) << path_;
    append(contents);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { ::unlink(path_.c_str()); }

  void append(Bytes b) {
    while (!b.empty()) {
      const ssize_t n = ::write(fd_.get(), b.data(), b.size());
      ASSERT_GT(n, 0);
      b = b.subspan(static_cast<std::size_t>(n));
    }
  }
  const char* path() const { return path_.c_str(); }
  int fd() const { return fd_.get(); }  // open for reading and writing

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace lmdbio::testing
