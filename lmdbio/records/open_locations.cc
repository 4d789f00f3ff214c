#include "lmdbio/records/open_locations.h"

#include <string.h>
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <utility>

#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/records/build_index.h"
#include "lmdbio/records/index_file.h"
#include "lmdbio/records/index_parts.h"
#include "lmdbio/records/pending_locations.h"

namespace lmdbio::records {

namespace {

/// If a tree has fewer leaf pages, the calling thread builds the index.
constexpr std::uint64_t kManyLeaves = 128;

}  // namespace

std::string index_failure(const std::string& name, Status st, const IndexProblem& problem,
                          const Memory* memory) {
  std::string why = name + ": the record index cannot be built: ";
  const char* const text = st.raw() > 0 ? ::strerrordesc_np(st.raw()) : nullptr;
  if (problem.reason[0] != '\0')
    why += "page " + std::to_string(problem.page) + ": " + problem.reason;
  else
    why += text != nullptr ? text : "a damaged page";
  if (st.raw() == ENOMEM && memory != nullptr) why += memory->reason();
  return why;
}

void warn_of_damage(const std::string& name, const IndexProblem& problem) noexcept {
  if (problem.damaged != 0)
    log_line(LogLevel::warn,
             "%s: damaged leaf pages: %" PRIu64 "; their records cannot be read; one is page %" PRIu64 ": %s",
             name.c_str(), problem.damaged, problem.page, problem.reason);
}

Status open_locations(const Source& source, const LocationsRequest& request,
                      std::unique_ptr<RecordLocations>& out, bool& loaded, std::string& why) {
  RecordIndex index;
  loaded = false;
  if (request.index_file) {
    const Result<FileIdentity> identity = source.base().identity();
    const Result<std::uint64_t> size = source.base().size();
    if (identity && size) {
      IndexTag tag;
      tag.database = request.database;
      tag.txnid = source.txnid;
      tag.page_size = source.page_size;
      tag.version = source.version;
      tag.file_pages = size.value() / source.page_size;
      tag.record = source.db;
      tag.identity = identity.value();
      (void)source.base().with_fd([&tag](int fd) noexcept {
        if (struct stat st; ::fstat(fd, &st) == 0) tag.owner = st.st_uid;
      });
      loaded = find_index(source.path, tag, index);
    }
  }
  TakenMemory taken;
  if (loaded) {
    if (!taken.take(request.memory, MemoryUse::index, index.memory_bytes(), Urgency::last)) {
      why = source.name + ": the record index needs " + std::to_string(index.memory_bytes()) + " bytes" +
            request.memory->reason();
      return Status::from_errno(ENOMEM);
    }
    out = std::make_unique<IndexLocations>(std::move(index), request.memory, std::move(taken));
    return {};
  }
  if (request.deferred) {
    out = std::make_unique<IndexParts>(source.db.entries);
    return {};
  }
  if (request.progress == nullptr && source.db.leaf_pages >= kManyLeaves) {
    out = PendingLocations::start(source, request.memory);
    if (out != nullptr) return {};
  }
  IndexRequest build;
  build.file = source.file.get();
  build.file_pages = source.pages;
  build.page_size = source.page_size;
  build.version = source.version;
  build.record = source.db;
  build.available = source.available;
  build.memory = request.memory;
  build.tolerant = true;
  build.progress = request.progress;
  build.context = request.context;
  IndexProblem problem;
  if (const Status st = build_index(build, index, problem, nullptr, &taken); !st.ok()) {
    why = index_failure(source.name, st, problem, request.memory.get());
    return st;
  }
  warn_of_damage(source.name, problem);
  out = std::make_unique<IndexLocations>(std::move(index), request.memory, std::move(taken));
  return {};
}

Status open_locations(Databases& databases, std::size_t i, LocationsRequest request,
                      const std::atomic<bool>& cancelled, std::unique_ptr<RecordLocations>& out,
                      std::string& why) {
  const Database& d = databases.all[i];
  const Result<std::shared_ptr<const OpenFile>> file = databases.files.open(i);
  if (!file) {
    const char* const text = file.error().raw() > 0 ? ::strerrordesc_np(file.error().raw()) : nullptr;
    why = file.error().raw() == ESTALE ? databases.changes(i) : d.name + ": " + (text != nullptr ? text : "");
    return file.error();
  }
  Source source;
  source.file = file.value();
  source.name = d.name;
  source.path = databases.files.part(i).path;
  source.page_size = databases.pages.size;
  source.version = databases.pages.version;
  source.pages = d.pages;
  source.txnid = d.txnid;
  source.db = d.db;
  source.key_order = d.key_order;
  source.dup_order = d.dup_order;
  source.available = memory_facts().available;
  struct Context {
    const std::atomic<bool>& cancelled;
  } context{cancelled};
  if (request.progress == nullptr) {
    request.progress = [](void* its, std::uint64_t, std::uint64_t) noexcept {
      return !static_cast<Context*>(its)->cancelled.load(std::memory_order_relaxed);
    };
    request.context = &context;
  }
  bool loaded = false;
  const Status st = open_locations(source, request, out, loaded, why);
  if (databases.unchanged(i)) return st;
  out.reset();
  why = databases.changes(i);
  return Status::from_errno(ESTALE);
}

}  // namespace lmdbio::records
