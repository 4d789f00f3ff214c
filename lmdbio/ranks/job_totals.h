// Totals of the readers of all ranks of a job.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace lmdbio::ranks {

/// Counters of one rank or of all ranks.  Plain numbers, since they are sent to rank 0.
struct JobTotals {
  std::uint64_t records = 0, bytes = 0;             ///< that programs received
  std::uint64_t file_bytes = 0, file_requests = 0;  ///< read from the file
  std::uint64_t memory_bytes = 0;                   ///< copied out of the page cache
  std::uint64_t messages = 0;                       ///< with records, between ranks
  std::uint64_t rank_bytes = 0, node_bytes = 0;     ///< bytes in these messages; of these, between nodes
  std::uint64_t records_alone = 0;                  ///< read by the rank that used them, not sent to it
  std::uint64_t waits = 0, wait_ns = 0;             ///< of programs that waited for batches

  void add(const JobTotals& other) noexcept {
    for (std::uint64_t JobTotals::*const field :
         {&JobTotals::records, &JobTotals::bytes, &JobTotals::file_bytes, &JobTotals::file_requests,
          &JobTotals::memory_bytes, &JobTotals::messages, &JobTotals::rank_bytes, &JobTotals::node_bytes,
          &JobTotals::records_alone, &JobTotals::waits, &JobTotals::wait_ns})
      this->*field += other.*field;
  }
};

}  // namespace lmdbio::ranks
