#include "lmdbio/ranks/mpi_transport.h"

#include <algorithm>
#include <cerrno>
#include <new>

namespace lmdbio::ranks {

namespace {

/// MPI's counts are of type int.  Messages of at least kLarge bytes are therefore counted in blocks of kBlock
/// bytes.
constexpr std::size_t kLarge = std::size_t{1} << 30, kBlock = std::size_t{1} << 20;

/// An MPI type of `bytes` bytes, for messages that are too large for a count in bytes.
class LargeType {
 public:
  explicit LargeType(std::size_t bytes) {
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE};
    rc_ = MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &parts[0]);
    if (rc_ != MPI_SUCCESS) return;
    const int counts[2] = {static_cast<int>(bytes / kBlock), static_cast<int>(bytes % kBlock)};
    const MPI_Aint at[2] = {0, static_cast<MPI_Aint>(bytes / kBlock * kBlock)};
    rc_ = MPI_Type_create_struct(2, counts, at, parts, &type_);
    (void)MPI_Type_free(&parts[0]);
    if (rc_ == MPI_SUCCESS) rc_ = MPI_Type_commit(&type_);
  }
  LargeType(const LargeType&) = delete;
  LargeType& operator=(const LargeType&) = delete;
  /// Frees the type.  MPI allows this while messages that use the type are under way.
  ~LargeType() {
    if (type_ != MPI_DATATYPE_NULL) (void)MPI_Type_free(&type_);
  }
  int rc() const noexcept { return rc_; }
  MPI_Datatype get() const noexcept { return type_; }

 private:
  int rc_ = MPI_SUCCESS;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace

MpiTransport::MpiTransport(MPI_Comm comm, int first_tag) noexcept : comm_(comm), first_tag_(first_tag) {
  int rank = 0, ranks = 1;
  (void)MPI_Comm_rank(comm, &rank);
  (void)MPI_Comm_size(comm, &ranks);
  rank_ = static_cast<std::uint32_t>(rank);
  ranks_ = static_cast<std::uint32_t>(ranks);
}

Status MpiTransport::check(int rc) {
  if (rc == MPI_SUCCESS) return {};
  int length = 0;
  if (MPI_Error_string(rc, error_, &length) != MPI_SUCCESS) error_[0] = '\0';
  return Status::from_errno(EIO);
}

// Makes room for one more request.  Must not throw, because the caller is in another library with its own C++
// runtime.
Status MpiTransport::make_room() noexcept {
  const std::size_t n = requests_.size() + 1;
  if (n <= requests_.capacity()) return {};
  try {
    ended_.reserve(2 * n);
    statuses_.reserve(2 * n);
    operations_.reserve(2 * n);
    requests_.reserve(2 * n);
  } catch (const std::bad_alloc&) {
    return Status::from_errno(ENOMEM);
  }
  return {};
}

Status MpiTransport::send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                          Operation& op) {
  if (const Status st = make_room(); !st.ok()) return st;
  MPI_Request request = MPI_REQUEST_NULL;
  const int peer = static_cast<int>(to), tag = first_tag_ + static_cast<int>(channel);
  int rc;
  if (bytes.size() < kLarge) {
    rc = MPI_Issend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, comm_, &request);
  } else {
    const LargeType type(bytes.size());
    rc = type.rc();
    if (rc == MPI_SUCCESS) rc = MPI_Issend(bytes.data(), 1, type.get(), peer, tag, comm_, &request);
  }
  if (const Status st = check(rc); !st.ok()) return st;
  op = {};
  op.under_way = true;
  requests_.push_back(request);
  operations_.push_back(&op);
  return {};
}

Status MpiTransport::receive(std::uint32_t from, unsigned channel, std::span<std::byte> room, Operation& op) {
  if (const Status st = make_room(); !st.ok()) return st;
  MPI_Request request = MPI_REQUEST_NULL;
  const int peer = from == kAnyRank ? MPI_ANY_SOURCE : static_cast<int>(from);
  const int tag = first_tag_ + static_cast<int>(channel);
  int rc;
  if (room.size() < kLarge) {
    rc = MPI_Irecv(room.data(), static_cast<int>(room.size()), MPI_BYTE, peer, tag, comm_, &request);
  } else {
    const LargeType type(room.size());
    rc = type.rc();
    if (rc == MPI_SUCCESS) rc = MPI_Irecv(room.data(), 1, type.get(), peer, tag, comm_, &request);
  }
  if (const Status st = check(rc); !st.ok()) return st;
  op = {};
  op.under_way = true;
  requests_.push_back(request);
  operations_.push_back(&op);
  return {};
}

void MpiTransport::end(std::size_t i, const MPI_Status& status) {
  Operation& op = *operations_[i];
  MPI_Count bytes = 0;
  if (MPI_Get_elements_x(&status, MPI_BYTE, &bytes) == MPI_SUCCESS && bytes != MPI_UNDEFINED)
    op.bytes = static_cast<std::size_t>(bytes);
  op.from = static_cast<std::uint32_t>(status.MPI_SOURCE);
  op.under_way = false;
  ++events;
  operations_[i] = nullptr;
}

void MpiTransport::drop_ended() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (operations_[i] == nullptr) continue;
    requests_[kept] = requests_[i];
    operations_[kept++] = operations_[i];
  }
  requests_.resize(kept);
  operations_.resize(kept);
}

Status MpiTransport::poll() {
  if (requests_.empty()) return {};
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int n = 0;
  const int rc =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &n, ended_.data(), statuses_.data());
  if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS) return check(rc);
  for (int k = 0; k < n; ++k) {
    const auto i = static_cast<std::size_t>(ended_[static_cast<std::size_t>(k)]);
    const MPI_Status& status = statuses_[static_cast<std::size_t>(k)];
    Operation& op = *operations_[i];
    if (rc == MPI_ERR_IN_STATUS) op.status = check(status.MPI_ERROR);
    end(i, status);
  }
  if (n > 0) drop_ended();
  return {};
}

void MpiTransport::cancel(Operation& op) {
  const auto at = std::find(operations_.begin(), operations_.end(), &op);
  if (at == operations_.end()) return;
  const auto i = static_cast<std::size_t>(at - operations_.begin());
  int ended = 0, cancelled = 0;
  MPI_Status status;
  if (MPI_Cancel(&requests_[i]) != MPI_SUCCESS || MPI_Test(&requests_[i], &ended, &status) != MPI_SUCCESS ||
      ended == 0)
    return;  // poll() completes it
  if (MPI_Test_cancelled(&status, &cancelled) == MPI_SUCCESS && cancelled != 0)
    op.status = Status::from_errno(ECANCELED);
  end(i, status);
  drop_ended();
}

}  // namespace lmdbio::ranks
