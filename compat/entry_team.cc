// Readers that the ranks of an MPI job share: the functions that liblmdbio_mpi.so calls.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "compat/abi.h"
#include "compat/follow.h"
#include "compat/reader_handle.h"
#include "compat/stats.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/ranks/file_index.h"
#include "lmdbio/ranks/team_functions.h"
#include "lmdbio/ranks/team_stream.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

using SharedTeam = std::shared_ptr<ranks::Team>;

SharedTeam& team_of(void* handle) noexcept { return *static_cast<SharedTeam*>(handle); }

std::uint64_t hash(const std::byte* bytes, std::size_t n, std::uint64_t seed) noexcept {
  std::uint64_t h = mix(seed);
  for (std::size_t i = 0; i < n; ++i) h = mix(h ^ static_cast<std::uint64_t>(bytes[i]));
  return h;
}

/// This rank's part of a reader that the ranks share.
class LocalReader final : public ReaderTeam, public ranks::TeamReader::Local {
 public:
  LocalReader(lmdbio_reader& reader, const lmdbio_reader_options& options, std::shared_ptr<Opened> opened,
              const ReaderPart& part)
      : reader_(reader),
        options_(options),
        database_(options.database != nullptr ? options.database : ""),
        opened_(std::move(opened)),
        part_(part) {
    options_.database = nullptr;
    options_.progress = nullptr;  // it must not be called by another thread, or twice
  }
  LocalReader(const LocalReader&) = delete;
  LocalReader& operator=(const LocalReader&) = delete;
  ~LocalReader() override {
    if (shared_ != nullptr) shared_->let_go();
  }

  Status open(const SharedTeam& team, const char* path, std::string& why) {
    ranks::FileState state;
    if (const Status st = look(state, why); !st.ok()) return st;
    ranks::TeamReader::open(team, path, database_, state, *this, shared_);
    return {};
  }

  Status wait(std::string& why) override { return shared_->wait(never_, why); }
  Status open_stream(const lmdbio_order& order, std::unique_ptr<records::BatchStream>& out,
                     std::string& why) override {
    return ranks::TeamStream::open(shared_, order, out, why);
  }

  Status renew(ranks::FileState& state, std::string& why) override {
    const std::shared_ptr<Opened> opened = opened_.lock();
    if (opened == nullptr) return Status::from_errno(EINVAL);
    mdb_txn_reset(opened->txn);
    if (const int rc = mdb_txn_renew(opened->txn); rc != 0) {
      why = mdb_strerror(rc);
      return as_status(rc);
    }
    ReadTxn* const t = as<ReadTxn>(opened->txn);
    if (t->txn.stale(opened->dbi))
      if (const auto record = t->txn.record(opened->dbi); !record) return record.error();
    std::unique_ptr<records::Reader> core;
    if (const Status st = make_reader(*t, opened->dbi, options_, database_, opened, part_, core, why);
        !st.ok())
      return st;
    stats_reader_gone(*reader_.env, reader_.core->shared());
    reader_.core = std::move(core);
    return look(state, why);
  }

  Status check(std::string& why) override {
    ranks::FileState now;
    if (const Status st = look(now, why); !st.ok()) return st;
    if (now.metas == state_.metas) return {};
    why = reader_.env->stats.path +
          ": has been changed by a writer, from which other nodes are not protected: open it again";
    return Status::from_errno(ESTALE);
  }

  records::Reader& reader() noexcept override { return *reader_.core; }
  records::IndexParts* missing_index() noexcept override {
    return part_.deferred_index && !reader_.core->shared().counters.index_read
               ? static_cast<records::IndexParts*>(&reader_.core->locations())
               : nullptr;
  }
  std::unique_ptr<ranks::IndexWork> start_index(std::uint64_t part, std::uint64_t parts) override {
    const records::Shared& shared = reader_.core->shared();
    return ranks::start_index(shared.source, shared.pool->memory(), part, parts);
  }

 private:
  /// Returns the state of the file now, with the transaction id of the reader's snapshot.
  Status look(ranks::FileState& state, std::string& why) {
    tree::Env& env = *reader_.env->engine;
    const records::Source& source = reader_.core->shared().source;
    tree::MetaCopies metas;
    Status st = env.read_metas(metas);
    const auto identity = source.base().identity();
    if (st.ok() && !identity) st = identity.error();
    if (!st.ok()) {
      why = source.name + ": " + mdb_strerror(st.raw());
      return st;
    }
    state.size = identity.value().size;
    state.mtime_ns = static_cast<std::uint64_t>(identity.value().mtime_ns);
    state.txnid = source.txnid;
    for (std::size_t i = 0; i < state.metas.size(); ++i)
      state.metas[i] = hash(metas.records()[i / 2], sizeof(format::MetaRecord), i);
    if (shared_ == nullptr || shared_->may_renew()) state_ = state;
    return {};
  }

  lmdbio_reader& reader_;
  lmdbio_reader_options options_;
  const std::string database_;
  const std::weak_ptr<Opened> opened_;  // the reader owns it
  const ReaderPart part_;
  const std::atomic<bool> never_{false};
  std::shared_ptr<ranks::TeamReader> shared_;
  ranks::FileState state_;
};

/// Opens this rank's part of a reader, and tells the other ranks.  The caller tells them of an error.  Does
/// not wait for them.
Status open_local(const SharedTeam& team, const char* path, const lmdbio_reader_options& options,
                  std::unique_ptr<lmdbio_reader>& out, std::string& why) {
  const auto opened = std::make_shared<Opened>();
  if (const Status st = open_environment(path, options, *opened, why); !st.ok()) return st;
  ReadTxn* t = nullptr;
  if (const Status st = served(path, *opened, t, why); !st.ok()) return st;
  // Each node reads its own part of the file, and finds this part in its page cache in the next epoch.
  ReaderPart part;
  part.of_file = 1.0 / static_cast<double>(team->nodes());
  part.deferred_index = team->network().ranks() > 1;
  part.reads_around = team->nodes() == 1;
  auto made = std::make_unique<lmdbio_reader>();
  made->env = t->env;
  if (const Status st =
          make_reader(*t, opened->dbi, options, options.database != nullptr ? options.database : "", opened,
                      part, made->core, why);
      !st.ok())
    return st;
  auto local = std::make_shared<LocalReader>(*made, options, opened, part);
  if (const Status st = local->open(team, path, why); !st.ok()) {
    stats_reader_gone(*made->env, made->core->shared());
    return st;
  }
  made->team = std::move(local);
  out = std::move(made);
  return {};
}

int init(ranks::Network* network, const ranks::TeamOptions& options, void** team) noexcept {
  std::unique_ptr<ranks::Network> owned(network);
  return told([&](std::string&) {
    ranks::Team::Settings settings;
    char host[256] = "";
    (void)::gethostname(host, sizeof host - 1);
    settings.host = host;
    settings.timeout_ns = std::int64_t{options.timeout_seconds} * 1'000'000'000;
    settings.readers_per_node = options.readers_per_node;
    settings.own_thread = options.own_thread;
    settings.turns = {options.stagger_group, options.stagger_reads};
    auto made = std::make_unique<SharedTeam>(std::make_shared<ranks::Team>(std::move(owned), settings));
    *team = made.release();
    return Status();
  });
}

unsigned nodes(void* team) noexcept { return static_cast<unsigned>(team_of(team)->nodes()); }

int reader_open(void* handle, const char* path, const lmdbio_reader_options* given,
                lmdbio_reader** reader) noexcept {
  return told([&](std::string& why) {
    const SharedTeam& team = team_of(handle);
    if (path == nullptr || reader == nullptr) {
      why = "lmdbio_mpi_reader_open: null argument";
      return Status::from_errno(EINVAL);
    }
    if (!team->may_call(why)) return Status::from_errno(EINVAL);
    lmdbio_reader_options options;
    if (const Status st = read_options(given, true, options, why); !st.ok()) return st;
    if (options.exclude_count != 0 || options.exclude_prefix_count != 0) {
      why = "lmdbio_reader_options: ranks cannot share a reader that leaves out records (exclude)";
      return Status::from_errno(EINVAL);
    }
    std::unique_ptr<lmdbio_reader> made;
    const Status st = open_local(team, path, options, made, why);
    if (!st.ok()) {
      if (why.empty()) why = std::string(path) + ": " + mdb_strerror(st.raw());
      ranks::TeamReader::report_failure(*team, path, options.database != nullptr ? options.database : "",
                                        st.raw(), why);
      return st;
    }
    team->poll();
    *reader = made.release();
    return st;
  });
}

int follow_open(void* handle, const char* path, const lmdbio_follow_options* given,
                lmdbio_follow** follow) noexcept {
  return told([&](std::string& why) {
    const SharedTeam& team = team_of(handle);
    if (path == nullptr || given == nullptr || follow == nullptr) {
      why = "lmdbio_mpi_follow_open: null argument";
      return Status::from_errno(EINVAL);
    }
    if (!team->may_call(why)) return Status::from_errno(EINVAL);
    FollowOptions options;
    if (const Status st = FollowOptions::read(given, options, why); !st.ok()) return st;
    auto made = std::make_unique<lmdbio_follow>();
    const Status st = Follow::open(team, path, std::move(options), made->core, why);
    if (st.ok()) *follow = made.release();
    return st;
  });
}

int wait(lmdbio_reader* reader) noexcept {
  return told([&](std::string& why) {
    if (reader == nullptr) {
      why = "lmdbio_mpi_wait: null argument";
      return Status::from_errno(EINVAL);
    }
    return reader->team != nullptr ? reader->team->wait(why) : Status();
  });
}

int poll(void* handle) noexcept {
  return told([&](std::string& why) {
    if (!team_of(handle)->may_call(why)) return Status::from_errno(EINVAL);
    team_of(handle)->poll();
    return Status();
  });
}

/// Returns one line of JSON with the counters of the whole job.
std::string job_line(ranks::Team& team) {
  const ranks::JobTotals& t = team.job_totals();
  std::string out = "{\"lmdbio\":\"" LMDBIO_VERSION "\",\"job\":{";
  const auto add = [&out](const char* name, std::uint64_t n) {
    out += (out.back() == '{' ? "\"" : ",\"") + std::string(name) + "\":" + std::to_string(n);
  };
  add("ranks", team.network().ranks());
  add("nodes", team.nodes());
  add("records", t.records);
  add("bytes", t.bytes);
  add("file_bytes", t.file_bytes);
  add("file_requests", t.file_requests);
  add("memory_bytes", t.memory_bytes);
  add("messages", t.messages);
  add("rank_bytes", t.rank_bytes);
  add("node_bytes", t.node_bytes);
  add("records_alone", t.records_alone);
  add("waits", t.waits);
  add("wait_us", t.wait_ns / 1000);
  return out + "}}\n";
}

int close(void* handle) noexcept {
  return told([&](std::string& why) {
    ranks::Team& team = *team_of(handle);
    if (!team.ours() || team.closed()) return Status();
    if (team.close()) {
      if (team.rank() == 0) stats_write(job_line(team));
      return Status();
    }
    why = "lmdbio_mpi_finalize: messages between the ranks had failed";
    return Status::from_errno(EIO);
  });
}

void free_team(void* handle) noexcept {
  // If the team has not ended well, messages may still be in flight, and their memory must stay.
  if (team_of(handle)->ended_well()) delete static_cast<SharedTeam*>(handle);
}

void set_error(const char* text) noexcept {
  try {
    set_error_text(text);
  } catch (...) {  // without memory there is no text
  }
}

bool together() noexcept { return config().mpi; }

constexpr ranks::TeamFunctions kFunctions{set_error,   together, init, nodes, reader_open,
                                          follow_open, wait,     poll, close, free_team};

}  // namespace

extern "C" LMDBIO_ABI const ranks::TeamFunctions* lmdbio_team_functions(const char* version) {
  return version != nullptr && std::strcmp(version, LMDBIO_VERSION) == 0 ? &kFunctions : nullptr;
}
