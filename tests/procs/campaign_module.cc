// A module that reads a database and leaves things open when it is unloaded: what campaign_unload loads again
// and again.  campaign_module_go says what is wrong, or returns nullptr.
#include <lmdb.h>
#include <lmdbio/lmdbio.h>

#include <string>

#include "tests/procs/campaign_model.h"

using lmdbio::campaign::Model;

namespace {

/// What stays open; a module that is unloaded cannot close it any more.
struct Open {
  MDB_env* env = nullptr;
  MDB_txn* txn = nullptr;
  MDB_cursor* cursor = nullptr;
  lmdbio_reader* reader = nullptr;
  lmdbio_stream* stream = nullptr;
};

std::string failed(const char* call, int rc) { return std::string(call) + ": " + mdb_strerror(rc); }

std::string read(Open& o, const char* dir, const Model& model, unsigned what) {
  MDB_dbi dbi;
  int rc = mdb_env_create(&o.env);
  if (rc == 0) rc = mdb_env_set_maxdbs(o.env, 4);
  if (rc == 0) rc = mdb_env_open(o.env, dir, MDB_RDONLY | MDB_NOTLS, 0);
  if (rc == 0) rc = mdb_txn_begin(o.env, nullptr, MDB_RDONLY, &o.txn);
  if (rc == 0) rc = mdb_dbi_open(o.txn, "m", 0, &dbi);
  if (rc == 0) rc = mdb_cursor_open(o.txn, dbi, &o.cursor);
  if (rc != 0) return failed("opening", rc);
  const std::uint64_t t = mdb_txn_id(o.txn) - 1;
  if ((what & 1) != 0) {
    MDB_val key, value;
    for (std::uint64_t i = 0; i < 400; ++i) {
      i = model.next(i, t);
      rc = mdb_cursor_get(o.cursor, &key, &value, MDB_NEXT);
      if (i == model.records() && rc == MDB_NOTFOUND) break;
      if (rc != 0) return failed("mdb_cursor_get", rc);
      if (number_of(&key) != i || !model.right(i, t, value)) return model.explain(i, t, value);
    }
  }
  if ((what & 2) != 0) {
    lmdbio_reader_options options{};
    options.size = sizeof options;
    options.memory = 8 << 20;  // less than there is: streams are in the midst of reading ahead
    options.no_index_file = 1;
    rc = lmdbio_reader_attach(o.txn, dbi, &options, &o.reader);
    if (rc != 0) return failed("lmdbio_reader_attach", rc);
    lmdbio_order order{};
    order.size = sizeof order;
    order.kind = LMDBIO_ORDER_SHUFFLE;
    order.batch = 4;
    rc = lmdbio_stream_open(o.reader, &order, &o.stream);
    const lmdbio_batch* batch = nullptr;
    if (rc == 0) rc = lmdbio_stream_next(o.stream, &batch);
    if (rc != 0) return failed("a stream", rc);
    lmdbio_batch_release(batch);
  }
  return "";
}

void close(const Open& o) {
  lmdbio_stream_close(o.stream);
  lmdbio_reader_close(o.reader);
  if (o.cursor != nullptr) mdb_cursor_close(o.cursor);
  if (o.txn != nullptr) mdb_txn_abort(o.txn);
  mdb_env_close(o.env);
}

}  // namespace

/// `what`: 1 walks, 2 streams, 4 closes what it opened.
extern "C" const char* campaign_module_go(const char* dir, const char* model, unsigned what) {
  static std::string wrong;
  Open o;
  wrong = read(o, dir, Model(model), what);
  if ((what & 4) != 0) close(o);
  return wrong.empty() ? nullptr : wrong.c_str();
}
