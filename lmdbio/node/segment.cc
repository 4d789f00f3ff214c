#include "lmdbio/node/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lmdbio::node {

namespace {

constexpr int kOwnerOnly = 0600;

bool is_own(const ipc_perm& p, uid_t user) noexcept {
  return p.cuid == user && p.uid == user && (p.mode & 0777) == kOwnerOnly;
}

}  // namespace

Segment::Segment(std::byte* data, int id, const shmid_ds& facts) noexcept
    : data_(data), size_(facts.shm_segsz), id_(id), made_at_(facts.shm_ctime) {}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      id_(other.id_),
      made_at_(other.made_at_) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(id_, other.id_);
  std::swap(made_at_, other.made_at_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) (void)::shmdt(data_);
}

Result<Segment> Segment::attach(int id, int flags) noexcept {
  shmid_ds facts;
  if (::shmctl(id, IPC_STAT, &facts) != 0) return Status::from_errno(errno);
  if (!is_own(facts.shm_perm, ::geteuid())) return Status::from_errno(EACCES);
  void* const at = ::shmat(id, nullptr, flags);
  if (at == reinterpret_cast<void*>(-1)) return Status::from_errno(errno);
  Segment s(static_cast<std::byte*>(at), id, facts);
  if (::madvise(at, facts.shm_segsz, MADV_DONTFORK) != 0) return Status::from_errno(errno);
  (void)::madvise(at, facts.shm_segsz, MADV_DONTDUMP);
  return s;
}

Result<Segment> Segment::open(key_t key) noexcept {
  const int id = ::shmget(key, 0, 0);
  if (id < 0) return Status::from_errno(errno);
  return attach(id, 0);
}

Result<Segment> Segment::open_read_only(int id) noexcept { return attach(id, SHM_RDONLY); }
Result<Segment> Segment::open_number(int id) noexcept { return attach(id, 0); }

Result<Segment> Segment::make(key_t key, std::size_t bytes) noexcept {
  const int id = ::shmget(key, bytes, IPC_CREAT | IPC_EXCL | kOwnerOnly);
  if (id < 0) return Status::from_errno(errno);
  Result<Segment> made = attach(id, 0);
  if (!made) (void)::shmctl(id, IPC_RMID, nullptr);
  return made;
}

Result<Segment> Segment::make_unnamed(std::size_t bytes) noexcept {
  Result<Segment> made = make(IPC_PRIVATE, bytes);
  if (made) made.value().remove();
  return made;
}

// Returns false if the number belongs to another segment, or to none.  This process may have changed its IPC
// namespace.
bool Segment::look_up(shmid_ds& facts) const noexcept {
  return ::shmctl(id_, IPC_STAT, &facts) == 0 && facts.shm_ctime == made_at_ && facts.shm_segsz == size_;
}

std::uint64_t Segment::attachments() const noexcept {
  shmid_ds facts;
  return look_up(facts) ? facts.shm_nattch : 0;
}

void Segment::remove() noexcept {
  shmid_ds facts;
  if (look_up(facts)) (void)::shmctl(id_, IPC_RMID, nullptr);
}

bool Segment::is_removed() const noexcept {
  shmid_ds facts;
  return !look_up(facts) || (facts.shm_perm.mode & SHM_DEST) != 0;
}

bool is_attached(int id, std::int64_t made_at) noexcept {
  shmid_ds facts;
  return ::shmctl(id, IPC_STAT, &facts) == 0 && facts.shm_nattch != 0 && facts.shm_ctime == made_at &&
         facts.shm_perm.cuid == ::geteuid();
}

std::vector<SegmentFacts> own_segments() {
  std::vector<SegmentFacts> found;
  const uid_t user = ::geteuid();
  shm_info all;
  const int last = ::shmctl(0, SHM_INFO, reinterpret_cast<shmid_ds*>(&all));
  for (int i = 0; i <= last; ++i) {
    shmid_ds facts;
    const int id = ::shmctl(i, SHM_STAT, &facts);  // i: its index in the kernel's table
    if (id < 0 || !is_own(facts.shm_perm, user)) continue;
    found.push_back({id, facts.shm_perm.__key, facts.shm_segsz, facts.shm_nattch, facts.shm_atime != 0,
                     facts.shm_ctime, facts.shm_dtime, facts.shm_cpid});
  }
  return found;
}

}  // namespace lmdbio::node
