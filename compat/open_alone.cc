#include "compat/open_alone.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "compat/companion.h"
#include "compat/prove.h"
#include "compat/route.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/engine_pread.h"

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

/// Opens the file without the real library.  `refusal`: what that library answers; 0: it has answered, and
/// the file may be one that cannot be mapped.
bool open(EnvHandle& env, const char* path, unsigned flags, int refusal) {
  const bool other_release = refusal != 0;
  int why = 0;
  if (config().strict || !env.proof || (env.setup.open_flags & kPrevSnapshot) != 0) return false;
  const bool mapped = can_be_mapped(env.proof.get(), why);
  if (mapped && !other_release) return false;
  const Result<File> file = File::from_fd(env.proof.get(), File::Take::borrow);
  if (!file) return false;
  const Result<format::MetaRecord> meta = newest_meta(file.value());
  if (!meta) return false;
  const format::MetaRecord& m = meta.value();
  const format::PageFormat pages{format::page_size(m), format::version(m)};
  if ((pages.version != env.stock->format()) != other_release) return false;
  constexpr unsigned kShown = MDB_NOSYNC | MDB_NOMETASYNC | MDB_MAPASYNC | MDB_NOMEMINIT | MDB_NOSUBDIR |
                              MDB_RDONLY | MDB_NOTLS | MDB_NOLOCK | MDB_NORDAHEAD;
  const unsigned shown = env.setup.open_flags & kShown;
  if (route({shown, flags, pages}) != nullptr) return false;

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
  env.reopen_error = mapped ? refusal : why;
  env.reopening.store(Reopening::done);
  env.engine = std::move(engine).value();
  env.fd = env.proof.get();
  env.setup.map_bytes = map_bytes;
  env.flags = shown | (env.setup.open_flags & kRemapChunks);
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

}  // namespace

bool open_unmapped(EnvHandle& env, const char* path, unsigned flags) { return open(env, path, flags, 0); }

bool open_other_format(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode) {
  const bool is_10 = env.stock->series == Series::v10;
  constexpr unsigned kKnown = MDB_FIXEDMAP | MDB_NOSUBDIR | MDB_NOSYNC | MDB_RDONLY | MDB_NOMETASYNC |
                              MDB_WRITEMAP | MDB_MAPASYNC | MDB_NOTLS | MDB_NOLOCK | MDB_NORDAHEAD |
                              MDB_NOMEMINIT;
  if ((flags & ~(kKnown | (is_10 ? kPrevSnapshot | kRemapChunks : 0u))) != 0) return false;
  note_open(env, path, flags, mode);
  // For calls that need the real library.
  return open(env, path, flags, is_10 ? MDB_VERSION_MISMATCH : MDB_INVALID);
}

}  // namespace lmdbio::compat
