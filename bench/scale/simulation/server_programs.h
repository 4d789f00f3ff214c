// The program of a node of a simulated job of servers: it wants pieces of the database file in an order, as
// fast as it gets them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/scale/simulation/clock.h"
#include "bench/scale/simulation/server_files.h"
#include "lmdbio/node/service.h"

namespace lmdbio::bench {

/// What the programs of all nodes want.
struct WantedPieces {
  enum class Order {
    in_order,  ///< each program the whole file, in large requests
    strided,   ///< each N-th record, with N nodes
    shuffled   ///< as many records, each program others, in a random order
  };
  Order order = Order::in_order;
  std::uint64_t record_bytes = 0;  ///< not in_order
  std::uint64_t file_bytes = 0;    ///< a multiple of record_bytes
  std::uint32_t nodes = 1;
  std::uint64_t seed = 1;

  struct Piece {
    std::uint64_t offset;
    std::size_t bytes;
  };
  /// Returns the number of records, or of large requests, of a node.
  std::uint64_t count(std::uint32_t node) const;
  /// Appends what a node wants as its n-th record or large request.
  void append(std::uint32_t node, std::uint64_t n, std::deque<Piece>& to) const;
  /// Call it before the other functions.
  void prepare();

 private:
  std::uint64_t records() const { return file_bytes / record_bytes; }
  std::vector<std::uint32_t> shuffled_;
};

class SimulatedProgram final : public node::ServiceRequests {
 public:
  struct Settings {
    unsigned requests = node::kServiceSlots;  ///< that it makes at the same time, at most
    double copy_bytes_s = 1e18;  ///< speed of the copy into a slot, with the hash, and of that from a slot
    double call_s = 0.5e-6;      ///< CPU time of a server for each request
  };
  /// All references must outlive the program.  `ask` is called when it has made a request, `ended` when it
  /// has all bytes.
  SimulatedProgram(std::uint32_t node, const WantedPieces& wanted, const ServedFileFacts& file,
                   const Settings& settings, Clock& clock, std::function<void()> ask,
                   std::function<void()> ended);
  /// Opens the file, and then wants bytes.
  void start();
  /// Adds the server's CPU time for this program to `*cpu_s`, as ServerTransport.
  double* cpu_s = nullptr;
  bool has_asked() const noexcept { return !asked_.empty(); }
  std::uint64_t bytes() const noexcept { return bytes_; }
  double opened_at() const noexcept { return opened_at_; }
  double ended_at() const noexcept { return ended_at_; }
  /// Returns the longest time, in seconds, in which requests waited and the server did not show that it
  /// works. A program that waits for longer than node::Service::kMostWait reads the file system.
  double longest_silence_s() const noexcept { return longest_silence_s_; }
  /// Requests that the server could not serve.
  std::uint64_t failed() const noexcept { return failed_; }

  void show_work() noexcept override;
  std::optional<Request> next() noexcept override;
  std::string path(const Request&) const override { return file_.path; }
  void finish(const Request& request, std::int64_t result, Bytes bytes) noexcept override;

 private:
  void got(const Request& request, std::int64_t result);
  void want_more();

  const std::uint32_t node_;
  const WantedPieces& wanted_;
  const ServedFileFacts& file_;
  const Settings settings_;
  Clock& clock_;
  const std::function<void()> ask_, ended_;
  std::deque<Request> asked_;
  std::deque<WantedPieces::Piece> pieces_;  ///< of the record that is asked for
  std::uint64_t records_ = 0;               ///< whose pieces were taken from wanted_
  std::uint64_t number_ = 0, first_ = 0;    ///< of the next request, and of the first one that has not ended
  std::vector<std::uint64_t> numbers_;      ///< by slot; kFree: the slot is free
  std::vector<bool> done_;                  ///< by number, modulo the requests
  std::uint32_t served_as_ = 0;
  std::uint64_t bytes_ = 0, failed_ = 0;
  double opened_at_ = 0, ended_at_ = 0;
  double shown_at_ = 0, longest_silence_s_ = 0;
};

}  // namespace lmdbio::bench
