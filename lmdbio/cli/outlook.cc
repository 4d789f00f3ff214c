#include "lmdbio/cli/outlook.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/io/file_identity.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::cli {
namespace {

const char* key_of(Access access) {
  switch (access) {
    case Access::walk:
      return "walk";
    case Access::lookup:
      return "lookup";
    case Access::load:
      return "load";
    case Access::prefetch:
      return "prefetch";
    default:
      return "reader";
  }
}

const char* title_of(Access access) {
  switch (access) {
    case Access::walk:
      return "cursor, key order";
    case Access::lookup:
      return "lookups, any order";
    case Access::load:
      return "many such lookups";
    case Access::prefetch:
      return "lmdbio_prefetch";
    default:
      return "readers, loaders";
  }
}

std::string target_of(ReadPath path) {
  switch (path) {
    case ReadPath::direct:
      return "past the page cache, into private memory";
    case ReadPath::direct_once:
      return "past the page cache the first time, into it the second time";
    default:
      return "into the page cache";
  }
}

std::string how(Access access, const ReadDecision& decision, double value_bytes) {
  if (decision.path == ReadPath::page_faults) return "page faults: the kernel reads";
  if (decision.path == ReadPath::none) return "not the whole file";
  const std::string target = target_of(decision.path);
  switch (access) {
    case Access::walk:
      return "large requests ahead of the program, " + target +
             (decision.drops_behind ? ", which drops them behind the program" : "");
    case Access::lookup:
      return "only what is missing, each value" +
             (value_bytes > 0 ? " (" + bytes_text(value_bytes) + " on average)" : std::string()) +
             " in one request, " + target;
    case Access::load:
      return "the whole file in the background, " + target;
    case Access::prefetch:
      return "all missing values of the keys at once, " + target;
    default:
      return "the records of several batches at once, " + target;
  }
}

}  // namespace

Outlook::Outlook(const Database& database, std::uint64_t used_bytes) {
  const MemoryFacts memory = memory_facts();
  facts_.setting = config().io;
  facts_.node = config().node;
  facts_.memory_limit = config().memory_limit(memory.total);
  facts_.available = memory.available;
  facts_.file_bytes = std::min(used_bytes, static_cast<std::uint64_t>(database.status().st_size));
  const std::string path = std::filesystem::absolute(database.path()).string();
  const auto opened =
      OpenFile::get({-1, path.c_str(), identity_of(database.status())}, OpenFile::With::buffered_alone);
  if (!opened) return;
  const OpenFile& file = *opened.value();
  facts_.local = file.local();
  facts_.kernel_readahead = file.readahead();
  facts_.opens_drop_cache = file.opens_drop_cache();
  facts_.direct_works = file.direct() != nullptr;
  facts_.room_for_all = facts_.file_bytes <= facts_.memory_limit;

  const auto add = [this](Access access, const ReadFacts& facts) {
    rows_.push_back({access, choose_read_path(access, facts)});
  };
  // Without memory for them, walks and prefetches do not open the file for direct reads.
  ReadFacts of_walks = facts_;
  of_walks.direct_works = facts_.direct_works && may_read_directly(facts_.setting, facts_.memory_limit);
  add(Access::walk, of_walks);
  of_walks.walks = rows_.back().decision.path;
  add(Access::lookup, of_walks);
  if (!(rows_.back().decision == ReadPath::page_faults)) add(Access::load, of_walks);
  add(Access::prefetch, of_walks);
  add(Access::reader, facts_);
}

void Outlook::show(std::optional<double> cached, double value_bytes) const {
  if (rows_.empty()) {
    std::printf("\nLMDBIO cannot open the file a second time, so page faults would read all data\n");
    return;
  }
  std::printf(
      "\nhow LMDBIO would read what is not in memory (%s file system, read-ahead of the kernel: %s; free "
      "memory: %s, private memory: at most %s)\n",
      facts_.local ? "local" : "remote or user-space",
      facts_.kernel_readahead != 0 ? bytes_text(static_cast<double>(facts_.kernel_readahead)).c_str()
                                   : "unknown",
      bytes_text(static_cast<double>(facts_.available)).c_str(),
      bytes_text(static_cast<double>(facts_.memory_limit)).c_str());
  for (const Row& r : rows_) {
    const std::string text = how(r.access, r.decision, value_bytes);
    // The reason for the usual way of lookups would repeat the text.
    if (r.access == Access::lookup && r.decision == ReadPath::page_cache)
      std::printf("  %-19s %s\n", title_of(r.access), text.c_str());
    else
      std::printf("  %-19s %s (reason: %s)\n", title_of(r.access), text.c_str(), r.decision.reason);
  }
  if (cached && *cached >= kMostlyResident)
    std::printf("  now                 nothing of it is read: %s of the file is in the page cache\n",
                percent_text(*cached, 1).c_str());
  if (!config().cache_dir.empty())
    std::printf("  cache on local disk what %s has is read from there\n",
                printable(config().cache_dir).c_str());
}

Json Outlook::json() const {
  Json rows = Json::array();
  for (const Row& r : rows_)
    rows.push_back({{"access", key_of(r.access)},
                    {"read_path", name_of(r.decision.path)},
                    {"reason", r.decision.reason}});
  return {{"local", facts_.local},
          {"kernel_readahead_bytes", facts_.kernel_readahead},
          {"free_memory_bytes", facts_.available},
          {"memory_limit_bytes", facts_.memory_limit},
          {"direct_io", facts_.direct_works},
          {"accesses", std::move(rows)}};
}

}  // namespace lmdbio::cli
