// The records of a rank, step by step, by some strategy.
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

/// Which rank uses which of the records that all ranks together use in a fetch.
enum class Assignment : unsigned char {
  strided,     ///< each P-th
  contiguous,  ///< the r-th of P equal parts
};

struct LoaderSettings {
  Strategy strategy;
  std::string database;     ///< a directory
  std::string library;      ///< liblmdbio_mpi.so, or a name that the loader finds
  std::uint64_t batch = 1;  ///< records of a rank and step
  std::uint64_t epochs = 1;
  Assignment assignment = Assignment::contiguous;
  Order order = Order::sequential;
  std::string keys;  ///< Keys's file; needed by stock LMDB if shuffled
};

struct Value {
  std::uint64_t ordinal = 0;
  std::span<const std::byte> bytes;
};

/// What LMDBIO's library says of all ranks together, once it was closed; on rank 0.
struct LibraryCounters {
  bool known = false;
  std::uint64_t file_bytes = 0, file_requests = 0, memory_bytes = 0;
  std::uint64_t messages = 0;    ///< with records, between ranks
  std::uint64_t rank_bytes = 0;  ///< in them
  std::uint64_t node_bytes = 0;  ///< of these between nodes
};

/// What a rank has done so far.
struct LoaderCounters {
  IoCounters direct;  ///< its direct requests; those of the library are not in it
  LibraryCounters library;
  std::uint64_t sent_bytes = 0;  ///< places that it has sent to other readers
  std::uint64_t wrong_guesses = 0;
  bool reads = false;  ///< it is a reader
};

/// Steps that an epoch has: all ranks have a whole batch in each.
constexpr std::uint64_t steps_per_epoch(std::uint64_t records, std::uint64_t batch,
                                        std::uint64_t ranks) noexcept {
  return records / (batch * ranks);
}

/// All ranks call the same functions in the same order; one thread.
class Loader {
 public:
  virtual ~Loader() = default;
  /// Of the database.
  virtual std::uint64_t records() const = 0;
  /// The rank's batch of the next step; after the last step of an epoch comes the first one of the next.
  /// Valid until the next call.
  virtual std::span<const Value> next() = 0;
  /// Of a rank that waits for others: gives them what they wait for, if it has no thread for that.
  virtual void poll() {}
  /// Nothing but counters() and records() follows.
  virtual void close() {}
  virtual LoaderCounters counters() const { return {}; }
};

class World;

/// `world` outlives it.  Ends the program, on all ranks, if something is wrong.
std::unique_ptr<Loader> make_loader(const LoaderSettings& settings, World& world);

/// Parts of make_loader().
std::unique_ptr<Loader> stock_loader(const LoaderSettings& settings, World& world);
std::unique_ptr<Loader> node_loader(const LoaderSettings& settings, World& world);
std::unique_ptr<Loader> library_loader(const LoaderSettings& settings);

}  // namespace lmdbio::bench
