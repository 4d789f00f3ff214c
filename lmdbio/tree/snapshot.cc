#include "lmdbio/tree/snapshot.h"

namespace lmdbio::tree {

Status MetaSource::renew(std::uint64_t& txnid) const noexcept {
  const std::uint64_t a = SharedWords::load(metas_[0] + detail::kAtTxnid);
  const std::uint64_t b = SharedWords::load(metas_[1] + detail::kAtTxnid);
  txnid = a < b ? b : a;
  return {};
}

}  // namespace lmdbio::tree
