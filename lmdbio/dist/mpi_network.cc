#include "lmdbio/dist/mpi_network.h"

#include <map>
#include <new>

#include "lmdbio/dist/message.h"
#include "lmdbio/dist/mpi_transport.h"

namespace lmdbio::dist {

int MpiNetwork::make(MPI_Comm comm, std::unique_ptr<MpiNetwork>& out) {
  std::unique_ptr<MpiNetwork> made(new MpiNetwork);
  int rc = MPI_Comm_dup(comm, &made->comm_);
  if (rc != MPI_SUCCESS) return rc;
  (void)MPI_Comm_set_errhandler(made->comm_, MPI_ERRORS_RETURN);
  int level = MPI_THREAD_SINGLE;
  (void)MPI_Query_thread(&level);
  made->threads_ = level == MPI_THREAD_MULTIPLE     ? Threads::any
                   : level == MPI_THREAD_SERIALIZED ? Threads::one_at_a_time
                                                    : Threads::main_only;
  void* tag = nullptr;
  int found = 0;
  if (MPI_Comm_get_attr(made->comm_, MPI_TAG_UB, &tag, &found) == MPI_SUCCESS && found != 0)
    made->largest_tag_ = *static_cast<int*>(tag);
  rc = made->find_nodes();
  if (rc != MPI_SUCCESS) {
    made->free();
    return rc;
  }
  out = std::move(made);
  return MPI_SUCCESS;
}

// Ranks of a node are those that can share memory; a node has the number of its first rank, in order.
int MpiNetwork::find_nodes() {
  int rank = 0, ranks = 0;
  (void)MPI_Comm_rank(comm_, &rank);
  (void)MPI_Comm_size(comm_, &ranks);
  rank_ = static_cast<std::uint32_t>(rank);
  MPI_Comm node = MPI_COMM_NULL;
  int rc = MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  if (rc != MPI_SUCCESS) return rc;
  int first = rank;
  rc = MPI_Bcast(&first, 1, MPI_INT, 0, node);
  (void)MPI_Comm_free(&node);
  if (rc != MPI_SUCCESS) return rc;
  std::vector<int> firsts(static_cast<std::size_t>(ranks));
  rc = MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, comm_);
  if (rc != MPI_SUCCESS) return rc;
  std::map<int, std::uint32_t> numbers;
  for (const int f : firsts)
    nodes_.push_back(numbers.try_emplace(f, static_cast<std::uint32_t>(numbers.size())).first->second);
  return MPI_SUCCESS;
}

void MpiNetwork::free() noexcept {
  if (comm_ != MPI_COMM_NULL) (void)MPI_Comm_free(&comm_);
}

bool MpiNetwork::in_main_thread() const noexcept {
  int main = 0;
  return MPI_Is_thread_main(&main) == MPI_SUCCESS && main != 0;
}

// Tags come again once there are no more: what has had them is closed for long.
std::unique_ptr<Transport> MpiNetwork::open_port(std::uint32_t port) noexcept {
  const auto ports = static_cast<std::uint32_t>(largest_tag_) / kChannels - 1;
  const std::uint32_t row = port == 0 ? 0 : 1 + (port - 1) % (ports - 1);
  return std::unique_ptr<Transport>(new (std::nothrow)
                                        MpiTransport(comm_, static_cast<int>(row * kChannels)));
}

}  // namespace lmdbio::dist
