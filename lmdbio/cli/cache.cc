// lmdbio cache: shows, fills, removes and verifies the images of databases on local disk.

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lmdbio/base/config.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/image_format.h"
#include "lmdbio/cache/verify.h"
#include "lmdbio/cache/warm.h"
#include "lmdbio/cli/command.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/progress.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::cli {
namespace {

namespace fs = std::filesystem;

/// Most damaged chunks of an image that the text lists; JSON lists all.
constexpr std::size_t kListed = 10;

struct Options {
  std::string directory, path;
  bool all = false, json = false;
};

std::string errno_text(int e) {
  const char* const text = ::strerrordesc_np(e);
  return text != nullptr ? text : "unknown error";
}

std::string size_text(std::uint64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string path_text(const std::string& path) { return path.empty() ? "unknown database" : printable(path); }

std::string time_text(std::int64_t seconds) {
  const time_t t = seconds;
  struct tm parts {};
  char text[32] = "-";
  if (::localtime_r(&t, &parts) != nullptr)
    (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

/// Returns LMDBIO_CACHE_DIR, which --cache overrides.
const std::string& cache_dir(const Options& options) {
  if (!options.directory.empty() && ::setenv("LMDBIO_CACHE_DIR", options.directory.c_str(), 1) != 0)
    throw std::bad_alloc();
  if (config().cache_dir.empty())
    throw Failure("no cache: LMDBIO_CACHE_DIR is not set; --cache DIR gives the directory");
  return config().cache_dir;
}

[[noreturn]] void refuse(const std::string& parent, int error) {
  struct stat st {};
  if (::stat(parent.c_str(), &st) != 0) throw Failure(parent + ": " + errno_text(errno));
  const std::string path = cache::Directory::path_in(parent);
  if (error == EPERM)
    throw Failure(path + ": belongs to another user, or other users may use it (it must have mode 0700)");
  if (error == ENOTDIR || error == ELOOP) throw Failure(path + ": a link, or not a directory");
  throw Failure(path + ": " + errno_text(error));
}

/// Returns the directory of the cache, or nothing if no image has been made yet.
std::optional<cache::Directory> find_directory(const Options& options) {
  const std::string& parent = cache_dir(options);
  Result<cache::Directory> found = cache::Directory::open(parent, false);
  if (found) return std::move(found).value();
  struct stat st {};
  if (found.error().raw() != ENOENT || ::stat(parent.c_str(), &st) != 0) refuse(parent, found.error().raw());
  return {};
}

std::string directory_text(const std::optional<cache::Directory>& directory) {
  return directory ? printable(directory->path()) : printable(config().cache_dir);
}

Json image_json(const cache::ImageFacts& f) {
  return {{"name", f.name},
          {"path", f.path.empty() ? Json() : Json(f.path)},
          {"transaction", f.path.empty() ? Json() : Json(f.snapshot)},
          {"database_bytes", f.used_bytes},
          {"chunks", f.chunks},
          {"chunks_there", f.chunks_there},
          {"disk_bytes", f.disk_bytes},
          {"last_use", f.used_s},
          {"in_use", f.in_use}};
}

// --- status ---

int show_status(const Options& options) {
  const std::optional<cache::Directory> directory = find_directory(options);
  const std::vector<cache::ImageFacts> images =
      directory ? directory->list(true) : std::vector<cache::ImageFacts>();
  const cache::Space space = directory ? directory->space(images, config().cache_bytes) : cache::Space();
  if (options.json) {
    Json list = Json::array();
    for (const cache::ImageFacts& f : images) list.push_back(image_json(f));
    const auto known = [&](std::uint64_t bytes) { return directory ? Json(bytes) : Json(); };
    std::printf("%s\n", dump(Json{{"directory", directory ? Json(directory->path()) : Json()},
                                  {"images", std::move(list)},
                                  {"disk_bytes", space.used},
                                  {"limit_bytes", known(space.limit)},
                                  {"free_bytes", known(space.free)},
                                  {"stays_free_bytes", known(space.stays_free)}})
                            .c_str());
    return kClean;
  }
  if (!directory) {
    std::printf("%s: no cache yet\n", directory_text(directory).c_str());
    return kClean;
  }
  std::printf("%s: %s, %s of at most %s; %s are free, of which %s stay free\n",
              directory_text(directory).c_str(), counted(images.size(), "image").c_str(),
              size_text(space.used).c_str(), size_text(space.limit).c_str(), size_text(space.free).c_str(),
              size_text(space.stays_free).c_str());
  if (!images.empty())
    std::printf("  %10s %10s %10s  %-19s %-6s  %s\n", "database", "in cache", "on disk", "last use", "in use",
                "path");
  for (const cache::ImageFacts& f : images)
    std::printf("  %10s %10s %10s  %-19s %-6s  %s\n", size_text(f.used_bytes).c_str(),
                percent_text(static_cast<double>(f.chunks_there), static_cast<double>(f.chunks)).c_str(),
                size_text(f.disk_bytes).c_str(), time_text(f.used_s).c_str(), f.in_use ? "yes" : "no",
                path_text(f.path).c_str());
  return kClean;
}

// --- warm ---

bool show_progress(void* progress, std::uint64_t done, std::uint64_t total) noexcept {
  static_cast<Progress*>(progress)->set(done, total);
  return !interrupted();
}

std::shared_ptr<cache::Image> open_image(const Options& options, const Database& database,
                                         const std::string& path) {
  const FileIdentity id = identity_of(database.status());
  const Result<std::shared_ptr<const OpenFile>> file =
      OpenFile::get({-1, path.c_str(), id}, OpenFile::With::direct);
  if (!file) throw Failure(path + ": " + errno_text(file.error().raw()));
  Result<std::shared_ptr<cache::Image>> image =
      cache::Image::open(file.value(), path.c_str(), database.newest());
  if (image) return std::move(image).value();
  const std::string& parent = cache_dir(options);
  switch (const int error = image.error().raw()) {
    case EXDEV:
      throw Failure(path + ": is on the same file system as the cache, " + parent);
    case ESTALE:
      throw Failure(path + ": a writer has committed meanwhile, or the meta pages are damaged; try again");
    default:
      refuse(parent, error);
  }
}

/// Returns why an image is not complete.
std::string why_incomplete(const cache::Image& image, const cache::Warmed& warmed) {
  if (!warmed.failed.ok()) return "the database cannot be read: " + errno_text(warmed.failed.raw());
  if (image.stopped() != nullptr) return image.stopped();
  if (interrupted()) return "interrupted";
  if (image.chunks_wanted() * cache::kChunkBytes < image.bytes()) return "there is no room for more";
  return "other processes have not written all of it yet";
}

int warm(const Options& options) {
  const std::string& parent = cache_dir(options);
  const Database database(options.path);
  const std::string path = fs::canonical(database.path()).string();
  const std::shared_ptr<cache::Image> image = open_image(options, database, path);
  catch_interrupts();
  const auto begin = std::chrono::steady_clock::now();
  cache::Warmed warmed;
  {
    Progress progress("caching " + printable(path));
    warmed = cache::warm(*image, show_progress, &progress);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::uint64_t chunks = image->bytes() / cache::kChunkBytes;
  const std::uint64_t there = warmed.bytes_before + warmed.bytes_added;
  const bool complete = warmed.chunks_before + warmed.chunks_added == chunks;
  const std::string why = complete ? "" : why_incomplete(*image, warmed);
  const cache::DatabaseState& state = image->database();
  if (options.json) {
    std::printf("%s\n", dump(Json{{"path", path},
                                  {"directory", cache::Directory::path_in(parent)},
                                  {"image", image->name()},
                                  {"transaction", state.snapshot},
                                  {"database_bytes", state.used_bytes},
                                  {"chunks", chunks},
                                  {"chunks_before", warmed.chunks_before},
                                  {"chunks_added", warmed.chunks_added},
                                  {"bytes_before", warmed.bytes_before},
                                  {"bytes_added", warmed.bytes_added},
                                  {"bytes_read", warmed.bytes_read},
                                  {"seconds", seconds},
                                  {"complete", complete},
                                  {"why_incomplete", complete ? Json() : Json(why)}})
                            .c_str());
  } else {
    std::printf("%s: %s of %s (%s) in the cache; %s were there before, %s were added in %.2f s\n",
                printable(path).c_str(), size_text(there).c_str(), size_text(state.used_bytes).c_str(),
                percent_text(static_cast<double>(there), static_cast<double>(state.used_bytes)).c_str(),
                size_text(warmed.bytes_before).c_str(), size_text(warmed.bytes_added).c_str(), seconds);
    if (!complete) std::printf("not complete: %s\n", why.c_str());
  }
  if (complete) return kClean;
  if (!warmed.failed.ok()) return kUnusable;
  return interrupted() ? interrupted_status() : kFindings;
}

// --- drop ---

std::string absolute(const std::string& path) {
  std::error_code failed;
  const fs::path whole = fs::weakly_canonical(path, failed);
  return failed ? path : whole.string();
}

/// The database whose images are removed.  Its file may be gone.
class Chosen {
 public:
  explicit Chosen(const std::string& path) : path_(absolute(path)) {
    const std::string inside = path_ + "/data.mdb";
    struct stat st {};
    if (::stat(path_.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) path_ = inside;
    exists_ = ::stat(path_.c_str(), &status_) == 0;
    inside_ = exists_ ? path_ : inside;
    try {
      const Database database(path_);
      cache::DatabaseState state;
      state.file = std::shared_ptr<const OpenFile>(std::shared_ptr<const OpenFile>(), &database.file());
      state.snapshot = database.newest();
      if (const std::optional<std::string> name = cache::Image::name_of(state)) name_ = *name;
    } catch (const Failure&) {  // then only the path matters
    }
  }
  bool is(const cache::ImageFacts& f) const {
    if (!name_.empty() && f.name == name_) return true;
    if (f.path.empty()) return false;
    struct stat st {};
    if (exists_ && ::stat(f.path.c_str(), &st) == 0)
      return st.st_dev == status_.st_dev && st.st_ino == status_.st_ino;
    const std::string of = absolute(f.path);
    return of == path_ || of == inside_;
  }

 private:
  std::string path_, inside_, name_;
  bool exists_ = false;
  struct stat status_ {};
};

int drop(const Options& options) {
  if (options.all == !options.path.empty()) throw Failure("cache drop: give either a database or --all");
  const std::optional<cache::Directory> directory = find_directory(options);
  const std::optional<Chosen> chosen = options.all ? std::nullopt : std::optional<Chosen>(options.path);
  std::vector<cache::ImageFacts> removed;
  if (directory)
    for (const cache::ImageFacts& f : directory->list(true))
      if (!chosen || chosen->is(f)) {
        directory->remove(f.name);
        removed.push_back(f);
      }
  std::uint64_t bytes = 0, in_use = 0;
  for (const cache::ImageFacts& f : removed) {
    bytes += f.disk_bytes;
    in_use += f.in_use ? 1 : 0;
  }
  if (options.json) {
    Json list = Json::array();
    for (const cache::ImageFacts& f : removed) list.push_back(image_json(f));
    std::printf("%s\n", dump(Json{{"removed", std::move(list)}, {"disk_bytes", bytes}}).c_str());
    return kClean;
  }
  std::printf("%s: %s removed, %s freed\n", directory_text(directory).c_str(),
              counted(removed.size(), "image").c_str(), size_text(bytes).c_str());
  if (in_use != 0)
    std::printf("%s in use: the space is freed when the last process has closed the database\n",
                counted(in_use, "image was", "images were").c_str());
  return kClean;
}

// --- verify ---

void show_damage(const cache::DamagedImage& image) {
  if (image.removed) {
    std::printf("%s: the table of the image is damaged; the image was removed\n",
                path_text(image.path).c_str());
    return;
  }
  std::string list;
  for (std::size_t i = 0; i < std::min(kListed, image.chunks.size()); ++i)
    list += (i == 0 ? "" : ", ") + std::to_string(image.chunks[i]);
  if (image.chunks.size() > kListed) list += ", ...";
  std::printf("%s: %s damaged and removed: %s\n", path_text(image.path).c_str(),
              counted(image.chunks.size(), "chunk was", "chunks were").c_str(), list.c_str());
}

int verify(const Options& options) {
  const std::optional<cache::Directory> directory = find_directory(options);
  catch_interrupts();
  cache::Verified v;
  if (directory) {
    Progress progress("verifying " + directory_text(directory));
    v = cache::verify(*directory, show_progress, &progress);
  }
  std::uint64_t damaged = 0;
  for (const cache::DamagedImage& image : v.damaged) damaged += image.chunks.size();
  if (options.json) {
    Json list = Json::array();
    for (const cache::DamagedImage& image : v.damaged)
      list.push_back({{"name", image.name},
                      {"path", image.path.empty() ? Json() : Json(image.path)},
                      {"removed", image.removed},
                      {"chunks", image.chunks}});
    std::printf("%s\n", dump(Json{{"images", v.images},
                                  {"chunks", v.chunks},
                                  {"bytes", v.bytes},
                                  {"damaged_chunks", damaged},
                                  {"damaged", std::move(list)},
                                  {"interrupted", v.stopped}})
                            .c_str());
  } else {
    for (const cache::DamagedImage& image : v.damaged) show_damage(image);
    std::printf("%s: %s, %s, %s verified%s: %s\n", directory_text(directory).c_str(),
                counted(v.images, "image").c_str(), counted(v.chunks, "chunk").c_str(),
                size_text(v.bytes).c_str(), v.stopped ? " before the interruption" : "",
                v.damaged.empty() ? "no damage" : counted(damaged, "damaged chunk").c_str());
  }
  if (v.stopped) return interrupted_status();
  return v.damaged.empty() ? kClean : kFindings;
}

}  // namespace

void add_cache(CLI::App& app, int& status) {
  const auto options = std::make_shared<Options>();
  CLI::App* const cache = app.add_subcommand(
      "cache", "show, fill, remove and verify the copies of databases on local disk (LMDBIO_CACHE_DIR)");
  cache->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, int (*run)(const Options&)) {
    CLI::App* const sub = cache->add_subcommand(name, what);
    sub->add_option("--cache", options->directory, "directory of the cache (default: LMDBIO_CACHE_DIR)")
        ->type_name("DIR");
    sub->add_flag("--json", options->json, "print one JSON object");
    sub->callback([options, run, &status] { status = run(*options); });
    return sub;
  };
  constexpr const char* kPath = "directory that contains data.mdb, or the data file";
  add("status", "list the databases in the cache, and its size", show_status);
  add("warm", "copy a database to the cache; exit status 1: not all of it", warm)
      ->add_option("PATH", options->path, kPath)
      ->required();
  CLI::App* const dropping = add("drop", "remove a database from the cache", drop);
  dropping->add_option("PATH", options->path, kPath);
  dropping->add_flag("--all", options->all, "remove all databases");
  add("verify", "verify all checksums, and remove what is damaged; exit status 1: damage was found", verify);
}

}  // namespace lmdbio::cli
