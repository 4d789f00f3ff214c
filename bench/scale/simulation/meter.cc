#include "bench/scale/simulation/meter.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

using lmdbio::bench::Meter;

struct alignas(std::max_align_t) Head {
  Meter* meter;
  std::size_t bytes;
};

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(sizeof(Head) + bytes);
  if (memory == nullptr) throw std::bad_alloc();
  Meter* const meter = Meter::current();
  if (meter != nullptr) {
    meter->bytes += bytes;
    meter->most_bytes = std::max(meter->most_bytes, meter->bytes);
  }
  return new (memory) Head{meter, bytes} + 1;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  Head* const head = static_cast<Head*>(memory) - 1;
  if (head->meter != nullptr) head->meter->bytes -= head->bytes;
  std::free(head);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
