// As Caffe's cursor of the backend LMDB, over records that the real LMDB has returned.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "caffe/util/db.hpp"

namespace lmdbio::testing {

/// Borrows the records: pairs of key and value.
class StockCursor final : public caffe::db::Cursor {
 public:
  explicit StockCursor(const std::vector<std::pair<std::string, std::string>>& records) : records_(records) {}
  void SeekToFirst() override { at_ = 0; }
  void Next() override { ++at_; }
  bool valid() override { return at_ < records_.size(); }
  std::string key() override { return records_[at_].first; }
  std::string value() override { return records_[at_].second; }
  std::pair<void*, std::size_t> valuePointer() override {
    return {const_cast<char*>(records_[at_].second.data()), records_[at_].second.size()};
  }

 private:
  const std::vector<std::pair<std::string, std::string>>& records_;
  std::size_t at_ = 0;
};

}  // namespace lmdbio::testing
