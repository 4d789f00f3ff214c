// lmdbio export: writes the records of a database as files into a directory, or as a tar archive.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/records.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/files/database.h"
#include "lmdbio/files/names.h"
#include "lmdbio/files/output.h"
#include "lmdbio/files/tar.h"
#include "lmdbio/files/tree_writer.h"
#include "lmdbio/include/lmdbio/reader.h"

namespace lmdbio::cli {

namespace {

/// Bytes of a batch, on average, and its largest number of records.
constexpr std::uint64_t kBatchBytes = std::uint64_t{4} << 20, kBatchRecords = 1024;
/// Problems that are printed one by one.
constexpr std::uint64_t kPrinted = 20;

struct Options {
  std::string path, database, directory, prefix, range, suffix;
  bool tar = false;
  files::ValuePart part = files::ValuePart::raw;
};

/// Counts records that were left out, and says why.
class Problems {
 public:
  void add(const std::string& what) {
    if (++count_ <= kPrinted) std::fprintf(stderr, "lmdbio: %s\n", what.c_str());
  }
  int finish() const {
    if (count_ == 0) return kClean;
    std::fprintf(stderr, "lmdbio: records that were left out: %" PRIu64 "\n", count_);
    return kFindings;
  }

 private:
  std::uint64_t count_ = 0;
};

/// The place where files are written.
class Target {
 public:
  explicit Target(const Options& options, const files::Database& database)
      : mtime_(static_cast<std::uint64_t>(std::max<std::int64_t>(0, database.file().st_mtim.tv_sec))) {
    if (options.tar)
      archive_.emplace(STDOUT_FILENO);
    else
      tree_.emplace(options.directory);
  }

  /// Writes a file.  Returns why it cannot be written, or an empty string.  `contents` must stay as they are
  /// until the next flush().
  std::string put(const std::string& name, std::string_view contents) {
    if (archive_) {
      check_output(archive_->append(files::tar_header(name, contents.size(), mtime_)));
      check_output(archive_->append_lasting(contents));
      check_output(archive_->append_zeros(files::tar_padding(contents.size())));
      return {};
    }
    files::TreeWriter::Outcome done = tree_->put(name, contents);
    if (done.full) throw Failure(done.why);
    return std::move(done.why);
  }

  /// Writes what waits for that.
  void flush() {
    if (archive_) check_output(archive_->flush());
  }
  void finish() {
    if (archive_) check_output(archive_->append(files::tar_end()));
    flush();
  }

 private:
  const std::uint64_t mtime_;
  std::optional<files::Output> archive_;
  std::optional<files::TreeWriter> tree_;
};

class Export {
 public:
  explicit Export(const Options& options)
      : options_(options),
        database_(options.path, options.database),
        range_(key_range(database_, options.prefix, options.range)),
        reader_(database_.txn(), database_.dbi(), reader_options()),
        target_(options, database_) {}

  int run() {
    write_all();
    target_.finish();
    return problems_.finish();
  }

 private:
  void write_all() {
    const std::uint64_t first = ordinal(range_.first, 0);
    const std::uint64_t end =
        std::max(first, range_.end.empty() ? reader_.size() : ordinal(range_.end, first));
    const NoFileSizeSignal files_may_be_too_large;
    Progress progress("exporting");
    const MDB_stat s = database_.stat();
    const std::uint64_t pages = s.ms_leaf_pages + s.ms_overflow_pages;
    const std::uint64_t each =
        std::max<std::uint64_t>(1, pages * s.ms_psize / std::max<std::uint64_t>(1, s.ms_entries));
    const std::uint64_t records = std::clamp<std::uint64_t>(kBatchBytes / each, 1, kBatchRecords);
    std::unique_ptr<Stream> stream;
    for (std::uint64_t at = first; at < end;) {
      if (!stream) {
        Order order = Order::sequential(records).resume(0, at);
        order.zero_copy = 1;
        stream = std::make_unique<Stream>(reader_.stream(order));
      }
      const std::uint64_t n = std::min(records, end - at);
      std::optional<Batch> batch;
      try {
        batch = stream->next();
      } catch (const Error&) {  // a damaged record, or records that are too large together
        stream.reset();
      }
      if (stream && !batch) break;
      if (batch)
        put(*batch, n);
      else
        for (std::uint64_t i = 0; i < n; ++i) read_alone(at + i);
      at += n;
      progress.set(at - first, end - first);
    }
  }

  static Reader::Options reader_options() {
    Reader::Options o;
    o.progress = [bar = std::make_shared<Progress>("indexing")](std::string_view, std::uint64_t done,
                                                                std::uint64_t total) {
      bar->set(done, total);
      return true;
    };
    return o;
  }

  /// Returns the ordinal of the first record whose key is not less than `key`.
  std::uint64_t ordinal(const std::string& key, std::uint64_t if_empty) {
    if (key.empty()) return if_empty;
    files::Cursor at(database_);
    if (!at.seek(key)) return reader_.size();
    std::uint64_t out = 0;
    database_.check(lmdbio_reader_find(reader_.handle(), &at.key(), 1, &out));
    return out;
  }

  void read_alone(std::uint64_t ordinal) {
    try {
      put(reader_.read(ordinal), 1);
    } catch (const Error& e) {
      problems_.add(e.what());
    }
  }

  /// Writes the first `n` records of a batch.
  void put(const Batch& batch, std::uint64_t n) {
    try {
      for (std::uint64_t i = 0; i < n; ++i) put(batch[i]);
    } catch (...) {
      target_.flush();  // what is complete
      throw;
    }
    target_.flush();
  }

  void put(const Record& record) {
    const auto text = [](std::span<const std::byte> bytes) {
      return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const std::string_view key = text(record.key);
    const MDB_val k = files::value_of(key), v = files::value_of(text(record.value));
    if (database_.is_named_database(k, v)) return;
    const std::string name = files::name_of(key, options_.suffix);
    const auto contents = files::contents_of(text(record.value), options_.part);
    std::string problem;
    if (!contents)
      problem = printable(name) + ": not a Datum, or a Datum without data";
    else if (key == last_key_)
      problem = printable(name) + ": another value of the same key (MDB_DUPSORT)";
    else if (std::string file = options_.tar ? file_above(name) : ""; !file.empty())
      problem = printable(name) + ": " + printable(file) + " is a file";
    else
      problem = printable(target_.put(name, *contents));
    last_key_ = key;
    if (!problem.empty()) problems_.add(problem);
  }

  /// Returns true if the record of `key` becomes a file.  A record that cannot be found does not: its page is
  /// damaged.
  bool becomes_file(const std::string& key) {
    try {
      MDB_val value;
      return database_.get(key, value) && !database_.is_named_database(files::value_of(key), value);
    } catch (const files::Error&) {
      return false;
    }
  }

  /// Returns the directory in the path of `name` that is the name of another record, or an empty string.
  /// In an archive, one would replace the other.
  std::string file_above(const std::string& name) {
    // The directories of the last name need no lookup again, unless one of them was a file.
    std::size_t common = 0;
    while (common < clear_.size() && common < name.size() && clear_[common] == name[common]) ++common;
    for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
      if (slash < common) continue;
      const std::string directory = name.substr(0, slash);
      if (!directory.ends_with(options_.suffix)) continue;
      const std::string key = files::key_of(directory.substr(0, slash - options_.suffix.size()));
      if (!key.empty() && key >= range_.first && range_.before_end(key) &&
          files::name_of(key, options_.suffix) == directory && becomes_file(key))
        return directory;
    }
    clear_ = name.substr(0, name.rfind('/') + 1);
    return {};
  }

  const Options& options_;
  files::Database database_;
  const files::KeyRange range_;
  const Reader reader_;
  Target target_;
  Problems problems_;
  std::string last_key_;
  std::string clear_;  ///< the directories of a name; none of them is a file
};

void check_suffix(const std::string& suffix) {
  if (suffix.size() > files::kMostSuffixBytes || suffix.find('/') != std::string::npos)
    throw Failure("--suffix: a suffix has no slash, and at most 128 bytes");
}

}  // namespace

void add_export(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const sub = app.add_subcommand(
      "export", "write records as files, or as a tar archive; exit status 1: some records were left out");
  add_database_options(*sub, options->path, options->database);
  CLI::Option* const directory =
      sub->add_option("DIR", options->directory, "directory, made if it does not exist");
  sub->add_flag("--tar", options->tar, "write a tar archive to standard output")->excludes(directory);
  sub->add_option("--prefix", options->prefix, "export only keys that begin with this")->type_name("PREFIX");
  sub->add_option("--range", options->range,
                  "export only keys from FIRST up to, but without, END; both may be empty")
      ->type_name("FIRST:END");
  sub->add_option("--suffix", options->suffix, "append this to each name, for example .jpg")
      ->type_name("SUFFIX");
  add_value_option(*sub, options->part);
  sub->callback([options, &status] {
    if (options->tar == !options->directory.empty()) throw Failure("export: give DIR, or --tar");
    if (options->tar && ::isatty(STDOUT_FILENO) == 1)
      throw Failure("export: standard output is a terminal; redirect the archive to a file or a pipe");
    check_suffix(options->suffix);
    status = Export(*options).run();
  });
}

}  // namespace lmdbio::cli
