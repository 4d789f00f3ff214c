#include "lmdbio/ahead/leaf_lister.h"

#include <algorithm>

namespace lmdbio::ahead {

void LeafLister::start(std::uint64_t root, unsigned depth, std::uint64_t most) {
  forget();
  level_.push_back(root);
  left_ = depth - 1;
  most_ = most;
}

void LeafLister::forget() noexcept {
  std::vector<std::uint64_t>().swap(level_);
  std::vector<std::uint64_t>().swap(below_);
  read_ = named_ = 0;
  left_ = 0;
}

LeafLister::Step LeafLister::go_on(PageSource& source, std::vector<std::uint64_t>& missing) {
  missing.clear();
  while (left_ > 0) {
    for (; read_ < level_.size(); ++read_) {
      format::PageView page;
      if (!source.get(level_[read_], page)) break;
      if (!page.is_branch() || page.count() == 0) return Step::given_up;
      for (unsigned i = 0; i < page.count(); ++i) {
        format::Node node;
        if (!page.node(i, node) || below_.size() >= most_) return Step::given_up;
        below_.push_back(format::raw(node.child()));
      }
    }
    if (read_ < level_.size()) {
      // Request the rest of the level at once.
      for (std::size_t i = std::max(named_, read_); i < level_.size(); ++i) missing.push_back(level_[i]);
      named_ = level_.size();
      return Step::wait;
    }
    level_.swap(below_);
    below_.clear();
    read_ = named_ = 0;
    --left_;
  }
  return Step::done;
}

}  // namespace lmdbio::ahead
