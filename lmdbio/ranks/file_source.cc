#include "lmdbio/ranks/file_source.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "lmdbio/records/fetch.h"

namespace lmdbio::ranks {

namespace {

/// Reads of this source are never cancelled.
const std::atomic<bool> kNever{false};

}  // namespace

class FileSource::Read final : public PartRead {
 public:
  Read(std::shared_ptr<records::Shared> shared, std::shared_ptr<records::Fetch> fetch) noexcept
      : shared_(std::move(shared)), fetch_(std::move(fetch)) {}
  Read(const Read&) = delete;
  Read& operator=(const Read&) = delete;
  ~Read() override {
    if (!fetch_->group().done()) fetch_->queue()->drop(fetch_->group());
  }

  Status start(records::Queues& queues, std::uint64_t limit) noexcept {
    do {
      records::MemoryRequest memory{.most = limit};
      const Status st = fetch_->start(*shared_, queues, memory);
      if (st.raw() != ENOMEM) {
        if (st.ok() && fetch_->queue() != nullptr) fetch_->queue()->submit();
        return st;
      }
    } while (fetch_->plan_less());
    return Status::from_errno(ENOMEM);
  }
  std::string memory_reason() const { return records::memory_reason(*shared_, *fetch_); }

  bool done() noexcept override {
    if (!fetch_->group().done()) fetch_->queue()->pump();
    return fetch_->group().done();
  }
  void wait() noexcept override {
    if (!fetch_->group().done()) (void)fetch_->queue()->wait(fetch_->group());
  }

  Status record(std::size_t i, lmdbio_record& out, std::string& why) override {
    if (const Status st = fetch_->group().status; !st.ok()) {
      why = records::reason(*shared_, "record " + std::to_string(fetch_->ordinal(i)) + " cannot be read", st);
      return st;
    }
    if (!finished_) {
      if (!still_lent()) {
        why = records::reason(*shared_, "the file has become shorter", Status::from_errno(EIO));
        return Status::from_errno(EIO);
      }
      (void)fetch_->finish(*shared_);  // fails only for several databases
      if (!fetch_->lends())
        held_ = std::make_shared<records::HeldFetch>(fetch_);  // the program may use its bytes from now on
      finished_ = true;
    }
    std::uint64_t page = 0;
    const Status st = fetch_->give(*shared_, i, out, page);
    if (!st.ok())
      why = records::reason(*shared_,
                            "page " + std::to_string(page) + " is damaged, or the index is: record " +
                                std::to_string(fetch_->ordinal(i)) + " cannot be read",
                            st);
    return st;
  }
  std::shared_ptr<const void> bytes() const override { return held_; }
  bool lends() const noexcept override { return fetch_->lends(); }
  bool still_lent() const noexcept override { return !fetch_->lends() || fetch_->still_lent(*shared_); }

 private:
  const std::shared_ptr<records::Shared> shared_;
  const std::shared_ptr<records::Fetch> fetch_;
  std::shared_ptr<records::HeldFetch> held_;
  bool finished_ = false;
};

double FileSource::room(std::uint64_t taken) const noexcept {
  if (shared_->read.path != ReadPath::direct || !shared_->read.uses_resident) return 0;  // LMDBIO_IO=direct
  const std::uint64_t available = shared_->source.available;
  const auto room = static_cast<double>(room_in_page_cache(available > taken ? available - taken : 0));
  const double file = static_cast<double>(shared_->source.pages * shared_->source.page_size) * of_file_;
  return std::min(room / file, 1.0);
}

Status FileSource::start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
                         std::string& why) {
  auto fetch = std::make_shared<records::Fetch>();
  if (use.may_lend) fetch->lend();
  if (use.comes_again) fetch->use_page_cache();
  if (const Status st = records::add_records(locations_, *shared_, ordinals, kNever, *fetch, why); !st.ok())
    return st;
  queues_.count();
  fetch->plan(*shared_, most_);
  auto read = std::make_unique<Read>(shared_, std::move(fetch));
  const Status st = read->start(queues_, limit_);
  if (st.ok())
    out = std::move(read);
  else
    why = st.raw() == ENOMEM ? read->memory_reason() : records::reason(*shared_, "cannot be read", st);
  return st;
}

}  // namespace lmdbio::ranks
