// The collectives: how data goes through the group's memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "trainer/comm/group_memory.hpp"

namespace dtrain::train::comm {
namespace {

// `total` elements cut into one chunk for each rank, on cache lines.
struct Chunks {
  std::size_t total;
  std::size_t each;

  Chunks(std::size_t count, int ranks, std::size_t element) : total(count) {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t line = std::max<std::size_t>(1, 64 / element);
    each = ((count + n - 1) / n + line - 1) / line * line;
  }
  std::size_t begin(int rank) const {
    return std::min(total, static_cast<std::size_t>(rank) * each);
  }
  std::size_t end(int rank) const { return begin(rank + 1); }
};

}  // namespace

bool SharedGroup::all_shared(std::uint64_t sequence) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (block(rank).posts[sequence % 2].load().offset == Post::kElsewhere) return false;
  }
  return true;
}

bool SharedGroup::any_shared(std::uint64_t sequence) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (block(rank).posts[sequence % 2].load().offset != Post::kElsewhere) return true;
  }
  return false;
}

std::byte* SharedGroup::peer_data(int peer, std::uint64_t sequence) {
  const std::uint64_t offset = block(peer).posts[sequence % 2].load().offset;
  const Mapping& heap = meeting_.peers[static_cast<std::size_t>(peer)].heap;
  if (offset > heap.size() || current_.bytes > heap.size() - offset) {
    fail(describe(current_) + " of group '" + options_.name + "': rank " + std::to_string(peer) +
         " names memory that it does not share");
  }
  return heap.data() + offset;
}

void SharedGroup::barrier() {
  const Call call(*this);
  post(make_post(Kind::barrier, 0, nullptr));
  sync();
  compare(current_);
}

void SharedGroup::all_reduce(void* data, std::size_t count, Element element, Reduction reduction) {
  const std::size_t unit = size_of(element);
  const std::size_t bytes = count * unit;
  auto* const own = static_cast<std::byte*>(data);
  Call call(*this);
  Post mine = make_post(Kind::all_reduce, bytes, bytes > kSmall ? data : nullptr);
  mine.element = element;
  mine.reduction = reduction;
  std::vector<const void*> sources(static_cast<std::size_t>(size_));
  post(mine);

  if (bytes <= kSmall) {
    if (bytes > 0) std::memcpy(small(rank_, sequence_), data, bytes);
    sync();
    compare(current_);
    for (int r = 0; r < size_; ++r) sources[static_cast<std::size_t>(r)] = small(r, sequence_);
    if (bytes > 0) reduce(reduction, element, data, sources.data(), size_, count);
    return;
  }

  const Chunks chunks(count, size_, unit);
  const std::size_t begin = chunks.begin(rank_);
  const std::size_t end = chunks.end(rank_);
  // Segments of a stage, one for each rank, and how many pieces the largest chunk makes of them.
  const std::size_t segment = stage_bytes() / static_cast<std::size_t>(size_) / 64 * 64;
  const std::size_t piece = segment / unit;
  const std::size_t pieces = (chunks.each + piece - 1) / piece;
  const auto part = [&](int rank, std::size_t number) {
    const std::size_t from = std::min(chunks.end(rank), chunks.begin(rank) + number * piece);
    return std::pair(from, std::min(chunks.end(rank), from + piece));
  };
  // A segment of mine holds what I have for its rank; my own segment, my result.
  const auto place = [&](int owner, std::size_t number, int whose) {
    return stage(owner, turn_ + number) + static_cast<std::size_t>(whose) * segment;
  };
  const auto fill = [&](std::size_t number) {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const auto [from, to] = part(r, number);
      if (to > from) std::memcpy(place(rank_, number, r), own + from * unit, (to - from) * unit);
    }
  };
  const auto reduce_piece = [&](std::size_t number) {
    const auto [from, to] = part(rank_, number);
    if (to <= from) return;
    for (int r = 0; r < size_; ++r) {
      sources[static_cast<std::size_t>(r)] =
          r == rank_ ? own + from * unit : place(r, number, rank_);
    }
    std::byte* const result = place(rank_, number, rank_);
    reduce(reduction, element, result, sources.data(), size_, to - from);
    std::memcpy(own + from * unit, result, (to - from) * unit);
  };
  const auto take = [&](std::size_t number) {
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const auto [from, to] = part(r, number);
      if (to > from) std::memcpy(own + from * unit, place(r, number, r), (to - from) * unit);
    }
  };

  const bool filled = current_.offset == Post::kElsewhere;
  if (filled) fill(0);
  sync();
  compare(current_);
  if (!all_shared(sequence_)) {
    if (any_shared(sequence_)) {
      if (!filled) fill(0);
      sync();
    }
    call.pipeline(pieces, true, true, true, fill, reduce_piece, take);
    return;
  }

  // All of it lies where every rank can reach it: each rank reduces its chunk and writes the result
  // to all, pass by pass, while it is in the cache.
  ++in_place_calls_;
  std::vector<std::byte*> where(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    where[static_cast<std::size_t>(r)] = r == rank_ ? own : peer_data(r, sequence_);
  }
  const std::size_t pass = kInPlacePass / unit;
  for (std::size_t from = begin; from < end; from += pass) {
    const std::size_t length = std::min(pass, end - from);
    for (std::size_t r = 0; r < where.size(); ++r) sources[r] = where[r] + from * unit;
    std::byte* const result = where[0] + from * unit;
    reduce(reduction, element, result, sources.data(), size_, length);
    for (std::size_t r = 1; r < where.size(); ++r) {
      std::memcpy(where[r] + from * unit, result, length * unit);
    }
  }
  sync();
}

void SharedGroup::reduce_scatter(void* out, const void* in, std::size_t count, Element element,
                                 Reduction reduction) {
  const std::size_t unit = size_of(element);
  const std::size_t chunk = count * unit;
  const std::size_t bytes = chunk * static_cast<std::size_t>(size_);
  const auto* const own = static_cast<const std::byte*>(in);
  auto* const result = static_cast<std::byte*>(out);
  Call call(*this);
  Post mine = make_post(Kind::reduce_scatter, bytes, bytes > kSmall ? in : nullptr);
  mine.element = element;
  mine.reduction = reduction;
  std::vector<const void*> sources(static_cast<std::size_t>(size_));
  const std::size_t first = static_cast<std::size_t>(rank_) * chunk;
  post(mine);

  if (bytes <= kSmall) {
    if (bytes > 0) std::memcpy(small(rank_, sequence_), in, bytes);
    sync();
    compare(current_);
    for (int r = 0; r < size_; ++r) {
      sources[static_cast<std::size_t>(r)] = small(r, sequence_) + first;
    }
    if (bytes > 0) reduce(reduction, element, out, sources.data(), size_, count);
    return;
  }

  const std::size_t segment = stage_bytes() / static_cast<std::size_t>(size_) / 64 * 64;
  const std::size_t piece = segment / unit;
  const std::size_t pieces = (count + piece - 1) / piece;
  const auto place = [&](int owner, std::size_t number, int whose) {
    return stage(owner, turn_ + number) + static_cast<std::size_t>(whose) * segment;
  };
  const auto length_of = [&](std::size_t number) {
    return std::min(piece, count - number * piece);
  };
  const auto fill = [&](std::size_t number) {
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      std::memcpy(place(rank_, number, r),
                  own + static_cast<std::size_t>(r) * chunk + number * piece * unit,
                  length_of(number) * unit);
    }
  };
  // Through the own segment of the stage: `out` may be part of `in`, at any distance.
  const auto reduce_piece = [&](std::size_t number) {
    for (int r = 0; r < size_; ++r) {
      sources[static_cast<std::size_t>(r)] =
          r == rank_ ? own + first + number * piece * unit : place(r, number, rank_);
    }
    std::byte* const sum = place(rank_, number, rank_);
    reduce(reduction, element, sum, sources.data(), size_, length_of(number));
    std::memcpy(result + number * piece * unit, sum, length_of(number) * unit);
  };

  const bool filled = current_.offset == Post::kElsewhere;
  if (filled) fill(0);
  sync();
  compare(current_);
  if (!all_shared(sequence_)) {
    if (any_shared(sequence_)) {
      if (!filled) fill(0);
      sync();
    }
    call.pipeline(pieces, true, true, false, fill, reduce_piece, [](std::size_t) {});
    return;
  }

  ++in_place_calls_;
  std::vector<const std::byte*> where(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    where[static_cast<std::size_t>(r)] = (r == rank_ ? own : peer_data(r, sequence_)) + first;
  }
  const std::size_t pass = kInPlacePass / unit;
  std::byte* const scratch = stage(rank_, turn_++);
  for (std::size_t from = 0; from < count; from += pass) {
    const std::size_t length = std::min(pass, count - from);
    for (std::size_t r = 0; r < where.size(); ++r) sources[r] = where[r] + from * unit;
    reduce(reduction, element, scratch, sources.data(), size_, length);
    std::memcpy(result + from * unit, scratch, length * unit);
  }
  sync();
}

void SharedGroup::all_gather(void* out, const void* in, std::size_t bytes, Element element) {
  const auto* const own = static_cast<const std::byte*>(in);
  auto* const all = static_cast<std::byte*>(out);
  const auto slot = [&](int rank) { return all + static_cast<std::size_t>(rank) * bytes; };
  Call call(*this);
  Post mine = make_post(Kind::all_gather, bytes, bytes > kSmall ? in : nullptr);
  mine.element = element;
  post(mine);
  const auto keep_own = [&] {
    if (bytes > 0 && slot(rank_) != own) std::memmove(slot(rank_), own, bytes);
  };

  if (bytes <= kSmall) {
    if (bytes > 0) std::memcpy(small(rank_, sequence_), in, bytes);
    sync();
    compare(current_);
    for (int r = 0; r < size_ && bytes > 0; ++r) std::memcpy(slot(r), small(r, sequence_), bytes);
    return;
  }

  const std::size_t piece = stage_bytes();
  const std::size_t pieces = (bytes + piece - 1) / piece;
  const auto length_of = [&](std::size_t number) {
    return std::min(piece, bytes - number * piece);
  };
  const auto fill = [&](std::size_t number) {
    std::memcpy(stage(rank_, turn_ + number), own + number * piece, length_of(number));
  };
  const auto take = [&](std::size_t number) {
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      std::memcpy(slot(r) + number * piece, stage(r, turn_ + number), length_of(number));
    }
  };
  const bool filled = current_.offset == Post::kElsewhere;
  if (filled) fill(0);
  sync();
  compare(current_);
  if (!all_shared(sequence_)) {
    if (any_shared(sequence_)) {
      if (!filled) fill(0);
      sync();
    }
    call.pipeline(
        pieces, true, false, true, fill, [](std::size_t) {}, take);
    keep_own();
    return;
  }
  ++in_place_calls_;
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    std::memcpy(slot(r), peer_data(r, sequence_), bytes);
  }
  sync();  // nobody's input changes before all have read it
  keep_own();
}

void SharedGroup::broadcast(void* data, std::size_t bytes, int root, Element element) {
  auto* const own = static_cast<std::byte*>(data);
  const bool is_root = rank_ == root;
  if (root < 0 || root >= size_) {
    throw CollectiveError("broadcast from rank " + std::to_string(root) + " of " +
                          std::to_string(size_));
  }
  Call call(*this);
  Post mine = make_post(Kind::broadcast, bytes, is_root && bytes > kSmall ? data : nullptr);
  mine.element = element;
  mine.root = root;
  post(mine);

  if (bytes <= kSmall) {
    if (is_root && bytes > 0) std::memcpy(small(rank_, sequence_), data, bytes);
    sync();
    compare(current_);
    if (!is_root && bytes > 0) std::memcpy(data, small(root, sequence_), bytes);
    return;
  }

  const std::size_t piece = stage_bytes();
  const std::size_t pieces = (bytes + piece - 1) / piece;
  const auto length_of = [&](std::size_t number) {
    return std::min(piece, bytes - number * piece);
  };
  const auto fill = [&](std::size_t number) {
    if (!is_root) return;
    std::memcpy(stage(rank_, turn_ + number), own + number * piece, length_of(number));
  };
  const auto take = [&](std::size_t number) {
    if (is_root) return;
    std::memcpy(own + number * piece, stage(root, turn_ + number), length_of(number));
  };
  // Only where the root's data lies matters.
  if (!is_root || current_.offset == Post::kElsewhere) fill(0);
  sync();
  compare(current_);
  if (block(root).posts[sequence_ % 2].load().offset == Post::kElsewhere) {
    call.pipeline(
        pieces, true, false, true, fill, [](std::size_t) {}, take);
    return;
  }
  ++in_place_calls_;
  if (!is_root) std::memcpy(data, peer_data(root, sequence_), bytes);
  sync();
}

}  // namespace dtrain::train::comm
