// The image of one state of a database file on local disk.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/counter.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/directory.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::cache {

class Filler;
struct TableEntry;

/// The state of a database file that an image is made of.
struct DatabaseState {
  std::shared_ptr<const OpenFile> file;
  std::string path;            ///< for messages and commands
  std::uint64_t snapshot = 0;  ///< transaction id
  std::size_t page_bytes = 0;
  std::uint64_t used_bytes = 0;  ///< bytes of the file that the snapshot uses
};

/// Returns the hash of the contents of `file` (io/content_state.h), and sets the other members.  Returns
/// nullopt if the snapshot is not the newest one or cannot be read.  May throw bad_alloc.
std::optional<std::array<std::uint64_t, 2>> contents_of(DatabaseState& state);

/// What this process did with an image: bytes and numbers of chunks.
struct ImageCounts {
  Counter read;       ///< bytes read from the image
  Counter filled;     ///< chunks added to the image
  Counter skipped;    ///< bytes that were not added, because earlier ones had not been written yet
  Counter damaged;    ///< chunks whose checksum was wrong
  Counter unpack_ns;  ///< time of reads of compressed chunks, in ns, the reads of the disk included
};

/// The image of a database file: a file of the same length on local disk, that has some of its chunks.  Any
/// thread.  The processes of the node that use the same state of the database share the image.
///
/// An image never has wrong bytes for pages that the snapshot reaches.  A chunk counts once all of its bytes
/// were written and the database was seen to be in the same state afterwards.  Plain bytes of a compressed
/// image are read from the file of parts until the chunk is compressed.  After a start of the machine, these
/// parts are forgotten, and the checksum of a stored chunk is verified before its first use.
class Image : public std::enable_shared_from_this<Image> {
 public:
  /// Returns the image of this snapshot of a database, or nullptr if there is none: LMDBIO_CACHE_DIR is not
  /// set, the database is in that file system itself, the snapshot is not the newest one, or the image cannot
  /// be made.  Logs the reason once.  `path`: for messages and commands.  `nodes`: the images of so many
  /// nodes together are to have the database once, so this one takes only what add() brings, which is about
  /// one of `nodes` chunks, and has room for so many more.  Call it with no lock held.
  static std::shared_ptr<Image> get(const std::shared_ptr<const OpenFile>& file, const char* path,
                                    std::uint64_t snapshot, unsigned nodes = 1) noexcept;
  /// As get(), but returns why there is no image: EXDEV if the database is in that file system itself, ESTALE
  /// if the snapshot is not the newest one or cannot be read, others as Directory::open() and open(2).
  static Result<std::shared_ptr<Image>> open(const std::shared_ptr<const OpenFile>& file, const char* path,
                                             std::uint64_t snapshot, unsigned nodes = 1) noexcept;
  /// Returns the name of the image of a database in the state of `file` and `snapshot`, and sets the other
  /// members.  Returns nullopt if the snapshot is not the newest one or cannot be read.  May throw bad_alloc.
  static std::optional<std::string> name_of(DatabaseState& state);
  /// As flush(), for all images of this process together.  Nothing is compressed any more.  Call it at the
  /// end of the process.
  static void flush_all() noexcept;

  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const DatabaseState& database() const noexcept { return state_; }
  const std::string& name() const noexcept { return name_; }
  /// Returns the length of the image in bytes, a multiple of kChunkBytes.
  std::uint64_t bytes() const noexcept { return chunks_ * kChunkBytes; }
  /// Returns the bytes of a chunk that the database has.
  std::uint64_t bytes_in(std::uint64_t chunk) const noexcept;
  /// Returns the image as a file with the same bytes as the snapshot, if it has all chunks.  Else nullptr.
  std::shared_ptr<const OpenFile> whole_file() noexcept;
  /// Returns the share of the chunks that the image has, from 0 to 1.
  double share() const noexcept { return static_cast<double>(chunks_there()) / static_cast<double>(chunks_); }
  /// Returns the share of the chunks that the image has and that are not in the page cache of the database,
  /// from 0 to 1.  Examines some chunks only.
  double share_not_in_memory() const noexcept;
  /// Returns how the chunks are stored; raw if that is not decided yet.
  Recipe recipe() const noexcept { return ready_.load(std::memory_order_acquire) ? recipe_ : Recipe(); }
  /// Reads bytes from the image.  Returns false if it does not have all of them, or they cannot be read.
  /// Blocks.
  bool read(std::uint64_t offset, MutableBytes to) noexcept;

  /// Returns whether read() may be able to read the chunk.  Never blocks.
  bool may_have(std::uint64_t chunk) const noexcept;
  /// Returns bytes of a chunk, from `at` on, as they are stored, which is compressed: a PackedRange.  Their
  /// checksums are right.  Errors: ENODATA (the image does not have the chunk in a compressed form), EBADMSG
  /// (it is damaged, and forgotten), ENOMEM, others as pread(2).  Blocks.
  Result<std::vector<std::byte>> read_packed(std::uint64_t chunk, std::size_t at, std::size_t bytes) noexcept;

  /// Tells of one read of the database, which shows how fast it is, and how large reads are.
  void note_read(std::uint64_t bytes) noexcept;
  /// Accepts no more offers of this process: the server of the node, which has opened the same image, fills
  /// it with this node's part of the database.
  void leave_to_server() noexcept { stop_filling("the server of the node fills it"); }
  /// Returns why the image takes no more, or nullptr.  The text is valid until the process ends.
  const char* stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }
  /// Returns the number of chunks for which there is room.
  std::uint64_t chunks_wanted() const noexcept { return chunks_wanted_.load(std::memory_order_relaxed); }
  /// Returns whether offer() or offer_cached() would add something.
  bool wants(std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Offers bytes of the database file, which are copied and written to the image later, or skipped.
  void offer(std::uint64_t offset, Bytes bytes) noexcept;
  /// Adds bytes of the database file at once.  Returns false if the image takes no more.  Blocks.
  bool add(std::uint64_t offset, Bytes bytes) noexcept;
  /// Brings a chunk into its final form that was written without this, for example by a process that was
  /// killed.  Blocks.
  void finish(std::uint64_t chunk) noexcept;
  /// Returns whether read() can read the chunk.  Blocks.
  bool has(std::uint64_t chunk) noexcept;
  /// Returns whether the image has the chunk in its final form: compressed, with its checksum.  Blocks.
  bool has_stored(std::uint64_t chunk) noexcept;
  /// Offers bytes that are in the page cache now.
  void offer_cached(std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Waits until everything that was offered is written, at most 0.2 s.  It may not be compressed yet: until
  /// then, read() reads the plain bytes.  Call it before the program ends its use of the image.  Does not
  /// wait again for what an earlier call has waited for.  The destructor does not wait.  If the recipe is not
  /// chosen yet, which takes longer, it returns at once, and the image lives until everything is written.
  void flush() noexcept;

  const ImageCounts& counts() const noexcept { return counts_; }
  /// Copies counts of this process to a record of statistics.  `file_bytes`: bytes that a user of
  /// whole_file() has read since its last call; 0 for other users.
  template <class Statistics>
  void count_into(Statistics& to, std::uint64_t file_bytes) noexcept {
    counts_.read += file_bytes;
    to.cache_read.raise_to(counts_.read);
    to.cache_unpack_ns.raise_to(counts_.unpack_ns);
    to.cache_filled.raise_to(counts_.filled);
    to.cache_skipped.raise_to(counts_.skipped);
  }

 private:
  struct InProcess;

  Image(DatabaseState state, std::string name, unsigned nodes) noexcept
      : state_(std::move(state)), name_(std::move(name)), nodes_(nodes) {}
  static std::shared_ptr<Image> find_or_add(const std::string& name, const std::shared_ptr<Image>& made);
  Status open_here() noexcept;
  const Recipe* wanted_recipe() const noexcept;
  InProcess* here() noexcept;
  enum class Afterwards : unsigned char { goes_on, ends };
  void flush_until(std::int64_t end_ns, Afterwards afterwards) noexcept;
  /// Returns the distance of stored chunks in the data file, in bytes.
  std::uint64_t pitch() const noexcept;
  /// Returns the number that the header of a compressed chunk has to have.
  std::uint64_t tag_of(std::uint64_t chunk) const noexcept { return identity_.ino << 32 ^ chunk; }
  std::atomic<unsigned char>& state_of(std::uint64_t chunk) const noexcept;
  std::atomic<std::uint64_t>* units_of(std::uint64_t chunk) const noexcept;
  unsigned missing_units(std::uint64_t chunk) const noexcept;
  std::uint64_t chunks_there() const noexcept;
  bool is_nearly_complete(std::uint64_t chunk) const noexcept;
  bool has_all_units(std::uint64_t chunk) const noexcept;
  bool is_proven_plain(std::uint64_t chunk) noexcept;
  bool may_be(std::uint64_t chunk, const TableEntry& entry) const noexcept;
  bool lacks(std::uint64_t offset, std::uint64_t bytes) const noexcept;

  // These need a thread of the private table.
  bool is_there(InProcess& p, std::uint64_t chunk) noexcept;
  bool has_plain(InProcess& p, std::uint64_t chunk) noexcept;
  bool is_still_current() noexcept;
  bool verify(InProcess& p, std::uint64_t chunk) noexcept;
  void is_damaged(InProcess& p, std::uint64_t chunk) noexcept;
  bool read_chunk(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept;
  bool read_plain(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept;
  bool read_compressed(InProcess& p, std::uint64_t chunk, std::size_t at, MutableBytes to) noexcept;
  Status read_packed(InProcess& p, std::uint64_t chunk, std::size_t at, std::size_t bytes,
                     std::vector<std::byte>& packed);
  template <class Decoder>
  Status read_frames(InProcess& p, std::uint64_t chunk, Bytes head, std::size_t at, MutableBytes to,
                     Decoder& decoder) noexcept;
  Filler* filler(InProcess& p) noexcept;

  // Filling (image_fill.cc).
  bool is_ready(InProcess& p) noexcept;
  void write(InProcess& p, std::uint64_t offset, Bytes bytes, Filler* filler) noexcept;
  void clear_units(std::uint64_t chunk) noexcept;
  void mark_units(std::uint64_t from, std::uint64_t to) noexcept;
  void complete(InProcess& p, std::uint64_t chunk, Filler* filler) noexcept;
  bool complete_units(InProcess& p, std::uint64_t chunk, Filler* filler) noexcept;
  bool store(InProcess& p, std::uint64_t chunk, TableEntry& entry, Filler* filler) noexcept;
  bool compress(InProcess& p, std::uint64_t chunk, TableEntry& entry, Filler* filler) noexcept;
  bool complete_next(InProcess& p) noexcept;
  std::int64_t fill_resident(InProcess& p) noexcept;
  void copy_cached(InProcess& p, std::uint64_t offset, std::uint64_t bytes) noexcept;
  void copy(InProcess& p, std::uint64_t offset, std::uint64_t bytes) noexcept;
  void choose(InProcess& p) noexcept;
  void look_at_room(InProcess& p) noexcept;
  bool is_current() const noexcept;
  void stop_filling(const char* why) noexcept;

  const DatabaseState state_;
  const std::string name_;
  const unsigned nodes_;  ///< that store the database together; else 1
  std::string path_;      ///< of the data file of the image
  std::uint64_t chunks_ = 0;
  FileIdentity identity_;  ///< of the data file of the image
  /// The next two members are constant once this is set: the table exists.
  std::atomic<bool> ready_{false};
  Recipe recipe_;
  Mapping map_;
  /// For each chunk, whether the database was seen to be in the state of the image after all of the chunk's
  /// units had been written.
  std::unique_ptr<std::atomic<bool>[]> proven_;
  std::atomic<bool> is_outdated_{false};         ///< the database was seen in another state
  std::atomic<const char*> stopped_{nullptr};    ///< why offers are not accepted
  std::atomic<std::uint64_t> chunks_wanted_{0};  ///< the image takes only chunks below this number
  std::atomic<InProcess*> in_process_{nullptr};  ///< owned; see here()
  std::atomic<std::int64_t> first_read_ns_{0};   ///< time of the first note_read(), CLOCK_MONOTONIC
  std::atomic<std::uint64_t> file_read_{0};      ///< sum of the arguments of note_read(), in bytes
  Counter reads_;                                ///< calls of note_read()
  ImageCounts counts_;
};

/// Lock and unlock the list of images around a fork.
void lock_images() noexcept;
void unlock_images() noexcept;

}  // namespace lmdbio::cache
