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

/// A database that is open for reading.  All cursors of a process on the same directory share one object,
/// because LMDB allows only one open environment per file and process.  Any thread.
class LMDBIOSource {
 public:
  /// Returns the open database in the directory `path`.  Ends the program if it cannot be opened.
  static std::shared_ptr<LMDBIOSource> Open(const string& path);

  const string& path() const { return path_; }
  /// Returns the reader of all ranks (LMDBIO_MPI=1), or NULL if this process reads for itself.
  lmdbio_reader* reader() const { return reader_; }
  uint64_t ranks() const { return ranks_; }
  uint64_t rank() const { return rank_; }
  /// Returns the number of records.  Waits until all ranks have opened the database.  Only with a reader.
  uint64_t Count() const;
  /// Returns the environment.  Only without a reader.
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

/// Walks with a cursor of LMDB, whose calls LMDBIO serves.  LMDBIO sees which records the program uses, reads
/// them ahead, and shares their data with the other processes of the node.
///
/// A program that shuffles first calls valuePointer() for each record.  If values are large, or if the
/// database does not fit into memory, valuePointer() returns tokens instead of pointers.  Then nothing is
/// read yet, and Next() only counts from then on.  tellOrder() passes the order in which the program will ask
/// for the values of the tokens.  A stream (lmdbio.h) reads them ahead in this order.  Otherwise the walk
/// reads the whole database into memory, and valuePointer() returns pointers.
///
/// With LMDBIO_MPI=1, the cursor only counts from the beginning.  Each rank reads the first value alone.  If
/// the distance to the second value is the number of ranks, and the program does not shuffle, all ranks of
/// the MPI job open one stream together.  They then read for each other (lmdbio/mpi.h).  A rank that later
/// asks for a record outside this stream reads alone.  As soon as two values show the step, its own stream
/// reads every step-th record ahead.
///
/// One thread at a time.  A read that fails ends the program with a message that names the file and the
/// reason.
class LMDBIOCursor : public Cursor {
 public:
  /// Values are large if their average size is at least this number of bytes.
  static const uint64_t kLargeValue = 16 << 10;

  explicit LMDBIOCursor(const std::shared_ptr<LMDBIOSource>& source, uint64_t large_value = kLargeValue);
  virtual ~LMDBIOCursor();

  virtual void SeekToFirst();
  virtual void Next();
  virtual bool valid() { return counts_ ? place_ - first_ < count_ : on_record_; }
  virtual string key();
  virtual string value();

  /// Returns the address and the size of the current value, valid as long as the cursor.  Or returns a token
  /// and 0, because the size is not known before the value is read.
  virtual std::pair<void*, size_t> valuePointer();
  virtual bool hasTokens() const { return gives_tokens_; }
  virtual string tokenValue(void* token);
  /// The first call begins epoch 0, each further call the next epoch.  `tokens` is a permutation of all
  /// tokens.
  virtual void tellOrder(const std::vector<std::pair<void*, int> >& tokens);

  /// Returns the number of records.
  uint64_t count() const { return count_; }
  /// Returns the number of streams that this cursor has opened.
  uint64_t streams() const { return streams_; }
  /// Returns whether all ranks have opened the current stream together.
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
  // State of the walk.  Not used with LMDBIO_MPI=1.
  MDB_txn* txn_;
  MDB_dbi dbi_;
  MDB_cursor* cursor_;
  MDB_val key_, value_;
  bool on_record_;

  uint64_t count_;  // number of records
  // All epochs form one sequence of places: with N records, place p is in epoch p / N.
  uint64_t place_;               // of the cursor
  uint64_t first_;               // place of the first record in the cursor's epoch
  std::vector<uint64_t> order_;  // order of epoch_; empty until tellOrder()
  uint64_t epoch_;               // the epoch that tellOrder() last set

  // The following members are for a cursor that counts.
  bool counts_, asked_for_pointers_, gives_tokens_;
  lmdbio_reader* reader_;  // of source_, or of txn_
  bool has_last_;
  uint64_t last_;          // place of the last requested value
  uint64_t step_;          // from the previous requested value to the last one; 0: unknown
  Walk walk_;              // of stream_
  lmdbio_stream* stream_;  // its next record has place last_ + step_
  const lmdbio_batch* batch_;
  size_t index_;       // of value last_ in batch_
  bool may_together_;  // this rank still has to open the stream of all ranks
  bool together_;      // stream_ is the stream of all ranks
  uint64_t streams_;
};

/// Opens databases for reading.  Databases are written with the backend LMDB.
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
