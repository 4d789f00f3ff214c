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

/// A database that is open for reading.  All cursors of a process that read the same file share one, since
/// LMDB allows only one open environment per file and process.  Any thread.
class LMDBIOSource {
 public:
  /// Returns the open database at `path`, a directory or a data file.  Ends the program if it cannot be
  /// opened.
  static std::shared_ptr<LMDBIOSource> Open(const string& path);

  const string& path() const { return path_; }
  lmdbio_reader* reader() const { return reader_; }
  /// Of the processes that read together (LMDBIO_MPI=1); 1: this process reads for itself.
  uint64_t ranks() const { return ranks_; }
  uint64_t rank() const { return rank_; }
  /// Returns the number of records.  Waits until all ranks have opened the database.
  uint64_t Count() const;

 private:
  LMDBIOSource(const string& path, const string& real_path);
  ~LMDBIOSource() { lmdbio_reader_close(reader_); }
  static void Close(LMDBIOSource* source);

  const string path_, real_path_;
  lmdbio_reader* reader_;
  uint64_t rank_, ranks_;
  int users_;  // guarded by the mutex of all sources

  DISABLE_COPY_AND_ASSIGN(LMDBIOSource);
};

/// Next() only counts; value() and key() read.  The first value that a program asks for is read alone.  The
/// distance to the second one is the step: from there on, a stream reads every step-th record ahead, around
/// the end of the database.  A value at any other place closes the stream, is read alone, and the value after
/// it opens another stream.
///
/// valuePointer() returns a token instead of a pointer to bytes, so a program that shuffles reads nothing
/// while it walks over all records.  tellOrder() says in which order it will ask for the values of its
/// tokens.
///
/// With LMDBIO_MPI=1 the ranks of an MPI job open one such stream together, and read for each other
/// (lmdbio/mpi.h), unless the program shuffles.  A rank that later asks for another record reads alone.
///
/// One thread at a time.  A read that fails ends the program with a message that names the file and the
/// reason.
class LMDBIOCursor : public Cursor {
 public:
  explicit LMDBIOCursor(const std::shared_ptr<LMDBIOSource>& source);
  virtual ~LMDBIOCursor();

  virtual void SeekToFirst();
  virtual void Next() { ++place_; }
  virtual bool valid() { return place_ - first_ < count_; }
  virtual string key();
  virtual string value();

  /// A token of the current record, and 0: its size is not known before it is read.
  virtual std::pair<void*, size_t> valuePointer();
  virtual bool hasTokens() const { return true; }
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
  const uint64_t count_;  // of records
  // All epochs form one sequence of places: with N records, place p is in epoch p / N.
  uint64_t place_;               // of the cursor
  uint64_t first_;               // place of the first record in the cursor's epoch
  std::vector<uint64_t> order_;  // ordinals of the told epoch; empty until an order was told
  uint64_t epoch_;               // the told epoch
  bool gave_tokens_;

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
