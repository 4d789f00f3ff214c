// Part of LMDBIO; caffe_patch/apply copies it to src/caffe/util/ of Intel-Caffe.  C++11, as Caffe.
#ifdef USE_LMDBIO
#include "caffe/util/db_lmdbio.hpp"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

typedef struct lmdbio_mpi lmdbio_mpi;  // as in lmdbio/mpi.h

namespace caffe {
namespace db {

namespace {

const uint64_t kBatchBytes = 1 << 20, kBatchBytesTogether = 256 << 10;
const uint64_t kMostInBatch = 64;

// Never destroyed: reader threads may close their databases while the program exits.
std::mutex& SourcesMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}
std::map<string, LMDBIOSource*>& Sources() {
  static std::map<string, LMDBIOSource*>* const sources = new std::map<string, LMDBIOSource*>;
  return *sources;
}

string RealPath(const string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) != NULL ? resolved : path;
}

uint64_t DataFileBytes(const string& path) {
  struct stat file;
  return stat((path + "/data.mdb").c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

// Returns the memory that is available without swapping, including the page cache; 0 if unknown.
uint64_t AvailableBytes() {
  std::ifstream facts("/proc/meminfo");
  string name, unit;
  for (uint64_t kib = 0; facts >> name >> kib;) {
    if (name == "MemAvailable:") return kib << 10;
    std::getline(facts, unit);
  }
  return 0;
}

string Bytes(const MDB_val& of) { return string(static_cast<const char*>(of.mv_data), of.mv_size); }

void* Token(uint64_t ordinal) { return reinterpret_cast<void*>(static_cast<uintptr_t>(ordinal + 1)); }
uint64_t OrdinalOf(void* token) { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(token)) - 1; }

// Warns if LMDB's functions are not LMDBIO's.  This depends on the order in which libraries are linked and
// loaded.
void WarnUnlessServed() {
  Dl_info lmdb, own;
  if (dladdr(dlsym(RTLD_DEFAULT, "mdb_cursor_get"), &lmdb) == 0 ||
      dladdr(dlsym(RTLD_DEFAULT, "lmdbio_version"), &own) == 0)
    return;
  if (lmdb.dli_fbase != own.dli_fbase)
    LOG(WARNING) << "LMDB's functions come from " << lmdb.dli_fname
                 << ", so that LMDBIO cannot read ahead: link -llmdbio before -llmdb";
}

// Functions of liblmdbio_mpi.so (lmdbio/mpi.h).  The library is loaded only if needed, because this file is
// compiled without MPI.
struct Ranks {
  typedef int World(lmdbio_mpi** mpi, int* rank, int* ranks);
  typedef int Open(lmdbio_mpi* mpi, const char* path, const lmdbio_reader_options* options,
                   lmdbio_reader** reader);
  typedef int Wait(lmdbio_reader* reader);
  typedef unsigned Nodes(const lmdbio_mpi* mpi);

  lmdbio_mpi* mpi;  // NULL: each process reads for itself
  int rank, ranks;
  Open* open;
  Wait* wait;

  Ranks() : mpi(NULL), rank(0), ranks(1), open(NULL), wait(NULL) {
    const char* const wanted = getenv("LMDBIO_MPI");
    if (wanted == NULL || string(wanted) != "1") return;
    void* const library = Load();
    World* const world =
        reinterpret_cast<World*>(library != NULL ? dlsym(library, "lmdbio_mpi_world") : NULL);
    if (world == NULL) {
      LOG(WARNING) << "LMDBIO_MPI=1, but this process reads for itself: " << dlerror();
      return;
    }
    open = reinterpret_cast<Open*>(dlsym(library, "lmdbio_mpi_reader_open"));
    wait = reinterpret_cast<Wait*>(dlsym(library, "lmdbio_mpi_wait"));
    lmdbio_mpi* all = NULL;
    if (world(&all, &rank, &ranks) != 0) {
      LOG(WARNING) << "LMDBIO_MPI=1, but this process reads for itself: " << lmdbio_error();
    } else if (ranks > 1) {
      Nodes* const nodes = reinterpret_cast<Nodes*>(dlsym(library, "lmdbio_mpi_nodes"));
      // The processes of one node share data without messages, which is faster.
      if (nodes(all) > 1) mpi = all;
    }
  }

 private:
  // Loads the library beside liblmdbio.so, or the one that the loader finds.
  static void* Load() {
    const char* const name = "liblmdbio_mpi.so";
    Dl_info own;
    if (dladdr(reinterpret_cast<void*>(&lmdbio_version), &own) != 0 && own.dli_fname != NULL) {
      const string file = own.dli_fname;
      void* const beside =
          dlopen((file.substr(0, file.rfind('/') + 1) + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (beside != NULL) return beside;
    }
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
};

// Waits for the other ranks at the first call.
const Ranks& TheRanks() {
  static const Ranks* const ranks = new Ranks;
  return *ranks;
}

}  // namespace

LMDBIOSource::LMDBIOSource(const string& path, const string& real_path)
    : path_(path), real_path_(real_path), env_(NULL), reader_(NULL), rank_(0), ranks_(1), users_(0) {
  const Ranks& all = TheRanks();
  if (all.mpi != NULL) {
    lmdbio_reader_options options = {};
    options.size = sizeof options;
#ifdef ALLOW_LMDB_NOLOCK
    options.flags = MDB_NOLOCK;
#endif
    if (all.open(all.mpi, path.c_str(), &options, &reader_) != 0) LOG(FATAL) << lmdbio_error();
    rank_ = static_cast<uint64_t>(all.rank);
    ranks_ = static_cast<uint64_t>(all.ranks);
    // The ranks' opens are matched by number, so each rank opens each database once, and never closes it.
    users_ = 1;
  } else {
    OpenEnv();
  }
  LOG(INFO) << "Opened lmdb " << path << " with LMDBIO " << lmdbio_version();
}

LMDBIOSource::~LMDBIOSource() {
  lmdbio_reader_close(reader_);
  if (env_ != NULL) mdb_env_close(env_);
}

void LMDBIOSource::OpenEnv() {
  WarnUnlessServed();
  unsigned flags = MDB_RDONLY | MDB_NOTLS;
  for (;;) {
    int rc = mdb_env_create(&env_);
    if (rc == 0) rc = mdb_env_open(env_, path_.c_str(), flags, 0664);
    // Open the database once before cursors do: the first open sets its order, not in two threads at a time.
    MDB_txn* txn = NULL;
    MDB_dbi dbi = 0;
    if (rc == 0) rc = mdb_txn_begin(env_, NULL, MDB_RDONLY, &txn);
    if (rc == 0) rc = mdb_dbi_open(txn, NULL, 0, &dbi);
    if (txn != NULL) mdb_txn_abort(txn);
    if (rc == 0) return;
    mdb_env_close(env_);
    env_ = NULL;
#ifdef ALLOW_LMDB_NOLOCK
    if (rc == EACCES && (flags & MDB_NOLOCK) == 0) {
      LOG(WARNING) << path_ << ": no permission to lock it; it is read without locks";
      flags |= MDB_NOLOCK;
      continue;
    }
#endif
    LOG(FATAL) << path_ << ": " << mdb_strerror(rc);
  }
}

uint64_t LMDBIOSource::Count() const {
  if (ranks_ > 1 && TheRanks().wait(reader_) != 0) LOG(FATAL) << lmdbio_error();
  uint64_t count = 0;
  if (lmdbio_reader_count(reader_, &count) != 0) LOG(FATAL) << lmdbio_error();
  return count;
}

std::shared_ptr<LMDBIOSource> LMDBIOSource::Open(const string& path) {
  const string name = RealPath(path);
  std::lock_guard<std::mutex> lock(SourcesMutex());
  std::map<string, LMDBIOSource*>::iterator at = Sources().find(name);
  if (at == Sources().end()) at = Sources().insert(std::make_pair(name, new LMDBIOSource(path, name))).first;
  ++at->second->users_;
  return std::shared_ptr<LMDBIOSource>(at->second, &LMDBIOSource::Close);
}

void LMDBIOSource::Close(LMDBIOSource* source) {
  std::lock_guard<std::mutex> lock(SourcesMutex());
  if (--source->users_ > 0) return;
  Sources().erase(source->real_path_);
  delete source;
}

LMDBIOCursor::LMDBIOCursor(const std::shared_ptr<LMDBIOSource>& source, uint64_t large_value)
    : source_(source),
      large_value_(large_value),
      txn_(NULL),
      dbi_(0),
      cursor_(NULL),
      key_(),
      value_(),
      on_record_(false),
      count_(0),
      place_(0),
      first_(0),
      epoch_(0),
      counts_(source->reader() != NULL),
      asked_for_pointers_(false),
      gives_tokens_(false),
      reader_(source->reader()),
      has_last_(false),
      last_(0),
      step_(0),
      stream_(NULL),
      batch_(NULL),
      index_(0),
      may_together_(false),
      together_(false),
      streams_(0) {
  if (counts_) {
    count_ = source->Count();
    may_together_ = count_ > 0;
    return;
  }
  MDB_stat facts;
  Check(mdb_txn_begin(source->env(), NULL, MDB_RDONLY, &txn_));
  Check(mdb_dbi_open(txn_, NULL, 0, &dbi_));
  Check(mdb_stat(txn_, dbi_, &facts));
  Check(mdb_cursor_open(txn_, dbi_, &cursor_));
  count_ = facts.ms_entries;
  Move(MDB_FIRST);
}

LMDBIOCursor::~LMDBIOCursor() {
  // Other ranks must not wait for this one.
  if (may_together_ && !asked_for_pointers_) (void)OpenTogether(source_->rank());
  CloseStream();
  if (reader_ != source_->reader()) lmdbio_reader_close(reader_);
  if (cursor_ != NULL) mdb_cursor_close(cursor_);
  if (txn_ != NULL) mdb_txn_abort(txn_);
}

void LMDBIOCursor::Move(MDB_cursor_op op) {
  const int rc = mdb_cursor_get(cursor_, &key_, &value_, op);
  if (rc != MDB_NOTFOUND) Check(rc);
  on_record_ = rc == 0;
}

void LMDBIOCursor::Next() {
  if (!counts_) Move(MDB_NEXT);
  ++place_;
}

void LMDBIOCursor::SeekToFirst() {
  if (place_ - first_ == count_) {  // all records were passed: the next epoch begins
    first_ = place_;
  } else {
    place_ = first_ = 0;
  }
  if (!counts_) Move(MDB_FIRST);
}

string LMDBIOCursor::key() {
  CHECK(valid());
  return Bytes(counts_ ? Fetch(place_, place_ - first_).key : key_);
}

string LMDBIOCursor::value() {
  CHECK(valid());
  return Bytes(counts_ ? Fetch(place_, place_ - first_).value : value_);
}

// If all values fit into memory, a walk over all of them reads small values faster than single reads.
bool LMDBIOCursor::WantsTokens() const {
  const uint64_t bytes = DataFileBytes(source_->path());
  return bytes / count_ >= large_value_ || bytes > AvailableBytes() / 2;
}

void LMDBIOCursor::UseTokens() {
  if (reader_ == NULL) {
    lmdbio_reader_options options = {};
    options.size = sizeof options;
    const int rc = lmdbio_reader_attach(txn_, dbi_, &options, &reader_);
    if (rc == ENOTSUP) return;  // LMDBIO is disabled, or does not serve the database: use pointers
    if (rc != 0) LOG(FATAL) << lmdbio_error();
  }
  counts_ = gives_tokens_ = true;
}

std::pair<void*, size_t> LMDBIOCursor::valuePointer() {
  CHECK(valid());
  if (!asked_for_pointers_) {
    asked_for_pointers_ = true;
    if (counts_ || WantsTokens()) UseTokens();
  }
  if (gives_tokens_) return std::make_pair(Token(place_ - first_), static_cast<size_t>(0));
  return std::make_pair(value_.mv_data, value_.mv_size);
}

string LMDBIOCursor::tokenValue(void* token) {
  const uint64_t ordinal = OrdinalOf(token);
  CHECK_LT(ordinal, count_);
  return Bytes(Fetch(PlaceOf(ordinal), ordinal).value);
}

void LMDBIOCursor::tellOrder(const std::vector<std::pair<void*, int> >& tokens) {
  if (!gives_tokens_) return;
  CHECK_EQ(tokens.size(), count_);
  CloseStream();
  if (order_.empty()) {
    epoch_ = 0;
    has_last_ = false;
    step_ = 0;
  } else {
    ++epoch_;
  }
  order_.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) order_[i] = OrdinalOf(tokens[i].first);
  if (step_ != 0 && (last_ + step_) / count_ == epoch_) OpenStream(last_ + step_);
}

uint64_t LMDBIOCursor::PlaceOf(uint64_t ordinal) const {
  if (order_.empty()) return ordinal;
  const uint64_t expected = step_ != 0 ? last_ + step_ : last_;
  if (has_last_ && expected / count_ == epoch_ && order_[expected % count_] == ordinal) return expected;
  const std::vector<uint64_t>::const_iterator at = std::find(order_.begin(), order_.end(), ordinal);
  CHECK(at != order_.end()) << "record " << ordinal << " is not in the order of this epoch";
  return epoch_ * count_ + static_cast<uint64_t>(at - order_.begin());
}

const lmdbio_record& LMDBIOCursor::Fetch(uint64_t place, uint64_t ordinal) {
  if (batch_ != NULL && place == last_) return batch_->records[index_];
  if (stream_ == NULL && has_last_ && place > last_) {
    step_ = place - last_;
    OpenStream(place);
  } else if (stream_ != NULL && place != last_ + step_) {
    CloseStream();
    step_ = 0;
  }
  if (stream_ != NULL) {
    AdvanceStream(place);
  } else {
    Release();
    Check(lmdbio_reader_read(reader_, &ordinal, 1, &batch_));
  }
  has_last_ = true;
  last_ = place;
  CHECK_EQ(batch_->records[index_].ordinal, ordinal);
  return batch_->records[index_];
}

namespace {

// Sets the order to a rank's share of the sequence of all epochs: every step-th record from `place` on.
void SetShare(lmdbio_order* order, uint64_t place, uint64_t step, uint64_t count) {
  const uint64_t epoch = place / count, offset = place % step;
  const uint64_t before = epoch * count <= offset ? 0 : (epoch * count - offset + step - 1) / step;
  order->kind = LMDBIO_ORDER_SEQUENTIAL;
  order->across_epochs = 1;
  order->offset = offset;
  order->step = step;
  order->epoch = epoch;
  order->position = place / step - before;
  order->end_epoch = LMDBIO_ENDLESS;
}

uint64_t BatchRecords(const string& path, uint64_t count, uint64_t batch_bytes) {
  const uint64_t record_bytes = std::max<uint64_t>(DataFileBytes(path) / count, 1);
  return std::max<uint64_t>(std::min(batch_bytes / record_bytes, kMostInBatch), 1);
}

}  // namespace

int LMDBIOCursor::OpenTogether(uint64_t place) {
  CloseStream();
  may_together_ = false;
  lmdbio_order order = {};
  order.size = sizeof order;
  order.batch = BatchRecords(source_->path(), count_, kBatchBytesTogether);
  SetShare(&order, place, source_->ranks(), count_);
  const int rc = lmdbio_stream_open(reader_, &order, &stream_);
  together_ = rc == 0;
  ++streams_;
  return rc;
}

void LMDBIOCursor::OpenStream(uint64_t place) {
  if (may_together_ && !asked_for_pointers_ && step_ == source_->ranks() &&
      place % step_ == source_->rank()) {
    Check(OpenTogether(place));
    return;
  }
  CloseStream();
  lmdbio_order order = {};
  order.size = sizeof order;
  order.batch = BatchRecords(source_->path(), count_, kBatchBytes);
  order.zero_copy = 1;  // each value is copied once, to the program's string
  std::vector<uint64_t> list;
  if (!order_.empty()) {
    // Only the rest of this epoch, because the order of the next one is unknown.
    for (uint64_t i = place % count_; i < count_; i += step_) list.push_back(order_[i]);
    order.kind = LMDBIO_ORDER_LIST;
    order.list = list.data();
    order.length = list.size();
  } else {
    // Not a share, because all ranks would have to open a share.
    walk_.place = place;
    walk_.step = step_;
    walk_.count = count_;
    order.kind = LMDBIO_ORDER_FUNCTION;
    order.function = &Walk::Ordinal;
    order.function_context = &walk_;
    order.length = count_;
    order.end_epoch = LMDBIO_ENDLESS;
  }
  Check(lmdbio_stream_open(reader_, &order, &stream_));
  ++streams_;
}

void LMDBIOCursor::AdvanceStream(uint64_t place) {
  if (batch_ != NULL && index_ + 1 < batch_->count) {
    ++index_;
    return;
  }
  Release();
  int rc = lmdbio_stream_next(stream_, &batch_);
  if (rc != 0 && together_) {
    LOG(WARNING) << lmdbio_error() << "; this process goes on to read for itself";
    OpenStream(place);
    rc = lmdbio_stream_next(stream_, &batch_);
  }
  Check(rc);
}

void LMDBIOCursor::Release() {
  lmdbio_batch_release(batch_);
  batch_ = NULL;
  index_ = 0;
}

void LMDBIOCursor::CloseStream() {
  Release();
  lmdbio_stream_close(stream_);
  stream_ = NULL;
  together_ = false;
}

void LMDBIOCursor::Check(int rc) const {
  if (rc == 0) return;
  if (!counts_) LOG(FATAL) << source_->path() << ": " << mdb_strerror(rc);
  if (rc == MDB_NOTFOUND) LOG(FATAL) << source_->path() << ": the stream ended early";
  LOG(FATAL) << lmdbio_error();
}

void LMDBIO::Open(const string& source, Mode mode) {
  if (mode != READ)
    LOG(FATAL) << source << ": the backend LMDBIO only reads; databases are written with LMDB";
  source_ = LMDBIOSource::Open(source);
}

LMDBIOCursor* LMDBIO::NewCursor() {
  CHECK(source_);
  return new LMDBIOCursor(source_);
}

Transaction* LMDBIO::NewTransaction() {
  LOG(FATAL) << "the backend LMDBIO only reads; databases are written with LMDB";
  return NULL;
}

}  // namespace db
}  // namespace caffe
#endif  // USE_LMDBIO
