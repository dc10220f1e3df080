// Collectives over parts of any size, where the data lies.
#include <algorithm>
#include <cstring>
#include <vector>

#include "trainer/comm/group_memory.hpp"

namespace dtrain::train::comm {
namespace {

// Walks through parts as if they lay one behind the other.
class PartsReader {
 public:
  explicit PartsReader(const Parts& parts) : parts_(&parts) {
    for (const std::span<std::byte>& part : parts) left_ += part.size();
  }
  std::size_t left() const { return left_; }

  // The next `bytes`, or what is left: visit(memory, offset in these bytes, length) for each run.
  template <typename Visit>
  void next(std::size_t bytes, Visit visit) {
    bytes = std::min(bytes, left_);
    left_ -= bytes;
    for (std::size_t done = 0; done < bytes;) {
      const std::span<std::byte>& part = (*parts_)[index_];
      const std::size_t length = std::min(bytes - done, part.size() - at_);
      visit(part.data() + at_, done, length);
      done += length;
      at_ += length;
      if (at_ < part.size()) continue;
      ++index_;
      at_ = 0;
    }
  }

 private:
  const Parts* parts_;
  std::size_t index_ = 0;
  std::size_t at_ = 0;  // in that part
  std::size_t left_ = 0;
};

}  // namespace

bool SharedGroup::reduce_parts(const void* data, std::size_t bytes, Element element, double factor,
                               const std::vector<Range>& parts, const std::vector<void*>& outs) {
  if (!can_scale(element)) {
    throw CollectiveError(std::string("reduce_parts: not of ") + name_of(element));
  }
  const Call call(*this);
  Post mine = make_post(Kind::reduce_parts, bytes, data);
  mine.element = element;
  post(mine);
  sync();
  compare(current_);
  if (!all_shared(sequence_)) return false;
  ++in_place_calls_;

  const std::size_t unit = size_of(element);
  const auto n = static_cast<std::size_t>(size_);
  std::vector<const std::byte*> where(n);
  for (int r = 0; r < size_; ++r) {
    where[static_cast<std::size_t>(r)] =
        r == rank_ ? static_cast<const std::byte*>(data) : peer_data(r, sequence_);
  }
  std::vector<const void*> sources(n);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t r = 0; r < n; ++r) sources[r] = where[r] + parts[part].begin;
    sum_scaled(element, outs[part], sources.data(), size_, parts[part].length / unit, factor);
  }
  sync();  // nobody's data changes before all have read it
  return true;
}

void SharedGroup::gather_parts(const std::vector<Parts>& by_rank) {
  std::vector<PartsReader> readers(by_rank.begin(), by_rank.end());
  std::size_t bytes = 0;
  std::size_t longest = 0;
  for (const PartsReader& reader : readers) {
    bytes += reader.left();
    longest = std::max(longest, reader.left());
  }
  Call call(*this);
  post(make_post(Kind::gather_parts, bytes, nullptr));
  const std::size_t piece = stage_bytes();
  const auto fill = [&](std::size_t number) {
    std::byte* const to = stage(rank_, turn_ + number);
    readers[static_cast<std::size_t>(rank_)].next(
        piece, [to](std::byte* part, std::size_t at, std::size_t length) {
          std::memcpy(to + at, part, length);
        });
  };
  const auto take = [&](std::size_t number) {
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const std::byte* const from = stage(r, turn_ + number);
      readers[static_cast<std::size_t>(r)].next(
          piece, [from](std::byte* part, std::size_t at, std::size_t length) {
            std::memcpy(part, from + at, length);
          });
    }
  };
  fill(0);
  sync();
  compare(current_);
  call.pipeline((longest + piece - 1) / piece, true, false, true, fill, [](std::size_t) {}, take);
}

}  // namespace dtrain::train::comm
