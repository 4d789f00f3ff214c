// What SMPI 3.32 lacks of the MPI that lmdbio/dist uses.  Included before its sources.
#pragma once

#include <mpi.h>

namespace lmdbio::bench {

/// MPI_Get_elements_x, for messages whose bytes an int can count.
inline int get_elements(const MPI_Status* status, MPI_Datatype type, MPI_Count* elements) noexcept {
  int n = 0;
  const int rc = MPI_Get_count(status, type, &n);
  *elements = n;
  return rc;
}

}  // namespace lmdbio::bench

#define MPI_Get_elements_x lmdbio::bench::get_elements
