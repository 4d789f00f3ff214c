// Memory that a part of a program has allocated with new.  A program that links meter.cc counts it.
#pragma once

#include <cstdint>

namespace lmdbio::bench {

/// One thread.  A meter must outlive the memory that it counts.
class Meter {
 public:
  /// What is allocated while this object lives counts for the meter.  Memory that is freed counts for the
  /// meter that counted it.
  class Use {
   public:
    explicit Use(Meter* meter) noexcept : before_(current_) { current_ = meter; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { current_ = before_; }

   private:
    Meter* const before_;
  };
  /// Nothing counts while this object lives.
  struct Pause : Use {
    Pause() noexcept : Use(nullptr) {}
  };

  std::uint64_t bytes = 0, most_bytes = 0;

  static Meter* current() noexcept { return current_; }

 private:
  static inline Meter* current_ = nullptr;
};

}  // namespace lmdbio::bench
