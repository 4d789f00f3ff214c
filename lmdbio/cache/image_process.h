// What one process has of an image.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/cache/filler.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/cache/image_format.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

/// Descriptors, which are in the private table, and the filler.  A forked child makes its own (Image::here).
struct Image::InProcess {
  /// What a thread needs to read compressed chunks.
  struct Decoder {
    Scratch scratch;
    std::unique_ptr<std::byte[]> stored, plain;  ///< kFrameBytes each
  };

  const unsigned generation = PrivateTable::generation();
  Image* const image;
  std::optional<Directory> directory;
  UniqueFd data, map;
  /// Valid once Image::ready_ is set.  Before that, only the filler's thread sets it.
  UniqueFd table;
  UniqueFd part;        ///< plain bytes of chunks that are not complete, of a compressed image
  MapHeader numbers{};  ///< what the header of the map has to be
  std::atomic<std::int64_t> until_look{0};  ///< bytes to write until look_at_room()
  /// Where fill_resident() and complete_next() go on.  The filler's thread uses them.
  std::uint64_t next_resident = 0, next_complete = 0;
  std::atomic<std::uint64_t> offers{0},
      flushed_offers{0};  ///< calls of offer and offer_cached(); those before flush()

  explicit InProcess(Image& i) noexcept : image(&i) {}
  /// Opens the files.  `make`: makes them if they are not there.
  Status open(bool make) noexcept;
  /// Opens the table and the map.  `recipe`: of a table that is made if there is none; ENOENT if it is null.
  Status open_table(const Recipe* recipe) noexcept;
  Status open_map(const std::string& name) noexcept;
  bool has_size(Recipe recipe, bool make) const noexcept;
  /// Waits for the table of another process that chooses the recipe.  Returns false if this one has to
  /// choose.
  bool table_of_other() noexcept;
  /// Takes the lock of the process that chooses the recipe.  Returns false if another process has it.  A
  /// process that ends, or is killed, does not leave it behind.
  bool try_lock_choice() const noexcept;
  void unlock_choice() const noexcept;
  /// Returns whether the table has an entry for the chunk.
  bool has_entry(std::uint64_t chunk) const noexcept;

  /// Removes the plain bytes of a compressed chunk, if there are any.
  void remove_plain(std::uint64_t chunk) const noexcept;
  /// Returns the file into which plain bytes are written.
  int plain_file() const noexcept { return image->recipe_.codec == Codec::raw ? data.get() : part.get(); }

  /// Returns how many threads may decompress at once: the number of processors, at most 4.
  static unsigned most_decoders() noexcept;
  /// Returns a decoder, or nullptr if memory is short.  Waits while most_decoders() are in use.
  std::unique_ptr<Decoder> take_decoder() noexcept;
  void give_back(std::unique_ptr<Decoder> decoder) noexcept;

  std::mutex choosing;  ///< held by Image::is_ready()
  /// Whether the whole database fits into the image without compression.
  std::atomic<bool> has_room_for_plain{false};

  std::mutex mutex;  ///< guards the members below
  std::shared_ptr<Filler> filler;

  /// Returns the filler, or nullptr.
  Filler* filler_now() noexcept {
    const std::lock_guard lock(mutex);
    return filler.get();
  }

 private:
  std::condition_variable free_;
  std::vector<std::unique_ptr<Decoder>> decoders_;
  unsigned in_use_ = 0;
};

}  // namespace lmdbio::cache
