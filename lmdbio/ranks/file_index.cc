#include "lmdbio/ranks/file_index.h"

#include <string>
#include <utility>

#include "lmdbio/records/open_locations.h"
#include "lmdbio/records/pending_locations.h"

namespace lmdbio::ranks {

namespace {

class ThreadWork final : public IndexWork {
 public:
  explicit ThreadWork(std::unique_ptr<records::PendingLocations> locations) noexcept
      : locations_(std::move(locations)) {}
  bool done() noexcept override { return locations_->done(); }
  const records::RecordIndex* made(Status& st, std::string& why) override {
    return locations_->made(st, why);
  }

 private:
  const std::unique_ptr<records::PendingLocations> locations_;
};

class DoneWork final : public IndexWork {
 public:
  DoneWork(const records::Source& source, std::shared_ptr<records::Memory> memory, std::uint64_t part,
           std::uint64_t parts)
      : memory_(std::move(memory)) {
    records::IndexRequest request;
    request.file = source.file.get();
    request.file_pages = source.pages;
    request.page_size = source.page_size;
    request.version = source.version;
    request.record = source.db;
    request.available = source.available;
    request.memory = memory_;
    request.part = part;
    request.parts = parts;
    records::IndexProblem problem;
    status_ = records::build_index(request, index_, problem, nullptr, &taken_);
    if (!status_.ok()) why_ = records::index_failure(source.name, status_, problem, memory_.get());
  }
  bool done() noexcept override { return true; }
  const records::RecordIndex* made(Status& st, std::string& why) override {
    st = status_;
    why = why_;
    return st.ok() ? &index_ : nullptr;
  }

 private:
  const std::shared_ptr<records::Memory> memory_;
  records::TakenMemory taken_;
  records::RecordIndex index_;
  Status status_;
  std::string why_;
};

}  // namespace

std::unique_ptr<IndexWork> start_index(const records::Source& source, std::shared_ptr<records::Memory> memory,
                                       std::uint64_t part, std::uint64_t parts) {
  auto locations = records::PendingLocations::start(source, memory, /*tolerant=*/false, part, parts);
  if (locations != nullptr) return std::make_unique<ThreadWork>(std::move(locations));
  return std::make_unique<DoneWork>(source, std::move(memory), part, parts);
}

}  // namespace lmdbio::ranks
