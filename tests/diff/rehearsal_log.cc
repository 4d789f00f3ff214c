// Runs records::Rehearsal over a log from standard input, for rehearsal_test.py.  One command a line:
//   terms SEED FRESH OLD LAG KIND CAPACITY   start LABEL ..   arrive LABEL ..   remove NUMBER LABEL ..
//   next: prints the numbers of a batch      reload: continues from the saved state, in another object
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lmdbio/records/rehearsal.h"

namespace {

using namespace lmdbio::records;
using Numbers = std::vector<std::uint64_t>;

void show(const Numbers& numbers) {
  for (const std::uint64_t n : numbers) std::printf(" %llu", static_cast<unsigned long long>(n));
}

}  // namespace

int main() {
  RehearsalTerms terms;
  std::unique_ptr<Rehearsal> order;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    const Numbers n{std::istream_iterator<std::uint64_t>(in), {}};
    if (what == "terms") {
      terms = {n.at(0), n.at(1), n.at(2), n.at(3), static_cast<BufferKind>(n.at(4)), n.at(5)};
      order = std::make_unique<Rehearsal>(terms);
    } else if (what == "start") {
      order->start(n.size(), n);
    } else if (what == "arrive") {
      const std::uint64_t first = order->arrive(n.size(), n);
      std::printf("%llu:", static_cast<unsigned long long>(first));
      for (std::uint64_t i = 0; i < n.size(); ++i)
        std::printf(" %llu", static_cast<unsigned long long>(order->record_of(n.size(), i)));
      std::printf("\n");
    } else if (what == "remove") {
      std::vector<RemovedSample> samples;
      for (std::size_t i = 0; i + 1 < n.size(); i += 2) samples.push_back({n[i], n[i + 1]});
      order->remove(samples);
    } else if (what == "reload") {
      const std::string state = order->save();
      order = std::make_unique<Rehearsal>(terms);
      if (!order->load(std::as_bytes(std::span(state)))) return 1;
    } else if (what == "next") {
      const Rehearsal::Batch b = order->next();
      show(b.fresh);
      std::printf(" |");
      show(b.old);
      std::printf(" | %llu\n", static_cast<unsigned long long>(order->pending()));
    } else {
      return 2;
    }
  }
  return 0;
}
