#include "lmdbio/ranks/mpi_network.h"

#include <chrono>
#include <map>
#include <new>
#include <thread>

#include "lmdbio/base/futex.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/mpi_transport.h"

namespace lmdbio::ranks {

namespace {

/// Waits for the request, for at most about `timeout_ns`.  Sets `done` to whether the request has completed.
/// Returns an MPI error code.
int wait_for(MPI_Request& request, std::int64_t timeout_ns, bool& done) noexcept {
  constexpr unsigned kYields = 1000;
  constexpr std::chrono::microseconds kPause{200};
  const std::int64_t begun = now_ns();
  for (unsigned n = 0;; ++n) {
    int ended = 0;
    if (const int rc = MPI_Test(&request, &ended, MPI_STATUS_IGNORE); rc != MPI_SUCCESS) return rc;
    done = ended != 0;
    if (done || now_ns() - begun > timeout_ns) return MPI_SUCCESS;
    if (n < kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

/// A transport with its own row of tags.  The destructor frees the row.
class MpiNetwork::Port final : public MpiTransport {
 public:
  Port(MpiNetwork& network, std::uint32_t row)
      : MpiTransport(network.comm_, static_cast<int>(row * kChannels)), network_(network), row_(row) {}
  ~Port() override {
    const std::lock_guard lock(network_.mutex_);
    network_.rows_.erase(row_);
  }

 private:
  MpiNetwork& network_;
  const std::uint32_t row_;
};

int MpiNetwork::make(MPI_Comm comm, std::int64_t timeout_ns, std::unique_ptr<MpiNetwork>& out,
                     int most_tags) {
  std::unique_ptr<MpiNetwork> made(new MpiNetwork);
  MPI_Request request = MPI_REQUEST_NULL;
  bool done = false;
  int rc = MPI_Comm_idup(comm, &made->comm_, &request);
  if (rc == MPI_SUCCESS) rc = wait_for(request, timeout_ns, done);
  // The barrier completes only if no rank has given up.  A rank that has given up may still complete its
  // duplication inside another MPI call, but does not enter the barrier.
  if (rc == MPI_SUCCESS && done) rc = MPI_Ibarrier(made->comm_, &request);
  if (rc == MPI_SUCCESS && done) rc = wait_for(request, timeout_ns, done);
  if (rc == MPI_SUCCESS && !done) (void)made.release();  // leak it: MPI may still write to it
  if (rc != MPI_SUCCESS || !done) return rc;
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
  if (most_tags != 0) made->largest_tag_ = most_tags;
  rc = made->find_nodes();
  if (rc != MPI_SUCCESS) {
    made->free();
    return rc;
  }
  out = std::move(made);
  return MPI_SUCCESS;
}

// Determines the node of each rank.  Ranks that can share memory are on one node.  The nodes are numbered in
// the order of their first ranks.
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

// Returns the row of tags of a port.  If there are more ports than rows, several ports have the same row.
std::uint32_t MpiNetwork::row_of(std::uint32_t port) const noexcept {
  const auto ports = static_cast<std::uint32_t>(largest_tag_) / kChannels - 1;
  return port == 0 ? 0 : 1 + (port - 1) % (ports - 1);
}

bool MpiNetwork::port_in_use(std::uint32_t port) const noexcept {
  const std::lock_guard lock(mutex_);
  return rows_.contains(row_of(port));
}

std::unique_ptr<Transport> MpiNetwork::open_port(std::uint32_t port) noexcept {
  const std::uint32_t row = row_of(port);
  try {
    const std::lock_guard lock(mutex_);
    if (!rows_.insert(row).second) return nullptr;
  } catch (...) {
    return nullptr;
  }
  std::unique_ptr<Transport> made(new (std::nothrow) Port(*this, row));
  if (made == nullptr) {
    const std::lock_guard lock(mutex_);
    rows_.erase(row);
  }
  return made;
}

}  // namespace lmdbio::ranks
