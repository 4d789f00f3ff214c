// The functions of lmdbio.h for readers, batches and streams, over lmdbio/records.
#include <lmdbio/lmdbio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compat/abi.h"
#include "compat/reader_handle.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/gather/prepared_memory.h"
#include "lmdbio/window/prefetcher.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

Status invalid(std::string& why, const char* text) {
  why = text;
  return Status::from_errno(EINVAL);
}

/// Waits until all ranks have the same snapshot, if several ranks share the reader.
Status wait_for_team(const lmdbio_reader& reader, std::string& why) {
  return reader.team != nullptr ? reader.team->wait(why) : Status();
}

/// Passes a batch to the program, which will release it.
const lmdbio_batch* give(std::unique_ptr<records::Batch> b) noexcept { return b.release(); }

}  // namespace

extern "C" {

LMDBIO_ABI const char* lmdbio_error(void) { return error_text(); }

LMDBIO_ABI void lmdbio_get_interrupt(lmdbio_interrupt_func** function, void** context) {
  get_interrupt(*function, *context);
}

LMDBIO_ABI void lmdbio_set_interrupt(lmdbio_interrupt_func* function, void* context) {
  set_interrupt(function, context);
}

LMDBIO_ABI int lmdbio_reader_open(const char* path, const lmdbio_reader_options* given,
                                  lmdbio_reader** reader) {
  return told([&](std::string& why) {
    if (path == nullptr || reader == nullptr) return invalid(why, "lmdbio_reader_open: null argument");
    lmdbio_reader_options options;
    if (const Status st = read_options(given, true, options, why); !st.ok()) return st;
    const auto opened = std::make_shared<Opened>();
    if (const Status st = open_environment(path, options, *opened, why); !st.ok()) return st;
    ReadTxn* t = nullptr;
    if (const Status st = served(path, *opened, t, why); !st.ok()) return st;
    auto made = std::make_unique<lmdbio_reader>();
    made->env = t->env;
    const Status st =
        make_reader(*t, opened->dbi, options, options.database != nullptr ? options.database : "", opened, {},
                    made->core, why);
    if (st.ok()) *reader = made.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_reader_open_many(const char* const* paths, size_t count,
                                       const lmdbio_reader_options* given, lmdbio_reader** reader) {
  return told([&](std::string& why) {
    if (paths == nullptr || count == 0 || reader == nullptr || std::count(paths, paths + count, nullptr) != 0)
      return invalid(why, "lmdbio_reader_open_many: null argument, or no path");
    lmdbio_reader_options options;
    if (const Status st = read_options(given, true, options, why); !st.ok()) return st;
    auto made = std::make_unique<lmdbio_reader>();
    const Status st = make_many_reader({paths, count}, options, *made, why);
    if (st.ok()) *reader = made.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_reader_attach(MDB_txn* txn, MDB_dbi dbi, const lmdbio_reader_options* given,
                                    lmdbio_reader** reader) {
  ReadTxn* const t = as<ReadTxn>(txn);
  // Outside told(): this may look up a named database with the program's comparator, which may throw.
  const bool usable = t != nullptr && t->env != nullptr && t->txn.has_dbi(dbi) && !t->txn.blocked();
  Status known;
  if (usable && t->txn.stale(dbi))
    if (const auto record = t->txn.record(dbi); !record) known = record.error();
  return told([&](std::string& why) {
    if (txn == nullptr || reader == nullptr) return invalid(why, "lmdbio_reader_attach: null argument");
    if (t == nullptr) {
      const ForwardTxn* const f = as<ForwardTxn>(txn);
      why = f != nullptr ? f->env->stats.path + ": not served by LMDBIO: " + f->env->stats.reason
                         : "LMDBIO does not serve this transaction";
      return Status::from_errno(ENOTSUP);
    }
    if (t->env == nullptr || !t->txn.has_dbi(dbi)) return invalid(why, "no such transaction or database");
    if (t->txn.blocked()) return Status::from_mdb(MDB_BAD_TXN);
    if (!known.ok()) return known;
    t->handle->owner.store(TxnHandle::kNever,
                           std::memory_order_relaxed);  // the reader keeps the transaction's slot
    lmdbio_reader_options options;
    if (const Status st = read_options(given, false, options, why); !st.ok()) return st;
    const char* const name = dbi == tree::kMainDbi ? nullptr : t->env->engine->dbx(dbi).name;
    auto made = std::make_unique<lmdbio_reader>();
    made->env = t->env;
    const Status st =
        make_reader(*t, dbi, options, name != nullptr ? name : "", nullptr, {}, made->core, why);
    if (st.ok()) *reader = made.release();
    return st;
  });
}

LMDBIO_ABI void lmdbio_reader_close(lmdbio_reader* reader) {
  if (reader == nullptr) return;
  (void)guarded([&] {
    reader->team.reset();
    records::Shared& shared = reader->core->shared();
    std::string why;
    // In a forked child, the counts of the image are the parent's.
    if (cache::Image* const image = shared.source.image.get(); image != nullptr && reader->core->ours(why)) {
      image->flush();
      image->count_into(shared.counters, 0);
    }
    stats_reader_gone(*reader->env, shared);
    delete reader;
    return Status();
  });
}

LMDBIO_ABI int lmdbio_reader_count(const lmdbio_reader* reader, uint64_t* count) {
  return told([&](std::string& why) {
    if (reader == nullptr || count == nullptr) return invalid(why, "lmdbio_reader_count: null argument");
    if (const Status st = wait_for_team(*reader, why); !st.ok()) return st;
    if (!reader->core->ours(why)) return Status::from_errno(EINVAL);
    *count = reader->core->count();
    return Status();
  });
}

LMDBIO_ABI int lmdbio_reader_state(const lmdbio_reader* reader, uint64_t* state) {
  return told([&](std::string& why) {
    if (reader == nullptr || state == nullptr) return invalid(why, "lmdbio_reader_state: null argument");
    if (const Status st = wait_for_team(*reader, why); !st.ok()) return st;
    if (!reader->core->ours(why)) return Status::from_errno(EINVAL);
    const records::Source& source = reader->core->shared().source;
    *state = source.txnid;
    if (source.joined != nullptr)
      for (const records::Database& d : source.joined->all) *state = mix(*state ^ d.txnid);
    return Status();
  });
}

LMDBIO_ABI int lmdbio_reader_read(lmdbio_reader* reader, const uint64_t* ordinals, size_t n,
                                  const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (reader == nullptr || batch == nullptr || (ordinals == nullptr && n != 0))
      return invalid(why, "lmdbio_reader_read: null argument");
    for (std::size_t i = 0; i < n; ++i)
      if (ordinals[i] == records::kNoRecord) return invalid(why, "lmdbio_reader_read: no such record");
    if (const Status st = wait_for_team(*reader, why); !st.ok()) return st;
    std::unique_ptr<records::Batch> b;
    const Status st = reader->core->read({ordinals, n}, b, why);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI int lmdbio_reader_read_keys(lmdbio_reader* reader, const MDB_val* keys, size_t n,
                                       const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (reader == nullptr || batch == nullptr || (keys == nullptr && n != 0))
      return invalid(why, "lmdbio_reader_read_keys: null argument");
    std::vector<std::uint64_t> ordinals;
    std::unique_ptr<records::Batch> b;
    Status st = wait_for_team(*reader, why);
    if (st.ok()) st = reader->core->find({keys, n}, ordinals, why);
    if (st.ok()) st = reader->core->read(ordinals, b, why, true);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI int lmdbio_reader_find(lmdbio_reader* reader, const MDB_val* keys, size_t n, uint64_t* ordinals) {
  return told([&](std::string& why) {
    if (reader == nullptr || ((keys == nullptr || ordinals == nullptr) && n != 0))
      return invalid(why, "lmdbio_reader_find: null argument");
    std::vector<std::uint64_t> found;
    Status st = wait_for_team(*reader, why);
    if (st.ok()) st = reader->core->find({keys, n}, found, why);
    if (st.ok()) std::copy(found.begin(), found.end(), ordinals);
    return st;
  });
}

LMDBIO_ABI void lmdbio_batch_release(const lmdbio_batch* batch) {
  if (batch == nullptr) return;
  (void)guarded([&] {
    delete static_cast<const records::Batch*>(batch);
    return Status();
  });
}

LMDBIO_ABI int lmdbio_stream_open(lmdbio_reader* reader, const lmdbio_order* given, lmdbio_stream** stream) {
  return told([&](std::string& why) {
    if (reader == nullptr || given == nullptr || stream == nullptr)
      return invalid(why, "lmdbio_stream_open: null argument");
    lmdbio_order order;
    if (!read_sized(given, order))
      return invalid(why, "lmdbio_order: size is not valid, or an unknown field is not 0");
    if (order.kind == LMDBIO_ORDER_KEYS && order.keys == nullptr && order.length != 0)
      return invalid(why, "lmdbio_order: keys: must not be NULL");
    if (order.kind == LMDBIO_ORDER_LIST && order.list == nullptr && order.length != 0)
      return invalid(why, "lmdbio_order: list: must not be NULL");
    if (order.kind == LMDBIO_ORDER_MIXED && reader->team != nullptr)
      return invalid(why, "lmdbio_order: kind: ranks cannot share a mixed order");
    if (order.kind == LMDBIO_ORDER_FUNCTION && order.function == nullptr)
      return invalid(why, "lmdbio_order: function: must not be NULL");
    auto made = std::make_unique<lmdbio_stream>();
    Status st;
    if (reader->team != nullptr) {
      st = reader->team->open_stream(order, made->core, why);
    } else {
      std::unique_ptr<records::Stream> core;
      st = records::Stream::open(*reader->core, order, core, why);
      made->core = std::move(core);
    }
    if (st.ok()) *stream = made.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_stream_next(lmdbio_stream* stream, const lmdbio_batch** batch) {
  return told([&](std::string& why) {
    if (stream == nullptr || batch == nullptr) return invalid(why, "lmdbio_stream_next: null argument");
    std::unique_ptr<records::Batch> b;
    const Status st = stream->core->next(b, why);
    if (st.ok()) *batch = give(std::move(b));
    return st;
  });
}

LMDBIO_ABI void lmdbio_stream_position(const lmdbio_stream* stream, uint64_t* epoch, uint64_t* position) {
  const records::Position at = stream != nullptr ? stream->core->position() : records::Position();
  if (epoch != nullptr) *epoch = at.epoch;
  if (position != nullptr) *position = at.position;
}

LMDBIO_ABI void lmdbio_stream_cancel(lmdbio_stream* stream) {
  const int saved = errno;
  if (stream != nullptr) stream->core->cancel();
  errno = saved;
}

LMDBIO_ABI void lmdbio_stream_close(lmdbio_stream* stream) {
  if (stream == nullptr) return;
  (void)guarded([&] {
    delete stream;
    return Status();
  });
}

LMDBIO_ABI int lmdbio_take_prepared(std::uint64_t bytes) {
  return guarded([&] {
    window::Prefetcher* const prefetcher = window::Prefetcher::get();
    if (prefetcher == nullptr) return Status::from_errno(ENOMEM);
    window::ProcessMemory& memory = prefetcher->memory();
    const bool taken =
        memory.limit() == 0 || memory.take(gather::MemoryUse::prepared, bytes, gather::Urgency::ahead);
    return taken ? Status() : Status::from_errno(ENOMEM);
  });
}

LMDBIO_ABI void lmdbio_give_back_prepared(std::uint64_t bytes) {
  (void)guarded([&] {
    if (window::Prefetcher* const prefetcher = window::Prefetcher::existing(); prefetcher != nullptr)
      prefetcher->memory().give_back(gather::MemoryUse::prepared, bytes);
    return Status();
  });
}

LMDBIO_ABI uint64_t lmdbio_shuffle(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t i) {
  return records::shuffle(seed, epoch, count, i);
}

}  // extern "C"
