// The database file of a simulated job of servers, on a modelled file system.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "bench/scale/simulation/clock.h"
#include "bench/scale/simulation/storage_model.h"
#include "lmdbio/serve/home_files.h"

namespace lmdbio::bench {

/// The file of all nodes.
struct ServedFileFacts {
  std::string path;
  node::ServedState state;
  std::uint64_t bytes;
  std::uint64_t most_request_bytes;  ///< reads are divided into requests of at most so many bytes
};

/// The files of one node.  Bytes have no content.  Neither this object nor its files may end before their
/// reads.
class SimulatedFiles final : public serve::HomeFiles {
 public:
  /// Calls `wake` when an open or a request has ended.  All arguments but `wake` must outlive this object and
  /// its files.
  SimulatedFiles(const ServedFileFacts& facts, StorageModel& storage, std::size_t node, const Clock& clock,
                 std::function<void()> wake)
      : facts_(facts), storage_(storage), node_(node), clock_(clock), wake_(std::move(wake)) {}
  std::unique_ptr<serve::HomeFile> open(const std::string& path, const node::ServedState& state) override;

 private:
  class File;
  class Block;
  std::int64_t now_ns() const { return static_cast<std::int64_t>(clock_.seconds() * 1e9); }
  void read(std::uint64_t offset, std::uint64_t bytes, std::function<void()> done);

  const ServedFileFacts& facts_;
  StorageModel& storage_;
  const std::size_t node_;
  const Clock& clock_;
  const std::function<void()> wake_;
};

}  // namespace lmdbio::bench
