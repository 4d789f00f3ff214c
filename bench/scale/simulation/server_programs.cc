#include "bench/scale/simulation/server_programs.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "bench/scale/simulation/meter.h"
#include "lmdbio/serve/server.h"

namespace lmdbio::bench {

namespace {

constexpr std::uint64_t kFree = ~std::uint64_t{0};

}  // namespace

void WantedPieces::prepare() {
  if (order != Order::shuffled) return;
  shuffled_.resize(records());
  std::iota(shuffled_.begin(), shuffled_.end(), 0u);
  std::shuffle(shuffled_.begin(), shuffled_.end(), std::mt19937_64(seed));
}

std::uint64_t WantedPieces::count(std::uint32_t node) const {
  if (order == Order::in_order) return (file_bytes + node::kServiceBytes - 1) / node::kServiceBytes;
  return (records() - node + nodes - 1) / nodes;
}

void WantedPieces::append(std::uint32_t node, std::uint64_t n, std::deque<Piece>& to) const {
  if (order == Order::in_order) {
    const std::uint64_t at = n * node::kServiceBytes;
    to.push_back(
        {at, static_cast<std::size_t>(std::min<std::uint64_t>(node::kServiceBytes, file_bytes - at))});
    return;
  }
  const std::uint64_t i = node + n * nodes, record = order == Order::shuffled ? shuffled_[i] : i;
  // A request is for bytes of one chunk.
  for (std::uint64_t at = record * record_bytes, left = record_bytes; left != 0;) {
    const std::uint64_t bytes =
        std::min({left, serve::kChunkBytes - at % serve::kChunkBytes, std::uint64_t{node::kServiceBytes}});
    to.push_back({at, static_cast<std::size_t>(bytes)});
    at += bytes;
    left -= bytes;
  }
}

SimulatedProgram::SimulatedProgram(std::uint32_t node, const WantedPieces& wanted,
                                   const ServedFileFacts& file, const Settings& settings, Clock& clock,
                                   std::function<void()> ask, std::function<void()> ended)
    : node_(node),
      wanted_(wanted),
      file_(file),
      settings_(settings),
      clock_(clock),
      ask_(std::move(ask)),
      ended_(std::move(ended)),
      numbers_(settings.requests, kFree),
      done_(settings.requests) {}

void SimulatedProgram::start() {
  shown_at_ = clock_.seconds();
  asked_.push_back({0, Kind::open, 0, 0, file_.path.size(), file_.state});
  ask_();
}

std::optional<node::ServiceRequests::Request> SimulatedProgram::next() noexcept {
  const Meter::Pause pause;
  if (asked_.empty()) return {};
  const Request first = asked_.front();
  asked_.pop_front();
  return first;
}

void SimulatedProgram::show_work() noexcept {
  if (first_ != number_ || opened_at_ == 0)
    longest_silence_s_ = std::max(longest_silence_s_, clock_.seconds() - shown_at_);
  shown_at_ = clock_.seconds();
}

// The server copies the bytes into the slot, and hashes them.  The program does the same.
void SimulatedProgram::finish(const Request& request, std::int64_t result, Bytes bytes) noexcept {
  const Meter::Pause pause;
  show_work();
  const double copy_s = static_cast<double>(bytes.size()) / settings_.copy_bytes_s;
  *cpu_s += settings_.call_s + copy_s;
  clock_.at(clock_.seconds() + *cpu_s + copy_s, [this, request, result] { got(request, result); });
}

void SimulatedProgram::got(const Request& request, std::int64_t result) {
  if (request.kind == Kind::open) {
    opened_at_ = clock_.seconds();
    if (result >= 0)
      served_as_ = static_cast<std::uint32_t>(result);
    else
      ++failed_;
    return want_more();
  }
  if (result != static_cast<std::int64_t>(request.bytes)) ++failed_;
  bytes_ += request.bytes;
  const std::uint64_t number = std::exchange(numbers_[request.slot], kFree);
  done_[number % settings_.requests] = true;
  while (first_ < number_ && done_[first_ % settings_.requests]) done_[first_++ % settings_.requests] = false;
  want_more();
}

// Asks as far ahead of the first piece that is missing as there are requests.
void SimulatedProgram::want_more() {
  const std::uint64_t before = number_;
  if (first_ == number_) shown_at_ = clock_.seconds();  // it begins to wait
  while (number_ - first_ < settings_.requests) {
    if (pieces_.empty() && records_ < wanted_.count(node_)) wanted_.append(node_, records_++, pieces_);
    if (pieces_.empty()) break;
    const auto slot =
        static_cast<unsigned>(std::find(numbers_.begin(), numbers_.end(), kFree) - numbers_.begin());
    const WantedPieces::Piece piece = pieces_.front();
    pieces_.pop_front();
    numbers_[slot] = number_++;
    asked_.push_back({slot, Kind::read, served_as_, piece.offset, piece.bytes, file_.state});
  }
  if (number_ != before) return ask_();
  if (first_ != number_ || ended_at_ != 0) return;
  ended_at_ = clock_.seconds();
  ended_();
}

}  // namespace lmdbio::bench
