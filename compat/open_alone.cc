#include "compat/open_alone.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "compat/companion.h"
#include "compat/prove.h"
#include "compat/route.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/tree/snapshot.h"

namespace lmdbio::compat {

namespace {

bool can_be_mapped(int fd, int& why) noexcept {
  constexpr std::size_t kByte = 1;
  const Result<Mapping> probe = Mapping::map_file(fd, kByte, kByte);
  why = probe ? 0 : probe.error().raw();
  return probe || why == ENOMEM || why == EAGAIN;
}

/// Returns the newer of the two metas.
Result<format::MetaRecord> newest_meta(const File& file) {
  PreadEngine engine(file);
  std::byte page[format::kMetaBytes];
  if (const Status st = read_fully(engine, 0, page); !st.ok()) return st;
  Result<format::MetaRecord> first = format::parse_meta(page);
  if (!first) return first.error();
  if (const Status st = read_fully(engine, format::page_size(first.value()), page); !st.ok()) return st;
  Result<format::MetaRecord> second = format::parse_meta(page);
  if (!second) return second.error();
  return first.value().txnid < second.value().txnid ? second : first;
}

/// Returns the size of the largest key that LMDB 1.0 stores in such pages.
int largest_key_of_10(std::size_t page_size) noexcept {
  // Two nodes have to fit into a page, each with a slot, also if their data is the record of a tree.
  const std::size_t room = page_size - format::page_header(format::Version::v10);
  const std::size_t node = (room / 2 & ~std::size_t{1}) - sizeof(std::uint16_t);
  return static_cast<int>(node - format::kNodeHeader - sizeof(format::DbRecord));
}

/// Returns whether `page` is a meta page of LMDB 0.9, perhaps a damaged one.
bool is_of_09(Bytes page) noexcept {
  const format::MetaKind kind = format::judge_meta(page);
  if (kind == format::MetaKind::other || kind == format::MetaKind::encrypted) return false;
  const Result<format::MetaRecord> meta = format::parse_meta(page);
  return !meta || format::version(meta.value()) == format::Version::v09;
}

}  // namespace

bool open_alone(EnvHandle& env, const char* path, unsigned flags, int rc) {
  int why = 0;
  if (config().strict || !env.proof) return false;
  const bool mapped = can_be_mapped(env.proof.get(), why);
  if (mapped && rc != MDB_VERSION_MISMATCH && rc != MDB_INVALID) return false;
  const Result<File> file = File::from_fd(env.proof.get(), File::Take::borrow);
  if (!file) return false;
  const Result<format::MetaRecord> meta = newest_meta(file.value());
  if (!meta) return false;
  const format::MetaRecord& m = meta.value();
  const format::PageFormat pages{format::page_size(m), format::version(m)};
  const format::Version own = env.stock->series == Series::v10 ? format::Version::v10 : format::Version::v09;
  if (mapped && pages.version == own) return false;  // refused for another reason
  constexpr unsigned kShown = MDB_NOSYNC | MDB_NOMETASYNC | MDB_MAPASYNC | MDB_NOMEMINIT | MDB_NOSUBDIR |
                              MDB_RDONLY | MDB_NOTLS | MDB_NOLOCK | MDB_NORDAHEAD;
  const unsigned shown = env.setup.open_flags & kShown;
  if (route({shown, flags, pages.size, true}) != nullptr) return false;

  const std::uint64_t used = (m.last_pg + 1) * pages.size;
  const std::uint64_t map_bytes = std::max<std::uint64_t>(
      env.setup.map_bytes != 0 ? env.setup.map_bytes : static_cast<std::size_t>(m.mapsize), used);
  const tree::Env::Options options{
      pages, map_bytes, env.max_dbs, (shown & MDB_NORDAHEAD) != 0, behaviour_of(*env.stock), m.last_pg, path};
  Result<std::unique_ptr<tree::Env>> engine =
      mapped ? tree::Env::open(env.proof.get(), options) : tree::Env::open_unmapped(env.proof.get(), options);
  if (!engine) return false;

  MDB_env* const real = env.real.exchange(nullptr);
  constexpr int kLargestKeyOf09 = 511;  // LMDB 1.0 knows its limit after an open only
  env.max_key = pages.version == format::Version::v10 ? largest_key_of_10(pages.size)
                : env.stock->series == Series::v10    ? kLargestKeyOf09
                                                      : env.stock->env_get_maxkeysize(real);
  (void)env.stock->env_get_maxreaders(real, &env.max_readers);
  env.stock->env_close(real);
  env.reopen_error = mapped ? rc : why;
  env.reopening.store(Reopening::done);
  env.engine = std::move(engine).value();
  env.fd = env.proof.get();
  env.setup.map_bytes = map_bytes;
  env.flags = shown;
  env.lockless = env.opened = env.alone = true;
  env.stats.opened(path, nullptr, env.fd);
  env.serve();
  if (mapped)
    log_line(
        LogLevel::warn,
        "%s: a file of LMDB %s, which LMDB %s refuses: reading it without locks; writers may change pages "
        "while they are being read",
        path, pages.version == format::Version::v10 ? "1.0" : "0.9",
        pages.version == format::Version::v10 ? "0.9" : "1.0");
  else
    log_line(LogLevel::warn,
             "%s: the file system cannot map this file: reading it into memory, without locks; writers may "
             "change pages while they are being read",
             path);
  return true;
}

bool open_other_format(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode) {
  char name[PATH_MAX];
  if (config().strict || env.setup.own_pages || !data_file(path, flags, name)) return false;
  env.proof.reset();  // kept by an open that failed
  {
    const AsyncSignalsAllowed program;  // a server may not answer
    env.proof.open(name);
  }
  if (!env.proof) return false;
  note_open(env, path, flags, mode);
  constexpr unsigned kPrevSnapshot = 0x2000000;  // MDB_PREVSNAPSHOT of 1.0's lmdb.h
  const Result<File> file = File::from_fd(env.proof.get(), File::Take::borrow);
  std::byte page[format::kMetaBytes];
  char why[160];
  if (file && (env.setup.open_flags & kPrevSnapshot) == 0) {
    PreadEngine engine(file.value());
    if (read_fully(engine, 0, page).ok() && is_of_09(page)) {
      if (!tree::prove_metas(file.value(), why).ok())
        log_line(LogLevel::warn, "%s: meta pages: %s", name, why);
      else if (open_alone(env, path, flags, MDB_VERSION_MISMATCH))
        return true;
    }
  }
  env.proof.release();
  return false;
}

}  // namespace lmdbio::compat
