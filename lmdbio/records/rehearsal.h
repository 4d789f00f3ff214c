// The order of a followed database: batches of new samples, with old samples drawn from a buffer.
//
// A pure function of its terms, of the log (when how many samples arrived and which were removed), and of the
// samples' labels.  So every process that is given the same log computes the same batches.  docs/format.md
// defines the order; it must never change, because resumed jobs depend on it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/records/number_set.h"

namespace lmdbio::records {

/// Which of the samples that were delivered can be drawn again.
enum class BufferKind : unsigned char {
  reservoir,  ///< `capacity` samples, each with the same probability (Algorithm R)
  per_class,  ///< one reservoir of `capacity` samples for each label; draws take the labels in turn
  ring,       ///< the last `capacity` samples
  all,        ///< all samples
};

struct RehearsalTerms {
  std::uint64_t seed = 0;
  std::uint64_t fresh = 1;  ///< new samples in a batch; 0: batches have only old samples
  std::uint64_t old = 0;    ///< old samples in a batch
  std::uint64_t lag = 4;    ///< batches between the state of the buffer and the batch that was drawn from it
  BufferKind kind = BufferKind::reservoir;
  std::uint64_t capacity = 1;  ///< at least 1; not used by BufferKind::all
};

/// A sample that was removed: its record was deleted or replaced.
struct RemovedSample {
  std::uint64_t number;
  std::uint64_t label = 0;
};

/// Computes batches.  A sample is identified by its number; numbers count all samples in the order in which
/// they are delivered.  One thread.  Functions throw bad_alloc.
class Rehearsal {
 public:
  struct Batch {
    std::vector<std::uint64_t> fresh, old;  ///< numbers of samples
  };

  /// A larger lag needs too much memory: the constructor throws bad_alloc.
  static constexpr std::uint64_t kMostLag = 1 << 16;

  explicit Rehearsal(const RehearsalTerms& terms);

  // The log.  Labels are in key order; empty: every label is 0.

  /// Makes `count` samples old ones, which are not delivered as new.  Their numbers are in key order.  Call
  /// it once, before all other functions.
  void start(std::uint64_t count, std::span<const std::uint64_t> labels);
  /// Adds the samples of one entry of the log, `count` > 0 records in key order.  They are delivered after
  /// all samples that arrived before.  Returns the number of the first one.
  std::uint64_t arrive(std::uint64_t count, std::span<const std::uint64_t> labels);
  /// Returns the record, counted in key order, that sample `first` + `i` is, of the entry that arrive() added
  /// last, with `count` records.
  std::uint64_t record_of(std::uint64_t count, std::uint64_t i) const noexcept;
  /// record_of(count, i) is shuffle(arrival_seed(), entries(), count, i); see order.h.
  std::uint64_t arrival_seed() const noexcept { return arrival_key_; }
  std::uint64_t entries() const noexcept { return entries_; }
  /// Removes samples that have arrived.  They are not delivered any more, neither as new nor as old ones.
  /// Samples that were delivered and cannot be drawn any more have to be given as well, or counted by
  /// remove_forgotten().
  void remove(std::span<const RemovedSample> samples);
  /// Removes a sample with this label that was delivered, is not in the buffer, and is not in upcoming().
  void remove_forgotten(std::uint64_t label);

  // Batches.

  /// Returns the number of samples that have arrived and were not delivered.
  std::uint64_t pending() const noexcept { return pending_.size(); }
  /// Returns the next batch: min(fresh, pending()) new samples, and the old samples that were drawn for it.
  Batch next();
  /// Returns the number of the next batch, from 0.
  std::uint64_t batch() const noexcept { return batch_; }
  /// Returns the old samples of the next `lag` + 1 batches.
  const std::deque<std::vector<std::uint64_t>>& upcoming() const noexcept { return drawn_; }
  /// Returns the numbers of the samples that may be delivered from now on.
  std::vector<std::uint64_t> live() const;
  /// Returns an upper limit on the number of live(), which takes no long time.
  std::uint64_t most_live() const noexcept;
  /// Returns the `n`-th sample that will be delivered as new, from 0; `n` is less than pending().
  std::uint64_t pending_at(std::uint64_t n) const noexcept { return pending_.nth(n); }
  /// Returns the first of these samples whose number is at least `number`; UINT64_MAX if there is none.
  std::uint64_t pending_from(std::uint64_t number) const noexcept { return pending_.next(number); }
  /// Returns about how much memory the object takes, in bytes.
  std::uint64_t memory_bytes() const noexcept;

  // The state, for jobs that stop and continue.

  std::string save() const;
  /// Sets this object, which has the same terms, to a saved state.  Returns false if `state` is damaged or
  /// has other terms; this object must then not be used.  It also refuses a state that has more than
  /// `most_samples` samples in its buffer, pending, and drawn.  They need up to 24 bytes each, but a crafted
  /// state may have many more of them than bytes.
  bool load(Bytes state, std::uint64_t most_samples = std::uint64_t{1} << 32);

 private:
  /// A walk through places in a random order, in passes.  A pass ends early if the number of places changes.
  struct Pass {
    std::uint64_t begun = 0;  ///< passes
    std::uint64_t position = 0, size = 0;
    std::uint64_t next(std::uint64_t key, std::uint64_t n) noexcept;
  };
  struct Reservoir {
    std::vector<std::uint64_t> slots;  ///< if swaps()
    NumberSet numbers;                 ///< otherwise: the slots, in ascending order
    std::uint64_t seen = 0;            ///< samples that were added, without removed ones
    /// Samples that were removed from the buffer and outside it, and whose place no new sample has taken.
    std::uint64_t gaps = 0, gaps_outside = 0;
    std::uint64_t label = 0;
    Pass pass;
    std::uint64_t size() const noexcept { return slots.size() + numbers.size(); }
    std::uint64_t at(std::uint64_t i) const noexcept {
      return slots.empty() ? numbers.nth(i) : slots[static_cast<std::size_t>(i)];
    }
  };
  struct Label {
    std::uint64_t number, label;
  };

  struct Place {
    std::size_t buffer, slot;
  };

  Reservoir& of(std::uint64_t label);
  /// Returns true if a removed sample's slot is filled with the last one.  Otherwise slots keep their order.
  bool swaps() const noexcept {
    return terms_.kind == BufferKind::reservoir || terms_.kind == BufferKind::per_class;
  }
  bool remove_from_reservoirs(std::uint64_t number);
  std::uint64_t label_of_next(std::uint64_t number) noexcept;
  void add(std::uint64_t number, std::uint64_t label);
  void draw();
  std::uint64_t total() const noexcept;
  std::uint64_t nth(std::uint64_t i) const noexcept;

  const RehearsalTerms terms_;
  const std::uint64_t arrival_key_, buffer_key_, substitute_key_;
  std::vector<Reservoir> buffers_;  ///< one, or one for each label, in the order in which labels were seen
  std::unordered_map<std::uint64_t, std::size_t> by_label_;
  /// The places of all samples in reservoirs; empty until the first ones are removed.
  std::unordered_map<std::uint64_t, Place> places_;
  Pass turns_;  ///< through the buffers that have samples
  NumberSet pending_;
  std::deque<Label>
      labels_;  ///< with the kind `per_class`: of pending_, and of samples that were removed from it
  std::deque<std::vector<std::uint64_t>> drawn_;  ///< for the batches from batch_ on
  std::uint64_t batch_ = 0, next_number_ = 0, entries_ = 0;
};

}  // namespace lmdbio::records
