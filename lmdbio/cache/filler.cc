#include "lmdbio/cache/filler.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

namespace {

// Gives the calling thread the lowest priority for CPU and I/O.  Both calls may fail.
void become_idle() noexcept {
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);
  constexpr int kProcess = 1, kIdleClass = 3 << 13;  // ioprio_set(2)
  (void)::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass);
}

}  // namespace

std::shared_ptr<Filler> Filler::start(Write write, Idle idle, void* context,
                                      std::weak_ptr<const void> owner) noexcept {
  try {
    const std::shared_ptr<PrivateTable> table = PrivateTable::get();
    std::shared_ptr<Filler> made(new Filler(write, idle, context, std::move(owner)));
    auto kept = std::make_unique<std::shared_ptr<Filler>>(made);  // the thread's
    pthread_t thread;
    if (table == nullptr || table->start(thread, nullptr, run, kept.get()) != 0) return nullptr;
    (void)kept.release();
    (void)::pthread_detach(thread);
    stay_loaded();
    return made;
  } catch (...) {
    return nullptr;
  }
}

void* Filler::run(void* kept) noexcept {
  const std::unique_ptr<std::shared_ptr<Filler>> self(static_cast<std::shared_ptr<Filler>*>(kept));
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-fill");
  become_idle();
  (*self)->serve();
  return nullptr;
}

void Filler::serve() noexcept {
  for (;;) {
    const std::uint32_t seen = work_.now();
    std::int64_t wait_ns = 0;
    {
      const std::shared_ptr<const void> owner = owner_.lock();
      if (ending_ || owner == nullptr) return;
      std::optional<Piece> next;
      {
        const std::lock_guard lock(mutex_);
        if (!pieces_.empty()) {
          next = std::move(pieces_.front());
          pieces_.pop_front();
        }
      }
      if (next) {
        Piece& piece = *next;
        write_(context_, piece.offset, {piece.memory.get(), piece.bytes});
        piece.memory.reset();
        give_back(piece.bytes);
        continue;
      }
      wait_ns = idle_(context_);
    }
    if (wait_ns != 0) work_.wait(seen, wait_ns);
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
  if (!push({offset, std::move(memory), bytes})) give_back(bytes);
}

void Filler::ask(std::uint64_t offset) noexcept { (void)push({offset, nullptr, 0}); }

bool Filler::push(Piece piece) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  } catch (...) {
    return false;
  }
  work_.notify_one();
  return true;
}

void Filler::flush_until(std::int64_t end_ns) noexcept {
  for (;;) {
    const std::uint32_t seen = done_.now();
    const std::int64_t left = end_ns - now_ns();
    if (waiting_ == 0 || left <= 0) return;
    done_.wait(seen, left);
  }
}

}  // namespace lmdbio::cache
