#include "lmdbio/gather/queues.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/io/page_filler.h"

namespace lmdbio::gather {

namespace {

/// Descriptors of an OpenFile.
enum class From : unsigned char {
  direct,
  buffered,  ///< with the kernel's read-ahead
  exact,     ///< without read-ahead; `buffered` if there is no such descriptor
  base,      ///< the one that was opened first
};

constexpr std::size_t kMost = ReadQueue::kMostRequest, kFill = PageFiller::kPiece,
                      kSmall = std::size_t{256} << 10, kWhole = std::size_t{1} << 30;

/// How a kind of read is made.  LMDBIO_ENGINE replaces `engine`, except the kinds of populate and single.
/// Reads into the page cache block in the kernel, and io_uring passes them to threads of the kernel.  The I/O
/// thread, index builds and checks therefore prefer the threads engine.
struct Row {
  ReadKind kind;
  From from;
  unsigned depth;        ///< requests in flight
  unsigned local_depth;  ///< the same, on a local file system
  EngineKind engine;
  std::size_t most_request;  ///< in bytes
};

// The depth of chunk_direct is the number of requests in the longest plan, with chunks of the usual size.  On
// a local disk, two reads with the kernel's read-ahead are enough.
// A reader has no thread that submits requests while the program computes (decision 0064).  The depth of
// records therefore holds all requests of a large batch.
constexpr Row kRows[] = {
    {ReadKind::chunk_direct, From::direct, 64, 64, EngineKind::automatic, kMost},
    {ReadKind::chunk_filled, From::buffered, 32, 2, EngineKind::populate, kFill},
    {ReadKind::chunk_cached, From::buffered, 32, 2, EngineKind::threads, kMost},
    {ReadKind::piece_cached, From::exact, 32, 32, EngineKind::threads, kMost},
    {ReadKind::needed, From::exact, 1, 1, EngineKind::single_unread, kMost},
    {ReadKind::needed_copied, From::buffered, 1, 1, EngineKind::single, kWhole},
    {ReadKind::told_direct, From::direct, 128, 128, EngineKind::automatic, kMost},
    {ReadKind::told_cached, From::exact, 64, 64, EngineKind::automatic, kMost},
    {ReadKind::record_direct, From::direct, 512, 512, EngineKind::automatic, kMost},
    {ReadKind::record_cached, From::exact, 512, 512, EngineKind::automatic, kMost},
    {ReadKind::record_filled, From::exact, 512, 512, EngineKind::populate_copied, kMost},
    {ReadKind::index_direct, From::direct, 64, 64, EngineKind::automatic, kMost},
    {ReadKind::index_cached, From::base, 32, 32, EngineKind::threads, kMost},
    {ReadKind::index_resident, From::base, 32, 32, EngineKind::pread, kMost},
    {ReadKind::check_cached, From::base, 64, 64, EngineKind::threads, kSmall},
};

constexpr bool rows_are_in_order() noexcept {
  unsigned i = 0;
  for (const Row& row : kRows)
    if (static_cast<unsigned>(row.kind) != i++) return false;
  return i == static_cast<unsigned>(ReadKind::check_cached) + 1;
}
static_assert(rows_are_in_order());

EngineKind engine_of(const Row& row) noexcept {
  const EngineKind wanted = engine_kind(config().engine);
  return wanted == EngineKind::automatic || row.engine >= EngineKind::populate ? row.engine : wanted;
}

const File* file_of(const OpenFile& file, From from) noexcept {
  switch (from) {
    case From::direct:
      return file.direct();
    case From::buffered:
      return &file.buffered();
    case From::exact:
      if (const File* const exact = file.exact(); exact != nullptr) return exact;
      return &file.buffered();
    case From::base:
      break;
  }
  return &file.base();
}

const Row& row_of(ReadKind kind) noexcept { return kRows[static_cast<unsigned>(kind)]; }

Result<std::unique_ptr<ReadQueue>> make(const Row& row, const File& file, unsigned depth,
                                        std::uint64_t file_bytes, const MakeEngine& make_engine,
                                        const char** name) noexcept {
  try {
    const EngineKind kind = engine_of(row);
    Result<std::unique_ptr<IoEngine>> engine =
        make_engine ? make_engine(file, depth, kind, name) : engine_factory()(file, depth, kind, name);
    if (!engine) return engine.error();
    return std::make_unique<ReadQueue>(std::move(engine).value(), file_bytes, row.most_request);
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

constinit EngineFactory factory = select_engine;

}  // namespace

EngineFactory& engine_factory() noexcept { return factory; }

Result<std::unique_ptr<ReadQueue>> make_queue(ReadKind kind, const File& file, std::uint64_t file_bytes,
                                              const MakeEngine& make_engine, const char** name) noexcept {
  const Row& row = row_of(kind);
  return make(row, file, row.depth, file_bytes, make_engine, name);
}

Result<std::unique_ptr<ReadQueue>> make_queue(ReadKind kind, const OpenFile& file, std::uint64_t file_bytes,
                                              const MakeEngine& make_engine, const char** name) noexcept {
  const Row& row = row_of(kind);
  const File* const from = file_of(file, row.from);
  if (from == nullptr) return Status::from_errno(ENOTSUP);
  return make(row, *from, file.local() ? row.local_depth : row.depth, file_bytes, make_engine, name);
}

void Queues::set_file_bytes(std::uint64_t bytes) noexcept {
  file_bytes_ = bytes;
  for (const One& one : queues_) one.queue->set_file_bytes(bytes);
}

Result<ReadQueue*> Queues::get(ReadKind kind, const char** made) noexcept {
  for (const One& one : queues_)
    if (one.kind == kind) return one.queue.get();
  Result<std::unique_ptr<ReadQueue>> queue = make_queue(kind, *file_, file_bytes_, make_, made);
  if (!queue && kind == ReadKind::record_filled)
    queue = make_queue(ReadKind::record_cached, *file_, file_bytes_, make_, made);
  if (!queue) return queue.error();
  try {
    queues_.push_back({kind, std::move(queue).value()});
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  return queues_.back().queue.get();
}

bool Queues::pump() noexcept {
  bool ended = false;
  for (const One& one : queues_) {
    ReadQueue& q = *one.queue;
    const std::size_t before = q.in_flight() + q.waiting();
    if (before == 0) continue;
    q.pump();
    ended = ended || q.in_flight() + q.waiting() < before;
  }
  return ended;
}

bool Queues::is_waiting() const noexcept {
  return std::any_of(queues_.begin(), queues_.end(), [](const One& o) { return o.queue->waiting() != 0; });
}

bool Queues::is_busy() const noexcept {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const One& o) { return o.queue->waiting() != 0 || o.queue->in_flight() != 0; });
}

void Queues::drop_all() noexcept {
  for (const One& one : queues_) one.queue->drop_all();
}

ReadCounts Queues::take_counts() noexcept {
  ReadCounts sum = std::exchange(cleared_, {});
  for (const One& one : queues_) sum.add(one.queue->take_counts());
  return sum;
}

void Queues::clear() noexcept {
  cleared_ = take_counts();
  queues_.clear();
}

void Queues::forget() noexcept {
  for (const One& one : queues_) one.queue->forget();
  queues_.clear();
  cleared_ = {};
}

}  // namespace lmdbio::gather
