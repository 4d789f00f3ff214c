// Reads LMDB databases through LMDBIO: `backend: LMDBIO` in a data layer's data_param.
//
// Part of LMDBIO; caffe_patch/apply copies it to include/caffe/util/ of Intel-Caffe.
#ifdef USE_LMDBIO
#ifndef CAFFE_UTIL_DB_LMDBIO_HPP_
#define CAFFE_UTIL_DB_LMDBIO_HPP_

#include <lmdbio/lmdbio.h>
#include <stdint.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caffe/util/db.hpp"

namespace caffe {
namespace db {

/// A database that is open for reading.  All cursors of a process that read the same directory share one,
/// since LMDB allows only one open environment per file and process.  Any thread.
class LMDBIOSource {
 public:
  /// Returns the open database in the directory `path`.  Ends the program if it cannot be opened.
  static std::shared_ptr<LMDBIOSource> Open(const string& path);

  const string& path() const { return path_; }
  /// Of the ranks that read together (LMDBIO_MPI=1); NULL: this process reads for itself.
  lmdbio_reader* reader() const { return reader_; }
  uint64_t ranks() const { return ranks_; }
  uint64_t rank() const { return rank_; }
  /// With a reader: the number of records.  Waits until all ranks have opened the database.
  uint64_t Count() const;
  /// Without a reader.
  MDB_env* env() const { return env_; }

 private:
  LMDBIOSource(const string& path, const string& real_path);
  ~LMDBIOSource();
  void OpenEnv();
  static void Close(LMDBIOSource* source);

  const string path_, real_path_;
  MDB_env* env_;
  lmdbio_reader* reader_;
  uint64_t rank_, ranks_;
  int users_;  // guarded by the mutex of all sources

  DISABLE_COPY_AND_ASSIGN(LMDBIOSource);
};

/// Walks with a cursor of LMDB's, whose calls LMDBIO serves: it sees which records the program uses, reads
/// them ahead, and shares what it reads with the other processes of the node.
///
/// A program that shuffles calls valuePointer() for each record first.  Where values are large, or the
/// database does not fit into memory, valuePointer() returns tokens instead of pointers to bytes, so that
/// nothing is read yet, and Next() only counts from then on.  tellOrder() says in which order the program
/// will ask for the values of its tokens; a stream (lmdbio.h) reads them ahead in that order.  Elsewhere the
/// walk brings the whole database into memory, and valuePointer() returns pointers.
///
/// With LMDBIO_MPI=1 the cursor only counts from the beginning.  The first value is read alone.  If the
/// distance to the second one is the number of ranks, all ranks of the MPI job open one stream together, and
/// read for each other (lmdbio/mpi.h), unless the program shuffles.  A rank that later asks for another
/// record reads alone: a stream of its own reads every step-th record ahead, as soon as two values tell the
/// step.
///
/// One thread at a time.  A read that fails ends the program with a message that names the file and the
/// reason.
class LMDBIOCursor : public Cursor {
 public:
  /// Values of so many bytes, on average, are large.
  static const uint64_t kLargeValue = 16 << 10;

  explicit LMDBIOCursor(const std::shared_ptr<LMDBIOSource>& source, uint64_t large_value = kLargeValue);
  virtual ~LMDBIOCursor();

  virtual void SeekToFirst();
  virtual void Next();
  virtual bool valid() { return counts_ ? place_ - first_ < count_ : on_record_; }
  virtual string key();
  virtual string value();

  /// Where the current value is, valid as long as the cursor, and its size; or a token of it, and 0: its size
  /// is not known before it is read.
  virtual std::pair<void*, size_t> valuePointer();
  virtual bool hasTokens() const { return gives_tokens_; }
  virtual string tokenValue(void* token);
  /// The first call begins epoch 0, each further call the next epoch.  `tokens` is a permutation of all
  /// tokens.
  virtual void tellOrder(const std::vector<std::pair<void*, int> >& tokens);

  /// Number of records.
  uint64_t count() const { return count_; }
  /// Number of streams that this cursor has opened.
  uint64_t streams() const { return streams_; }
  /// The current stream is one that all ranks have opened together.
  bool together() const { return together_; }

 private:
  void Move(MDB_cursor_op op);
  bool WantsTokens() const;
  void UseTokens();

  const lmdbio_record& Fetch(uint64_t place, uint64_t ordinal);
  void OpenStream(uint64_t place);
  int OpenTogether(uint64_t place);
  void AdvanceStream(uint64_t place);
  void CloseStream();
  void Release();
  void Check(int rc) const;
  uint64_t PlaceOf(uint64_t ordinal) const;

  // Every step-th record from a place on, as elements of an order.  The sequence repeats after `count`
  // elements.
  struct Walk {
    uint64_t place, step, count;
    static uint64_t Ordinal(void* walk, uint64_t, uint64_t i) {
      const Walk& of = *static_cast<const Walk*>(walk);
      return (of.place + i * of.step) % of.count;
    }
  };

  const std::shared_ptr<LMDBIOSource> source_;
  const uint64_t large_value_;
  // The walk; not with LMDBIO_MPI=1.
  MDB_txn* txn_;
  MDB_dbi dbi_;
  MDB_cursor* cursor_;
  MDB_val key_, value_;
  bool on_record_;

  uint64_t count_;  // of records
  // All epochs form one sequence of places: with N records, place p is in epoch p / N.
  uint64_t place_;               // of the cursor
  uint64_t first_;               // place of the first record in the cursor's epoch
  std::vector<uint64_t> order_;  // ordinals of the told epoch; empty until an order was told
  uint64_t epoch_;               // the told epoch

  // What follows is for a cursor that counts.
  bool counts_, asked_for_pointers_, gives_tokens_;
  lmdbio_reader* reader_;  // of source_, or of txn_
  bool has_last_;
  uint64_t last_;          // place of the value that was asked for last
  uint64_t step_;          // from the value before it to that one; 0: unknown
  Walk walk_;              // of stream_
  lmdbio_stream* stream_;  // its next record has place last_ + step_
  const lmdbio_batch* batch_;
  size_t index_;       // of value last_ in batch_
  bool may_together_;  // this rank still has to open the stream of all ranks
  bool together_;      // stream_ is that one
  uint64_t streams_;
};

/// Only for reading: databases are written with the backend LMDB.
class LMDBIO : public DB {
 public:
  LMDBIO() {}
  virtual ~LMDBIO() { Close(); }
  virtual void Open(const string& source, Mode mode);
  virtual void Close() { source_.reset(); }
  virtual LMDBIOCursor* NewCursor();
  virtual Transaction* NewTransaction();

 private:
  std::shared_ptr<LMDBIOSource> source_;
};

}  // namespace db
}  // namespace caffe

#endif  // CAFFE_UTIL_DB_LMDBIO_HPP_
#endif  // USE_LMDBIO
