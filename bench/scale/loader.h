// Loaders give a rank its records step by step, by the chosen strategy.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/scale/sequence.h"
#include "bench/scale/storage.h"
#include "bench/scale/strategy.h"

namespace lmdbio::bench {

/// Which of the records of a fetch each rank uses.
enum class Assignment : unsigned char {
  strided,     ///< rank r of P uses the records r, r + P, ..
  contiguous,  ///< rank r uses the r-th of P equal parts
};

struct LoaderSettings {
  Strategy strategy;
  std::string database;     ///< a directory
  std::string library;      ///< liblmdbio_mpi.so, or a name that the loader finds
  std::uint64_t batch = 1;  ///< records of a rank and step
  std::uint64_t epochs = 1;
  Assignment assignment = Assignment::contiguous;
  Order order = Order::sequential;
  std::string keys;      ///< the file of Keys; stock LMDB needs it if the order is shuffled
  unsigned workers = 0;  ///< with stock LMDB: threads of a rank that read batches ahead; 0: none does
};

struct Value {
  std::uint64_t ordinal = 0;
  std::span<const std::byte> bytes;
};

/// Totals of all ranks from LMDBIO's statistics.  Known on rank 0, after close().
struct LibraryCounters {
  bool known = false;
  std::uint64_t file_bytes = 0, file_requests = 0, memory_bytes = 0;
  std::uint64_t messages = 0;    ///< messages with records, between ranks
  std::uint64_t rank_bytes = 0;  ///< bytes of these messages
  std::uint64_t node_bytes = 0;  ///< part of rank_bytes between nodes
};

/// Counters of one rank so far.
struct LoaderCounters {
  IoCounters direct;  ///< the rank's direct requests, without those of the library
  LibraryCounters library;
  std::uint64_t sent_bytes = 0;  ///< bytes of places that were sent to other readers
  std::uint64_t wrong_guesses = 0;
  bool reads = false;  ///< the rank is a reader
};

/// Returns the number of steps of an epoch.  In each step, every rank has a whole batch.
constexpr std::uint64_t steps_per_epoch(std::uint64_t records, std::uint64_t batch,
                                        std::uint64_t ranks) noexcept {
  return records / (batch * ranks);
}

/// All ranks call the same functions in the same order.  One thread.
class Loader {
 public:
  virtual ~Loader() = default;
  /// Returns the number of records of the database.
  virtual std::uint64_t records() const = 0;
  /// Returns the rank's batch of the next step.  After the last step of an epoch comes the first step of the
  /// next one.  Valid until the next call.
  virtual std::span<const Value> next() = 0;
  /// Called by a rank that waits for others: sends them data that they wait for, if no thread does.
  virtual void poll() {}
  /// Ends loading.  Call only counters() and records() afterwards.
  virtual void close() {}
  virtual LoaderCounters counters() const { return {}; }
};

class World;

/// Makes the loader for the strategy.  `world` must outlive it.  Ends the program, on all ranks, on an error.
std::unique_ptr<Loader> make_loader(const LoaderSettings& settings, World& world);

/// The functions that make_loader() chooses from.
/// This loader loads the steps first, first + stride, .. of all steps of all epochs.
std::unique_ptr<Loader> stock_loader(const LoaderSettings& settings, World& world, std::uint64_t first = 0,
                                     std::uint64_t stride = 1);
/// Reads batches with stock LMDB in settings.workers threads, each of which holds one batch.
std::unique_ptr<Loader> workers_loader(const LoaderSettings& settings, World& world);
std::unique_ptr<Loader> node_loader(const LoaderSettings& settings, World& world);
std::unique_ptr<Loader> library_loader(const LoaderSettings& settings);

}  // namespace lmdbio::bench
