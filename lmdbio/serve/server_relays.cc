// What a server does with bytes of other homes.  It keeps them for programs of its node.  And they reach many
// servers that want them at the same time: the home sends them to a few, and names these to others, who get
// the bytes from them (decision 0051).
#include <algorithm>
#include <utility>

#include "lmdbio/serve/server.h"
#include "lmdbio/serve/server_parts.h"

namespace lmdbio::serve {

using Request = node::ServiceRequests::Request;

namespace {

/// A home sends the bytes to so many servers itself, and names each of them to kFan others, and so on.
constexpr std::size_t kDirect = 4, kFan = 2;
/// Smaller answers cost no more than the name of another server.
constexpr std::size_t kRelayBytes = std::size_t{256} << 10;
/// Requests that a home remembers.
constexpr std::size_t kSpreads = 64;
/// After so long without a question, the servers that have got the bytes have dropped them, in ns.
constexpr std::int64_t kSpreadAge = 1'000'000'000;
/// Memory for bytes that others may ask for.
constexpr std::uint64_t kMostRelayed = std::uint64_t{24} << 20;
/// The share of the memory for chunks that it takes at most.
constexpr std::uint64_t kRelayShare = 8;

}  // namespace

// Returns the memory for bytes that other servers may ask for: 0 if homes send everything themselves.
std::uint64_t Server::relay_memory() const noexcept {
  if (transport_.ranks() <= 2 * kDirect) return 0;
  return std::min(kMostRelayed, settings_.memory / kRelayShare);
}

// Returns the server that `from` shall ask for bytes of this home, or nullopt if this server brings them.
// `has_bytes`: else the home looks only for servers to which it has sent them.
std::optional<std::uint32_t> Server::name_holder(const File& file, const Question& question,
                                                 std::uint32_t from, bool has_bytes) {
  const std::uint64_t bytes = std::min<std::uint64_t>(question.bytes, file.home->size() - question.offset);
  if (relay_memory() == 0 || bytes < kRelayBytes) return {};
  const std::int64_t now = settings_.now();
  auto at = std::find_if(spreads_.begin(), spreads_.end(), [&](const Spread& s) {
    return s.file == &file && s.offset == question.offset && s.bytes == bytes;
  });
  if (at == spreads_.end()) {
    if (!has_bytes) return {};
    if (spreads_.size() == kSpreads) spreads_.pop_front();
    at = spreads_.insert(spreads_.end(), {&file, question.offset, bytes, now, {}});
  }
  std::vector<std::uint32_t>& holders = at->holders;
  if (question.to == Question::To::home_for_itself || now - at->asked > kSpreadAge) holders.clear();
  if (!has_bytes && holders.size() < kDirect) return {};
  at->asked = now;
  const std::size_t n = holders.size();
  holders.push_back(from);
  if (n < kDirect || holders[(n - kDirect) / kFan] == from) return {};
  return holders[(n - kDirect) / kFan];
}

// Asks the server that a home has named.
void Server::ask_holder(const Asked& asked, std::uint32_t holder) {
  const bool good = asked.to == Question::To::home && holder < transport_.ranks() &&
                    holder != transport_.rank() && settings_.now() >= peers_[holder].silent_until;
  const Request request = *asked.request;
  if (good) return ask(request, holder, Question::To::holder);
  ask(request, asked.home, Question::To::home_for_itself);
}

// Asks the home, because the server that it has named does not bring the bytes.
void Server::ask_home_again(unsigned slot) {
  const Request request = *asked_[slot].request;
  const std::uint32_t home =
      home_of(files_[request.file]->state, request.offset / kChunkBytes, transport_.ranks());
  if (!failed_.ok() || settings_.now() < peers_[home].silent_until) return read_alone(slot);
  for (Arriving& a : arriving_) a.wanted = a.wanted && a.slot != slot;
  ask(request, home, Question::To::home_for_itself);
}

// Answers a question of a server to which a home has named this one.
void Server::answer_as_holder(const Question& question, std::uint32_t from) {
  const auto at = std::find_if(files_.begin(), files_.end(),
                               [&](const auto& f) { return f->state == question.state && f->is_usable(); });
  if (at != files_.end() && question.offset < (*at)->home->size()) {
    const File& file = **at;
    const auto bytes = static_cast<std::size_t>(
        std::min<std::uint64_t>(question.bytes, file.home->size() - question.offset));
    for (const Relay& r : relays_) {
      if (r.file != &file || r.offset != question.offset || r.bytes.size() < bytes) continue;
      counts_.to_nodes += bytes;
      return answer(from, {Answer::Kind::bytes, question.slot, question.number}, r.bytes.first(bytes),
                    r.owner);
    }
    const auto comes = [&](const Asked& a) {
      return a.request && files_[a.request->file].get() == &file && a.request->offset == question.offset &&
             a.request->bytes >= bytes;
    };
    if (std::any_of(asked_.begin(), asked_.end(), comes)) {
      followers_.push_back({&file, question.offset, bytes, from, question.slot, question.number});
      return;
    }
  }
  answer(from, {Answer::Kind::none, question.slot, question.number}, {}, {});
}

// Answers the servers that wait for bytes which this one has asked for.  Without bytes, they ask the home.
void Server::answer_followers(const Request& request, Bytes bytes, const std::shared_ptr<const void>& owner) {
  if (followers_.empty()) return;
  const File* const file = files_[request.file].get();
  std::erase_if(followers_, [&](const Follower& f) {
    if (f.file != file || f.offset != request.offset) return false;
    const bool has = f.bytes <= bytes.size();
    if (has) counts_.to_nodes += f.bytes;
    answer(f.rank, {has ? Answer::Kind::bytes : Answer::Kind::none, f.slot, f.number},
           has ? bytes.first(f.bytes) : Bytes(), owner);
    return true;
  });
}

// Gives a program bytes that another program of this node has got before.  Returns false if they are not
// kept.
bool Server::give_copy(const Request& request, File& file) {
  file.asked = waited_;
  const auto at = file.copies.find(request.offset / node::kServiceBytes * node::kServiceBytes);
  if (at == file.copies.end() || !file.is_usable()) return false;
  const Bytes bytes = at->second.first;
  const std::uint64_t from = request.offset % node::kServiceBytes;
  const bool is_end = at->first + bytes.size() == file.home->size();
  if (from >= bytes.size() || (from + request.bytes > bytes.size() && !is_end)) return false;
  const Bytes part = bytes.subspan(from, std::min<std::size_t>(request.bytes, bytes.size() - from));
  file.used = true;
  counts_.to_programs += part.size();
  programs_.finish(request, static_cast<std::int64_t>(part.size()), part);
  return true;
}

// Keeps bytes of a home for programs of this node, if there is room for the whole file.
void Server::keep_copy(File& file, std::uint64_t offset, Bytes bytes,
                       const std::shared_ptr<const void>& owner) {
  if (offset % node::kServiceBytes != 0 || bytes.size() < kRelayBytes || !file.is_usable() ||
      file.home->size() > settings_.copies)
    return;
  const auto lacks = [&](std::uint64_t more, std::uint64_t limit) { return copied_ + more > limit; };
  while (lacks(bytes.size(), settings_.copies) ||
         lacks(bytes.size() + counts_.kept + relay_memory(), settings_.memory))
    if (!drop_oldest_copies(&file)) return;
  auto& copy = file.copies[offset];
  if (bytes.size() <= copy.first.size()) return;
  copied_ += bytes.size() - copy.first.size();
  copy = {bytes, owner};
}

void Server::drop_copies(File& file) noexcept {
  for (const auto& [offset, copy] : file.copies) copied_ -= copy.first.size();
  file.copies.clear();
}

// Drops the copies of the file that was not wanted for the longest time, except `but`.  Returns false if
// there are none.
bool Server::drop_oldest_copies(const File* but) noexcept {
  File* oldest = nullptr;
  for (const std::unique_ptr<File>& f : files_)
    if (f.get() != but && !f->copies.empty() && (oldest == nullptr || f->asked < oldest->asked))
      oldest = f.get();
  if (oldest == nullptr) return false;
  drop_copies(*oldest);
  return true;
}

// Keeps bytes of a home for programs of this node, and for a while because the home may name this server.
void Server::keep_for_others(const Request& request, std::unique_ptr<std::byte[]> bytes, std::size_t size) {
  const std::byte* const first = bytes.get();
  std::shared_ptr<const void> owner = std::shared_ptr<std::byte[]>(std::move(bytes));
  const Bytes all(first, size);
  answer_followers(request, all, owner);
  keep_copy(*files_[request.file], request.offset, all, owner);
  if (size < kRelayBytes || relay_memory() == 0) return;
  relays_.push_back({files_[request.file].get(), request.offset, all, std::move(owner)});
  std::uint64_t held = 0;
  for (const Relay& r : relays_) held += r.bytes.size();
  // Bytes that are being sent stay in memory in any case, so others go first.
  const auto drop = [&](bool sent) {
    std::erase_if(relays_, [&](const Relay& r) {
      if (held <= relay_memory() || (!sent && r.owner.use_count() != 1)) return false;
      held -= r.bytes.size();
      return true;
    });
  };
  drop(false);
  drop(true);
}

}  // namespace lmdbio::serve
