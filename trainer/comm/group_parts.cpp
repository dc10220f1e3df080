// Collectives over parts of any size, where the data lies.
#include <algorithm>
#include <cstring>
#include <vector>

#include "trainer/comm/group_memory.hpp"

namespace dtrain::train::comm {

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
  std::vector<std::byte> scaled(factor == 1 ? 0 : n * kInPlacePass);
  std::vector<const void*> sources(n);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    auto* const out = static_cast<std::byte*>(outs[part]);
    for (std::size_t done = 0; done < parts[part].length; done += kInPlacePass) {
      const std::size_t count = std::min(kInPlacePass, parts[part].length - done) / unit;
      for (std::size_t r = 0; r < n; ++r) {
        const std::byte* const from = where[r] + parts[part].begin + done;
        sources[r] = from;
        if (scaled.empty()) continue;
        scale(element, scaled.data() + r * kInPlacePass, from, count, factor);
        sources[r] = scaled.data() + r * kInPlacePass;
      }
      reduce(Reduction::sum, element, out + done, sources.data(), size_, count);
    }
  }
  sync();  // nobody's data changes before all have read it
  return true;
}

bool SharedGroup::gather_parts(void* data, std::size_t bytes,
                               const std::vector<std::vector<Range>>& by_rank) {
  const Call call(*this);
  post(make_post(Kind::gather_parts, bytes, data));
  sync();
  compare(current_);
  if (!all_shared(sequence_)) return false;
  ++in_place_calls_;
  auto* const own = static_cast<std::byte*>(data);
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const std::byte* const theirs = peer_data(r, sequence_);
    for (const Range& part : by_rank[static_cast<std::size_t>(r)]) {
      std::memcpy(own + part.begin, theirs + part.begin, part.length);
    }
  }
  sync();
  return true;
}

}  // namespace dtrain::train::comm
