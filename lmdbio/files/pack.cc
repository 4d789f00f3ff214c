#include "lmdbio/files/pack.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "lmdbio/base/mix.h"
#include "lmdbio/files/append_writer.h"
#include "lmdbio/files/append_writer_10.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/loader.h"
#include "lmdbio/files/pack_plan.h"
#include "lmdbio/files/partial.h"

namespace lmdbio::files {

namespace {

/// The largest key of stock LMDB as it is usually built, in bytes (mdb_env_get_maxkeysize).
constexpr std::size_t kMostKeyBytes = 511;

std::vector<std::string> own_paths(const PackOptions& options) {
  std::vector<std::string> out;
  for (const std::string& database : {options.database, options.label_database})
    if (!database.empty())
      for (std::string& path : Partial::paths(database)) out.push_back(std::move(path));
  return out;
}

class Packing {
 public:
  Packing(const PackOptions& options, const PackProgress& progress)
      : options_(options), progress_(progress), list_(options.sources, own_paths(options)) {
    list_.sort(options.order, kMostKeyBytes);
    if (!options.label_database.empty()) list_.need_labels();
    result_.left_out = list_.left_out();
    result_.files = list_.items().size();
    for (const PackItem& i : list_.items()) result_.bytes += i.size;
  }

  PackResult run() {
    const format::PageFormat pages{static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), options_.format};
    const std::uint64_t fingerprint =
        mix(list_.fingerprint() ^ options_.most_bytes) + format::raw(options_.format);
    Partial partial(options_.database, fingerprint);
    std::optional<Partial> labels;
    if (!options_.label_database.empty()) {
      labels.emplace(options_.label_database, mix(fingerprint));
      if (!labels->is_published()) write_labels(labels->directory(), pages);
    }
    const std::vector<Shard> shards = plan_shards(list_.items(), pages, options_.most_bytes);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      char name[24] = "";
      if (options_.most_bytes != 0) (void)std::snprintf(name, sizeof name, "/%05zu", i);
      if (!partial.is_published()) {
        if (options_.most_bytes != 0) std::filesystem::create_directory(partial.directory() + name);
        write(partial.directory() + name, shards[i]);
      }
      result_.databases.push_back(options_.database + name);
    }
    if (partial.is_published()) result_.resumed = result_.files;
    // The states stay until both directories have their names, so that this call can be repeated.
    if (labels) {
      labels->publish();
      result_.databases.push_back(options_.label_database);
    }
    partial.publish();
    partial.forget();
    if (labels) labels->forget();
    return std::move(result_);
  }

 private:
  /// Returns the first item of a shard that is not written.
  template <class Writer>
  std::size_t resume_at(const std::string& directory, const Writer& writer, const Shard& shard) const {
    const std::uint64_t n = writer.committed();
    if (n > shard.end - shard.first || (n > 0 && list_.items()[shard.first + n - 1].key != writer.last_key()))
      throw Error(directory + ": has other records than this pack has written");
    return shard.first + static_cast<std::size_t>(n);
  }

  /// Calls write(writer) with the writer of the format.  `bytes`: upper limit on the size of the file.
  template <class Write>
  void with_writer(const std::string& directory, std::uint64_t bytes, Write&& write) const {
    if (options_.format == format::Version::v10) {
      AppendWriter10 writer(directory);
      write(writer);
      writer.finish();
    } else {
      AppendWriter writer(directory, bytes);
      write(writer);
      writer.finish();
    }
  }

  void write(const std::string& directory, const Shard& shard) {
    with_writer(directory, shard.bytes, [&](auto& writer) { write(writer, directory, shard); });
  }

  template <class Writer>
  void write(Writer& writer, const std::string& directory, const Shard& shard) {
    const std::vector<PackItem>& items = list_.items();
    const std::size_t begin = resume_at(directory, writer, shard);
    result_.resumed += begin - shard.first;
    for (std::size_t i = shard.first; i < begin; ++i) done_ += items[i].size;
    Loader loader(
        begin, shard.end, [&](std::size_t i) { return items[i].size; },
        [&](std::size_t i, std::string& out) { list_.read(items[i], out); });
    for (std::size_t i = begin; i < shard.end; ++i) {
      writer.append(items[i].key, loader.next());
      done_ += items[i].size;
      progress_(done_, result_.bytes);
    }
  }

  void write_labels(const std::string& directory, const format::PageFormat& pages) {
    const std::vector<PackItem>& items = list_.items();
    AppendedSize size(pages);
    for (const PackItem& i : items) size.add({i.key.size(), std::to_string(i.label).size()});
    with_writer(directory, size.bytes(), [&](auto& writer) {
      for (std::size_t i = resume_at(directory, writer, {0, items.size(), 0}); i < items.size(); ++i)
        writer.append(items[i].key, std::to_string(items[i].label));
    });
  }

  const PackOptions& options_;
  const PackProgress& progress_;
  PackList list_;
  PackResult result_;
  std::uint64_t done_ = 0;  ///< bytes
};

}  // namespace

PackResult pack(const PackOptions& options, const PackProgress& progress) {
  try {
    const auto absolute = [](const std::string& path) {
      return std::filesystem::weakly_canonical(path + "/.");  // the same for "db", "db/" and "db/."
    };
    if (!options.label_database.empty() && absolute(options.database) == absolute(options.label_database))
      throw Error(options.label_database + ": the labels need a database of their own");
    return Packing(options, progress).run();
  } catch (const std::filesystem::filesystem_error& e) {
    throw Error(e.path1().native() + ": " + e.code().message());
  }
}

}  // namespace lmdbio::files
