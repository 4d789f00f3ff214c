#include "lmdbio/window/node_share.h"

#include <cstring>
#include <utility>

#include "lmdbio/base/log.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::window {

NodeShare::~NodeShare() {
  table_.reset();
  if (node::Table::has_nobodys_files())
    (void)PrivateTable::run([]() noexcept { node::Table::remove_nobodys_files(); });
}

std::shared_ptr<node::Table> NodeShare::table() noexcept {
  if (!wanted_) return nullptr;
  std::shared_ptr<node::Table> inherited;  // destroyed after the lock is released
  Status why;
  node::Table::lock_registry();
  if (table_ != nullptr && table_->is_inherited()) inherited = std::move(table_);
  if (table_ == nullptr && std::exchange(tried_in_, PrivateTable::generation()) != PrivateTable::generation())
    table_ = node::Table::join(identity_, window_bytes_, why);
  std::shared_ptr<node::Table> joined = table_;
  node::Table::unlock_registry();
  if (!why.ok()) {
    const char* const text = ::strerrordesc_np(why.raw());
    log_line(
        LogLevel::info,
        "reads are not shared with other processes on this node, because shared memory is not available: %s",
        text != nullptr ? text : "unknown error");
  }
  return joined;
}

}  // namespace lmdbio::window
