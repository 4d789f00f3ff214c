// What a server does with the files of its node: opens, checks and reads them, and answers with their bytes.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/serve/server.h"
#include "lmdbio/serve/server_parts.h"

namespace lmdbio::serve {

using Request = node::ServiceRequests::Request;

namespace {

/// A home reads ahead this many of its chunks after this many were wanted in sequence.
constexpr std::uint64_t kAhead = 2;
constexpr unsigned kSequence = 2;

}  // namespace

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
  for (const auto& [chunk, block] : file.kept)
    counts_.kept -= std::min(kChunkBytes, file.home->size() - chunk * kChunkBytes);
  file.kept.clear();
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
  programs_.finish(request, file.is_usable() ? at - files_.begin() : -ENOTSUP,
                   std::as_bytes(std::span(path)));
}

// Answers a question about a file that was opened, or could not be.
void Server::answer_question(File& file, const Question& question, std::uint32_t from) {
  const int error = file.opened->raw();
  const Answer no{error == ESTALE || error == ENOENT ? Answer::Kind::other_file : Answer::Kind::none,
                  question.slot, question.number};
  const bool good = question.bytes != 0 && question.bytes <= node::kServiceBytes &&
                    question.offset % kChunkBytes + question.bytes <= kChunkBytes;
  if (good &&
      read_here({{}, from, question.slot, question.number, &file, nullptr, question.offset, question.bytes},
                true))
    return;
  answer(from, no, {}, {});
}

// Brings bytes from this node's file system, or from memory.  `keep`: this server is the home of the chunk.
bool Server::read_here(Waiting waiting, bool keep) {
  File& file = *waiting.file;
  if (!file.is_usable() || waiting.offset >= file.home->size()) return false;
  file.used = true;
  const std::uint64_t chunk = waiting.offset / kChunkBytes;
  waiting.bytes =
      static_cast<std::size_t>(std::min<std::uint64_t>(waiting.bytes, file.home->size() - waiting.offset));
  if (const auto found = file.kept.find(chunk); found != file.kept.end()) {
    waiting.block = found->second;
  } else {
    keep = keep && has_room(file, chunk);
    Result<std::shared_ptr<Block>> block =
        keep ? read_chunk(file, chunk) : file.home->read(waiting.offset, waiting.bytes);
    if (!block) return false;
    if (!keep) counts_.read += waiting.bytes;
    waiting.block = std::move(block).value();
  }
  waiting_.push_back(std::move(waiting));
  if (keep) read_ahead(file, chunk);
  return true;
}

bool Server::has_room(const File& file, std::uint64_t chunk) const noexcept {
  return counts_.kept + std::min(kChunkBytes, file.home->size() - chunk * kChunkBytes) <= settings_.memory;
}

// Reads a chunk, and keeps it.
Result<std::shared_ptr<Block>> Server::read_chunk(File& file, std::uint64_t chunk) {
  const std::uint64_t start = chunk * kChunkBytes, bytes = std::min(kChunkBytes, file.home->size() - start);
  Result<std::shared_ptr<Block>> block = file.home->read(start, static_cast<std::size_t>(bytes));
  if (!block) return block;
  counts_.read += bytes;
  file.kept.emplace(chunk, block.value());
  counts_.kept += bytes;
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

// Gives the bytes of a block, whose read has ended, to the one that waits for them.
void Server::give(const Waiting& waiting) {
  File& file = *waiting.file;
  Block& block = *waiting.block;
  Bytes bytes;
  if (block.status().ok() && !file.outdated) {
    bytes = block.bytes().subspan(static_cast<std::size_t>(waiting.offset - block.offset()), waiting.bytes);
  } else {
    const auto kept = file.kept.find(waiting.offset / kChunkBytes);
    if (kept != file.kept.end() && kept->second == waiting.block) {
      counts_.kept -= std::min(kChunkBytes, file.home->size() - block.offset());
      file.kept.erase(kept);
    }
  }
  if (waiting.rank == transport_.rank()) {
    counts_.to_programs += bytes.size();
    programs_.finish(waiting.request, bytes.empty() ? -EIO : static_cast<std::int64_t>(bytes.size()), bytes);
    return;
  }
  counts_.to_nodes += bytes.size();
  answer(waiting.rank,
         {bytes.empty() ? Answer::Kind::none : Answer::Kind::bytes, waiting.slot, waiting.number}, bytes,
         waiting.block);
}

}  // namespace lmdbio::serve
