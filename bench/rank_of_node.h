// The nodes of the ranks of an MPI job.
#pragma once

#include <mpi.h>

namespace lmdbio::bench {

/// Returns a communicator of the ranks of this process's node.  All ranks call it.  The caller frees the
/// communicator.
inline MPI_Comm split_by_node() {
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  return node;
}

/// Returns the rank of this process among the ranks of its node.  All ranks call it.
inline int rank_of_node() {
  MPI_Comm node = split_by_node();
  int rank = 0;
  MPI_Comm_rank(node, &rank);
  MPI_Comm_free(&node);
  return rank;
}

}  // namespace lmdbio::bench
