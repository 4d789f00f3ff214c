#include "tests/support/slowfs/counters.h"

#include <string>

namespace lmdbio::slowfs {
namespace {

constexpr const char* kOpNames[] = {
#define LMDBIO_X(name) #name,
    LMDBIO_SLOWFS_OPS(LMDBIO_X)
#undef LMDBIO_X
};
constexpr const char* kFaultNames[] = {
#define LMDBIO_X(name) #name,
    LMDBIO_SLOWFS_FAULTS(LMDBIO_X)
#undef LMDBIO_X
};

}  // namespace

void Counters::read_begins(std::uint64_t bytes, bool direct) noexcept {
  count(Op::k_read);
  ++read_sizes_[bytes <= 1 ? 0 : static_cast<std::size_t>(std::bit_width(bytes - 1))];
  if (direct) ++direct_reads_;
  raise(in_flight_, in_flight_max_);
}

void Counters::raise(Number& in_flight, Number& most) noexcept {
  const std::uint64_t now = ++in_flight;
  std::uint64_t before = most.load();
  while (before < now && !most.compare_exchange_weak(before, now)) {
  }
}

void Counters::read_ended(std::uint64_t bytes) noexcept {
  read_bytes_ += bytes;
  --in_flight_;
}

void Counters::reset() noexcept {
  for (Number& n : ops_) n = 0;
  for (Number& n : faults_) n = 0;
  for (Number& n : read_sizes_) n = 0;
  for (Number* n : {&written_bytes, &locks_granted, &locks_conflicts, &locks_waited, &unlocks, &read_bytes_,
                    &direct_reads_, &numbered_})
    *n = 0;
  in_flight_max_ = in_flight_.load();
  lookups_in_flight_max_ = lookups_in_flight_.load();
}

nlohmann::json Counters::json() const {
  nlohmann::json ops, faults, sizes = nlohmann::json::object();
  for (std::size_t i = 0; i < ops_.size(); ++i) ops[kOpNames[i]] = ops_[i].load();
  for (std::size_t i = 0; i < faults_.size(); ++i) faults[kFaultNames[i]] = faults_[i].load();
  for (std::size_t i = 0; i < 64; ++i)
    if (const std::uint64_t n = read_sizes_[i]; n != 0) sizes[std::to_string(std::uint64_t{1} << i)] = n;
  return {{"requests", ops},
          {"faults", faults},
          {"read",
           {{"bytes", read_bytes_.load()},
            {"sizes", sizes},
            {"direct", direct_reads_.load()},
            {"numbered", numbered_.load()},
            {"in_flight", in_flight_.load()},
            {"in_flight_max", in_flight_max_.load()}}},
          {"lookups", {{"in_flight_max", lookups_in_flight_max_.load()}}},
          {"written_bytes", written_bytes.load()},
          {"locks",
           {{"granted", locks_granted.load()},
            {"conflicts", locks_conflicts.load()},
            {"waited", locks_waited.load()},
            {"unlocks", unlocks.load()}}}};
}

}  // namespace lmdbio::slowfs
