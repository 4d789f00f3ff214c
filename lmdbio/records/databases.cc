#include "lmdbio/records/databases.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

namespace lmdbio::records {

Databases::Databases(std::vector<Database> databases, std::vector<FileSet::Part> parts,
                     format::PageFormat like, bool direct)
    : pages(like), files(std::move(parts), direct), all(std::move(databases)) {
  for (std::size_t i = 0; i < all.size(); ++i) all[i].first_page = files.first(i) / pages.size;
}

Status Databases::last_transaction(std::size_t i, std::uint64_t& txnid) noexcept {
  txnid = 0;
  for (std::uint64_t page = 0; page < format::kMetaPages; ++page) {
    std::uint64_t one = 0;
    if (const Status st = files.read_here(i, page * pages.size + at_txnid(pages.version),
                                          {reinterpret_cast<std::byte*>(&one), sizeof one});
        !st.ok())
      return st;
    txnid = std::max(txnid, one);
  }
  return {};
}

bool Databases::unchanged(std::size_t i) noexcept {
  std::uint64_t now = 0;
  return last_transaction(i, now).ok() && now == all[i].txnid;
}

std::string Databases::changes(std::size_t i) {
  const Database& d = all[i];
  std::uint64_t now = 0;
  const Status st = last_transaction(i, now);
  std::string text = d.name + ": the database was changed: ";
  if (st.ok() && now == d.txnid)
    text += "its file was modified";
  else if (st.ok())
    text += "its last transaction is " + std::to_string(now);
  else
    text += st.raw() == ESTALE ? "its file was replaced or modified" : "it was removed, or cannot be read";
  return text + "; when the reader was opened, its last transaction was " + std::to_string(d.txnid) +
         ", with " + std::to_string(d.db.entries) + " records";
}

}  // namespace lmdbio::records
