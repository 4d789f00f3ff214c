// The functions of lmdbio/follow.h.
#include <lmdbio/follow.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "compat/abi.h"
#include "compat/follow.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

Status invalid(std::string& why, const char* text) {
  why = text;
  return Status::from_errno(EINVAL);
}

}  // namespace

extern "C" {

LMDBIO_ABI int lmdbio_follow_open(const char* path, const lmdbio_follow_options* given,
                                  lmdbio_follow** follow) {
  return told([&](std::string& why) {
    if (path == nullptr || given == nullptr || follow == nullptr)
      return invalid(why, "lmdbio_follow_open: null argument");
    FollowOptions options;
    if (const Status st = FollowOptions::read(given, options, why); !st.ok()) return st;
    auto made = std::make_unique<lmdbio_follow>();
    const Status st = Follow::open(path, std::move(options), made->core, why);
    if (st.ok()) *follow = made.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_follow_next(lmdbio_follow* follow, const lmdbio_batch** batch, size_t* fresh) {
  return told([&](std::string& why) {
    if (follow == nullptr || batch == nullptr) return invalid(why, "lmdbio_follow_next: null argument");
    if (!follow->core->ours())
      return invalid(why, "lmdbio_follow_next: a forked child inherited this object");
    std::unique_ptr<records::Batch> b;
    std::size_t n = 0;
    const Status st = follow->core->next(b, n, why);
    if (!st.ok()) return st;
    if (fresh != nullptr) *fresh = n;
    *batch = b.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_follow_wait(lmdbio_follow* follow) {
  return told([&](std::string& why) {
    if (follow == nullptr) return invalid(why, "lmdbio_follow_wait: null argument");
    if (!follow->core->ours())
      return invalid(why, "lmdbio_follow_wait: a forked child inherited this object");
    return follow->core->wait(why);
  });
}

LMDBIO_ABI int lmdbio_follow_ahead(lmdbio_follow* follow, uint64_t i, const lmdbio_batch** batch,
                                   size_t* fresh) {
  return told([&](std::string& why) {
    if (follow == nullptr || batch == nullptr) return invalid(why, "lmdbio_follow_ahead: null argument");
    if (!follow->core->ours())
      return invalid(why, "lmdbio_follow_ahead: a forked child inherited this object");
    std::unique_ptr<records::Batch> b;
    std::size_t n = 0;
    const Status st = follow->core->ahead(i, b, n, why);
    if (!st.ok()) return st;
    if (fresh != nullptr) *fresh = n;
    *batch = b.release();
    return st;
  });
}

LMDBIO_ABI int lmdbio_follow_state(lmdbio_follow* follow, const void** state, size_t* bytes) {
  return told([&](std::string& why) {
    if (follow == nullptr || state == nullptr || bytes == nullptr)
      return invalid(why, "lmdbio_follow_state: null argument");
    if (!follow->core->ours())
      return invalid(why, "lmdbio_follow_state: a forked child inherited this object");
    const std::string* saved = nullptr;
    const Status st = follow->core->save(saved, why);
    if (!st.ok()) return st;
    *state = saved->data();
    *bytes = saved->size();
    return st;
  });
}

LMDBIO_ABI void lmdbio_follow_position(const lmdbio_follow* follow, uint64_t* transaction,
                                       uint64_t* pending) {
  if (transaction != nullptr) *transaction = follow != nullptr ? follow->core->transaction() : 0;
  if (pending != nullptr) *pending = follow != nullptr ? follow->core->pending() : 0;
}

LMDBIO_ABI void lmdbio_follow_cancel(lmdbio_follow* follow) {
  if (follow != nullptr) follow->core->cancel();
}

LMDBIO_ABI void lmdbio_follow_close(lmdbio_follow* follow) {
  if (follow == nullptr) return;
  (void)guarded([&] {
    if (!follow->core->ours()) follow->core->abandon();
    delete follow;
    return Status();
  });
}

}  // extern "C"
