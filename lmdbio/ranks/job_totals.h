// Totals of the readers of all ranks of a job.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace lmdbio::ranks {

/// Counters of one rank or of all ranks.  The structure contains only numbers, so that it can be sent to rank
/// 0.
struct JobTotals {
  std::uint64_t records = 0, bytes = 0;             ///< records, and their bytes, that programs received
  std::uint64_t file_bytes = 0, file_requests = 0;  ///< bytes read from the file, and requests
  std::uint64_t memory_bytes = 0;                   ///< bytes copied from the page cache
  std::uint64_t messages = 0;                       ///< messages with records between ranks
  std::uint64_t rank_bytes = 0, node_bytes = 0;     ///< bytes in these messages, and their part between nodes
  std::uint64_t records_alone = 0;                  ///< records that the rank that used them has read itself
  std::uint64_t waits = 0, wait_ns = 0;             ///< waits of programs for batches

  void add(const JobTotals& other) noexcept {
    for (std::uint64_t JobTotals::*const field :
         {&JobTotals::records, &JobTotals::bytes, &JobTotals::file_bytes, &JobTotals::file_requests,
          &JobTotals::memory_bytes, &JobTotals::messages, &JobTotals::rank_bytes, &JobTotals::node_bytes,
          &JobTotals::records_alone, &JobTotals::waits, &JobTotals::wait_ns})
      this->*field += other.*field;
  }
};

}  // namespace lmdbio::ranks
