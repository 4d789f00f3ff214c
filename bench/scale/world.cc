#include "bench/scale/world.h"

namespace lmdbio::bench {

void World::wait_for_all(Loader& loader) {
  constexpr double kPauseS = 100e-6;
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) {
    loader.poll();
    sleep(kPauseS);
  }
}

}  // namespace lmdbio::bench
