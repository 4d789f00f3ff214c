// What a server does with the files of its node: opens, checks and reads them, and answers with their bytes.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lmdbio/serve/server.h"
#include "lmdbio/serve/server_parts.h"

namespace lmdbio::serve {

using Request = node::ServiceRequests::Request;
using Kind = node::ServiceRequests::Kind;

namespace {

/// A home reads ahead this many of its chunks after this many were wanted in sequence.
constexpr std::uint64_t kAhead = 2;
constexpr unsigned kSequence = 2;

}  // namespace

void Server::accept_program(const Request& request) {
  if (request.kind == Kind::open) {
    const std::string path = programs_.path(request);
    if (path.empty() || path.size() > kMostPath || path.find('\0') != std::string::npos)
      return programs_.finish(request, -EINVAL, std::as_bytes(std::span(path)));
    File& file = *find_or_open(path, request.state);
    if (file.opened)
      finish_open(request, file);
    else
      file.openers.push_back(request);
    return;
  }
  const std::uint64_t chunk = request.offset / kChunkBytes;
  if (request.kind != Kind::read || request.file >= files_.size() || request.bytes == 0 ||
      request.offset % kChunkBytes + request.bytes > kChunkBytes ||
      !(files_[request.file]->state == request.state))
    return programs_.finish(request, -EINVAL, {});
  File& file = *files_[request.file];
  const std::uint32_t ranks = transport_.ranks(), home = home_of(file.state, chunk, ranks);
  const bool asks = home != transport_.rank() && failed_.ok() && !file.refused.contains(home) &&
                    settings_.now() >= peers_[home].silent_until;
  if (asks) {
    if (!give_copy(request, file)) ask(request, home, Question::To::home);
    return;
  }
  if (!read_here({request, transport_.rank(), 0, 0, {}, &file, nullptr, request.offset, request.bytes},
                 home == transport_.rank()))
    programs_.finish(request, -EIO, {});
}

// Returns the file in this state, or nullptr if it is not known and `path` is empty.
Server::File* Server::find_or_open(const std::string& path, const node::ServedState& state) {
  const auto at =
      std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f->state == state; });
  if (at != files_.end()) {
    File& file = **at;
    if (file.opened && !file.opened->ok() && !path.empty()) {
      std::unique_ptr<HomeFile> home = home_.open(path, state);
      file.path = path;
      file.home = std::move(home);
      file.opened.reset();
    }
    return &file;
  }
  if (path.empty()) return nullptr;
  auto file = std::make_unique<File>();
  file->path = path;
  file->state = state;
  file->home = home_.open(path, state);
  files_.push_back(std::move(file));
  return files_.back().get();
}

// Serves what waits for the end of the open, and looks at the end of a check.
void Server::advance(File& file) {
  if (!file.opened) {
    file.opened = file.home->opened();
    if (!file.opened) return;
    has_read_ = true;
    if (file.opened->ok())
      for (const std::unique_ptr<File>& f : files_)
        f->used = f->used || f->path == file.path;  // to be checked
    for (const Request& r : std::exchange(file.openers, {})) finish_open(r, file);
  }
  while (!file.questions.empty() && may_accept()) {
    const auto [question, from] = file.questions.front();
    file.questions.pop_front();
    answer_question(file, question, from);
  }
  if (!file.opened->ok()) return;
  if (file.home->poll()) has_read_ = true;
  if (file.outdated || file.home->is_current()) return;
  file.outdated = true;
  std::erase_if(relays_, [&](const Relay& r) { return r.file == &file; });
  drop_copies(file);
  for (File::Blocks* const blocks : {&file.kept, &file.unpacked}) {
    for (const auto& [chunk, block] : *blocks) counts_.kept -= file.bytes_in(chunk);
    blocks->clear();
  }
}

// Checks a file that was used, and closes one that has changed.
void Server::look_at(File& file) {
  const auto reads = [&](const Waiting& w) { return w.file == &file; };
  if (file.is_usable() && file.used && file.home->start_check()) file.used = false;
  if (!file.opened || !file.outdated || file.home->is_busy() ||
      std::any_of(waiting_.begin(), waiting_.end(), reads))
    return;
  file.home.reset();
  file.opened = Status::from_errno(ESTALE);  // a program may open it again
  file.outdated = false;
}

// Answers a request to open a file.
void Server::finish_open(const Request& request, const File& file) {
  const std::string path = programs_.path(request);
  const auto at = std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f.get() == &file; });
  const std::int64_t stores = file.is_usable() && file.home->stores() ? node::kStoresResult : 0;
  programs_.finish(request, file.is_usable() ? (at - files_.begin()) | stores : -ENOTSUP,
                   std::as_bytes(std::span(path)));
}

// Answers a question about a file that was opened, or could not be.
void Server::answer_question(File& file, const Question& question, std::uint32_t from) {
  const int error = file.opened->raw();
  const Answer no{error == ESTALE || error == ENOENT ? Answer::Kind::other_file : Answer::Kind::none,
                  question.slot, question.number};
  const bool good = question.bytes != 0 && question.bytes <= node::kServiceBytes &&
                    question.offset % kChunkBytes + question.bytes <= kChunkBytes;
  if (good && file.is_usable() && question.offset < file.home->size()) {
    if (const std::optional<std::uint32_t> holder = name_holder(file, question, from, false))
      return answer(from, {Answer::Kind::elsewhere, question.slot, question.number, *holder}, {}, {});
    if (read_here({{},
                   from,
                   question.slot,
                   question.number,
                   question.to,
                   &file,
                   nullptr,
                   question.offset,
                   question.bytes},
                  true))
      return;
  }
  answer(from, no, {}, {});
}

// Brings bytes from memory, from local disk, or from this node's file system.  `is_home`: of the chunk.
bool Server::read_here(Waiting waiting, bool is_home) {
  File& file = *waiting.file;
  if (!file.is_usable() || waiting.offset >= file.home->size()) return false;
  file.used = true;
  const std::uint64_t chunk = waiting.offset / kChunkBytes;
  waiting.bytes =
      static_cast<std::size_t>(std::min<std::uint64_t>(waiting.bytes, file.home->size() - waiting.offset));
  bool keeps = is_home;
  if (const auto found = file.kept.find(chunk); found != file.kept.end()) {
    waiting.block = found->second;
  } else {
    keeps = is_home && has_room(file, chunk);
    Result<std::shared_ptr<Block>> block =
        keeps ? read_chunk(file, chunk) : file.home->read(waiting.offset, waiting.bytes);
    if (!block) return false;
    waiting.block = std::move(block).value();
    if (!keeps) count(*waiting.block, waiting.bytes);
    if (!is_home && !waiting.block->is_cached()) counts_.alone += waiting.bytes;
    if (is_home && !keeps) file.home->store(waiting.block, false);
  }
  waiting_.push_back(std::move(waiting));
  if (keeps) read_ahead(file, chunk);
  return true;
}

bool Server::has_room(const File& file, std::uint64_t chunk) const noexcept {
  return counts_.kept + relay_memory() + file.bytes_in(chunk) <= settings_.memory;
}

// Counts bytes that are read.
void Server::count(const Block& block, std::uint64_t bytes) noexcept {
  (block.is_cached() ? counts_.cached : counts_.read) += bytes;
}

// Reads a chunk, and keeps it.
Result<std::shared_ptr<Block>> Server::read_chunk(File& file, std::uint64_t chunk) {
  const std::uint64_t bytes = file.bytes_in(chunk);
  Result<std::shared_ptr<Block>> block =
      file.home->read(chunk * kChunkBytes, static_cast<std::size_t>(bytes));
  if (!block) return block;
  count(*block.value(), bytes);
  file.home->store(block.value(), true);
  file.kept.emplace(chunk, block.value());
  counts_.kept += bytes;
  while (counts_.kept + relay_memory() + copied_ > settings_.memory && drop_oldest_copies(nullptr)) {
  }
  return block;
}

// Reads the next chunks of this home before they are asked for, if its chunks are wanted in sequence.  Walks
// on all nodes want the same chunks at about the same time, so most homes would have nothing to read.
void Server::read_ahead(File& file, std::uint64_t chunk) {
  const std::uint32_t ranks = transport_.ranks();
  const std::uint64_t before = file.newest, near = 2 * std::uint64_t{ranks};
  // Nodes that are a little behind change nothing.
  if (ending_ || (chunk <= before && before - chunk < (kAhead + 1) * near)) return;
  file.in_sequence = chunk > before && chunk - before < near ? file.in_sequence + 1 : 0;
  file.newest = chunk;
  if (file.in_sequence < kSequence) return;
  const std::uint64_t chunks = (file.home->size() + kChunkBytes - 1) / kChunkBytes;
  for (std::uint64_t c = chunk + 1, ahead = 0; c < chunks && ahead < kAhead; ++c) {
    if (home_of(file.state, c, ranks) != transport_.rank()) continue;
    ++ahead;
    if (!file.kept.contains(c) && (!has_room(file, c) || !read_chunk(file, c))) return;
  }
}

// Forgets what is kept of a chunk if it is this block, or was made from it.
void Server::forget(File& file, const std::shared_ptr<Block>& block) noexcept {
  const std::uint64_t chunk = block->offset() / kChunkBytes;
  const auto has_it = [&](const File::Blocks& blocks) {
    const auto at = blocks.find(chunk);
    return at != blocks.end() && at->second == block;
  };
  if (has_it(file.kept) || has_it(file.unpacked))
    counts_.kept -= file.bytes_in(chunk) * (file.kept.erase(chunk) + file.unpacked.erase(chunk));
}

// Decompresses a block for a request that wants less than a frame of it: all of the chunk, if there is
// memory.
bool Server::unpack(Waiting waiting) {
  File& file = *waiting.file;
  const std::uint64_t chunk = waiting.offset / kChunkBytes;
  if (const auto found = file.unpacked.find(chunk); found != file.unpacked.end()) {
    waiting.block = found->second;
  } else {
    const bool keeps = file.kept.contains(chunk) && has_room(file, chunk);
    Result<std::shared_ptr<Block>> plain =
        keeps ? file.home->unpack(waiting.block, chunk * kChunkBytes,
                                  static_cast<std::size_t>(file.bytes_in(chunk)))
              : file.home->unpack(waiting.block, waiting.offset, waiting.bytes);
    if (!plain) return false;
    waiting.block = std::move(plain).value();
    if (keeps) {
      file.unpacked.emplace(chunk, waiting.block);
      counts_.kept += file.bytes_in(chunk);
    }
  }
  waiting_.push_back(std::move(waiting));
  return true;
}

// Gives the bytes of a block, whose read has ended, to the one that waits for them.
void Server::give(const Waiting& waiting) {
  File& file = *waiting.file;
  Block& block = *waiting.block;
  std::vector<std::byte> packed;
  Bytes bytes;
  if (block.status().ok() && !file.outdated) {
    packed = block.packed(waiting.offset, waiting.bytes);
    if (!packed.empty())
      bytes = packed;
    else if (block.is_plain())
      bytes = block.bytes().subspan(static_cast<std::size_t>(waiting.offset - block.offset()), waiting.bytes);
    else if (unpack(waiting))
      return;
  } else {
    forget(file, waiting.block);
    const std::uint64_t chunk = waiting.offset / kChunkBytes;
    if (block.status().raw() == EAGAIN &&
        read_here(waiting, home_of(file.state, chunk, transport_.ranks()) == transport_.rank()))
      return;
  }
  if (waiting.rank == transport_.rank()) {
    const std::int64_t form = packed.empty() ? 0 : node::kPackedResult;
    counts_.to_programs += bytes.empty() ? 0 : waiting.bytes;
    programs_.finish(waiting.request, bytes.empty() ? -EIO : static_cast<std::int64_t>(bytes.size()) | form,
                     bytes);
    return;
  }
  if (!bytes.empty() && packed.empty()) {  // other servers pass on plain bytes only
    const Question question{file.state,   waiting.offset, static_cast<std::uint32_t>(waiting.bytes),
                            waiting.slot, waiting.number, waiting.to};
    if (const std::optional<std::uint32_t> holder = name_holder(file, question, waiting.rank, true))
      return answer(waiting.rank, {Answer::Kind::elsewhere, waiting.slot, waiting.number, *holder}, {}, {});
  }
  counts_.to_nodes += bytes.size();
  if (packed.empty())
    return answer(waiting.rank,
                  {bytes.empty() ? Answer::Kind::none : Answer::Kind::bytes, waiting.slot, waiting.number},
                  bytes, waiting.block);
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(packed));
  answer(waiting.rank, {Answer::Kind::packed, waiting.slot, waiting.number}, *owner, owner);
}

}  // namespace lmdbio::serve
