#include "lmdbio/cache/filler.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

namespace {

// Makes the calling thread run, and read and write, only when nobody else does.  Both calls may fail.
void become_idle() noexcept {
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);
  constexpr int kProcess = 1, kIdleClass = 3 << 13;  // ioprio_set(2)
  (void)::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass);
}

}  // namespace

std::unique_ptr<Filler> Filler::start(Write write, Idle idle, void* context) noexcept {
  const std::shared_ptr<PrivateTable> table = PrivateTable::get();
  std::unique_ptr<Filler> made(new (std::nothrow) Filler(write, idle, context));
  if (made == nullptr || table == nullptr) return nullptr;
  if (table->start(made->thread_, nullptr, run, made.get()) == 0) return made;
  made->ending_ = true;  // there is no thread to wait for
  made->thread_ = {};
  return nullptr;
}

Filler::~Filler() {
  if (ending_.exchange(true)) return;
  work_.notify();
  (void)::pthread_join(thread_, nullptr);
}

void* Filler::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-fill");
  become_idle();
  static_cast<Filler*>(self)->serve();
  return nullptr;
}

void Filler::serve() noexcept {
  for (;;) {
    const std::uint32_t seen = work_.now();
    if (ending_) return;
    Piece piece{};
    {
      const std::lock_guard lock(mutex_);
      if (!pieces_.empty()) {
        piece = std::move(pieces_.front());
        pieces_.pop_front();
      }
    }
    if (piece.memory == nullptr) {
      if (const std::int64_t ns = idle_(context_); ns != 0) work_.wait(seen, ns);
      continue;
    }
    write_(context_, piece.offset, {piece.memory.get(), piece.bytes});
    piece.memory.reset();
    if (waiting_.fetch_sub(piece.bytes) == piece.bytes) done_.notify();
  }
}

std::unique_ptr<std::byte[]> Filler::take(std::size_t bytes) noexcept {
  if (waiting_.fetch_add(bytes) + bytes <= kMostBytes) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (memory != nullptr) return memory;
  }
  give_back(bytes);
  return nullptr;
}

void Filler::add(std::uint64_t offset, std::unique_ptr<std::byte[]> memory, std::size_t bytes) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    pieces_.push_back({offset, std::move(memory), bytes});
  } catch (...) {
    return give_back(bytes);
  }
  work_.notify_one();
}

void Filler::flush(std::int64_t ns) noexcept {
  const std::int64_t end = now_ns() + ns;
  for (;;) {
    const std::uint32_t seen = done_.now();
    const std::int64_t left = end - now_ns();
    if (waiting_ == 0 || left <= 0) return;
    done_.wait(seen, left);
  }
}

}  // namespace lmdbio::cache
