// Caffe's interface of databases, and what caffe_patch/intel_caffe.patch inserts into it (checked by
// patch_test.py).
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "caffe/common.hpp"

namespace caffe {
namespace db {

enum Mode { READ, WRITE, NEW };

class Cursor {
 public:
  Cursor() {}
  virtual ~Cursor() {}
  virtual void SeekToFirst() = 0;
  virtual void Next() = 0;
  virtual string key() = 0;
  virtual string value() = 0;
  virtual std::pair<void*, size_t> valuePointer() = 0;
  virtual bool valid() = 0;
  // clang-format off
  virtual bool hasTokens() const { return false; }  // valuePointer() returns tokens
  virtual string tokenValue(void* token) { return string(); }
  virtual void tellOrder(const std::vector<std::pair<void*, int> >& tokens) { }
  // clang-format on

  DISABLE_COPY_AND_ASSIGN(Cursor);
};

class Transaction {
 public:
  virtual ~Transaction() {}
};

class DB {
 public:
  DB() {}
  virtual ~DB() {}
  virtual void Open(const string& source, Mode mode) = 0;
  virtual void Close() = 0;
  virtual Cursor* NewCursor() = 0;
  virtual Transaction* NewTransaction() = 0;

  DISABLE_COPY_AND_ASSIGN(DB);
};

}  // namespace db
}  // namespace caffe
