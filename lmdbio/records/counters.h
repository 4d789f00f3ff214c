// The statistics of readers.
#pragma once

#include <iterator>

#include "lmdbio/base/counter.h"

namespace lmdbio::records {

/// Counts of one reader, or sums over several readers.  Any thread.
struct Counters {
  Counter index_read;  ///< 1 if the record index came from a file
  Counter batches, records;
  Counter bytes_given;  ///< bytes of keys and values that programs received
  Counter bytes_read;   ///< bytes read from the file
  Counter cache_read;   ///< bytes that the process has read from the cache on local disk
  Counter
      cache_unpack_ns;     ///< time of the reads of compressed data among them, in ns, decompression included
  Counter cache_filled;    ///< chunks that the process has added to the cache
  Counter cache_skipped;   ///< bytes that it did not add, because the thread that writes was behind
  Counter server_read;     ///< bytes that the server of the node has brought
  Counter bytes_copied;    ///< bytes copied from the page cache through the mapping
  Counter requests;        ///< reads of the file
  Counter fetches;         ///< fetches that have been read
  Counter fetches_cached;  ///< fetches that came from the page cache
  Counter leaf_hits, leaf_misses;  ///< leaf pages of keys that were cached, and that were not
  Counter waits, wait_ns;          ///< the program's waits for batches
  Counter failed;                  ///< batches that could not be returned
  // Readers that the ranks of an MPI job share:
  Counter messages_sent;  ///< messages with records
  Counter bytes_sent;     ///< bytes of records in these messages
  Counter bytes_received;
  Counter bytes_from_nodes;  ///< part of bytes_received that came from other nodes
  Counter records_alone;     ///< records read here because other ranks were late, failed or had left
};

/// All counters, with their names in reports (docs/operations.md).
inline constexpr CounterField<Counters> kCounters[] = {
    {"index_read", &Counters::index_read},
    {"batches", &Counters::batches},
    {"records", &Counters::records},
    {"bytes", &Counters::bytes_given},
    {"read", &Counters::bytes_read},
    {"cache_read", &Counters::cache_read},
    {"cache_unpack_us", &Counters::cache_unpack_ns, 1000},
    {"cache_filled", &Counters::cache_filled},
    {"cache_skipped", &Counters::cache_skipped},
    {"server_read", &Counters::server_read},
    {"copied", &Counters::bytes_copied},
    {"requests", &Counters::requests},
    {"fetches", &Counters::fetches},
    {"fetches_cached", &Counters::fetches_cached},
    {"leaf_hits", &Counters::leaf_hits},
    {"leaf_misses", &Counters::leaf_misses},
    {"waits", &Counters::waits},
    {"wait_us", &Counters::wait_ns, 1000},
    {"failed", &Counters::failed},
    {"messages_sent", &Counters::messages_sent},
    {"bytes_sent", &Counters::bytes_sent},
    {"bytes_received", &Counters::bytes_received},
    {"bytes_from_nodes", &Counters::bytes_from_nodes},
    {"records_alone", &Counters::records_alone},
};
static_assert(std::size(kCounters) * sizeof(Counter) == sizeof(Counters), "a counter without a row");

}  // namespace lmdbio::records
