// The lists of handles, for handle.cc and parked.cc.
#pragma once

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::compat {

/// The mutex of lock_handles().
extern SignalSafeMutex handles_mutex;

template <class T>
void add_to_list(T*& first, T& t) noexcept {
  t.next = first;
  if (first != nullptr) first->prev = &t;
  first = &t;
}

template <class T>
void remove_from_list(T*& first, T& t) noexcept {
  (t.prev != nullptr ? t.prev->next : first) = t.next;
  if (t.next != nullptr) t.next->prev = t.prev;
  t.next = t.prev = nullptr;
}

}  // namespace lmdbio::compat
