#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "trainer/comm/group.hpp"

// What lies in the memory of a SharedGroup: for group.cpp, which waits and fails, and
// group_calls.cpp and group_parts.cpp, which have the collectives.
namespace dtrain::train::comm {

inline constexpr std::size_t kLine = 128;  // two cache lines: the prefetcher takes pairs
// Contributions up to this size travel in the call itself: one meeting of the ranks, no more.
inline constexpr std::size_t kSmall = std::size_t{32} << 10;
inline constexpr std::size_t kStage = std::size_t{1} << 20;  // the most that a stage can be
inline constexpr std::size_t kDefaultStage = std::size_t{256} << 10;
inline constexpr std::uint64_t kTurns = 3;  // one stage fills, one is reduced, one is read
inline constexpr std::size_t kInPlacePass = std::size_t{16} << 10;  // stays in the first cache
inline constexpr std::size_t kReasonSize = 1024;

// Post, in words that may be read while another process writes them.
struct SharedPost {
  std::atomic<std::uint64_t> sequence, bytes, offset, kinds, root;

  void store(const Post& post) {
    const auto relaxed = std::memory_order_relaxed;
    bytes.store(post.bytes, relaxed);
    offset.store(post.offset, relaxed);
    kinds.store(static_cast<std::uint64_t>(post.kind) |
                    static_cast<std::uint64_t>(post.element) << 32 |
                    static_cast<std::uint64_t>(post.reduction) << 40,
                relaxed);
    root.store(static_cast<std::uint64_t>(post.root) + 1, relaxed);
    sequence.store(post.sequence, relaxed);
  }
  Post load() const {
    const auto relaxed = std::memory_order_relaxed;
    const std::uint64_t kind = kinds.load(relaxed);
    Post post;
    post.sequence = sequence.load(relaxed);
    post.bytes = bytes.load(relaxed);
    post.offset = offset.load(relaxed);
    post.kind = static_cast<Kind>(static_cast<std::uint32_t>(kind));
    post.element = static_cast<Element>((kind >> 32) & 0xFF);
    post.reduction = static_cast<Reduction>((kind >> 40) & 0xFF);
    post.root = static_cast<std::int32_t>(root.load(relaxed)) - 1;
    return post;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(kLine) SharedGroup::RankBlock {
  std::atomic<std::uint32_t> arrived;  // meetings that this rank has come to; a futex
  std::atomic<std::uint32_t> waiters;  // who sleep on it
  alignas(kLine) SharedPost posts[2];  // of calls with an even and an odd sequence
  std::atomic<std::int64_t> step;
  std::atomic<std::uint64_t> left;  // the last call that this rank has come out of
};

// The group's memory: this, then for each rank its two small buffers and its stages.
struct Header {
  std::atomic<std::uint32_t> broken;  // 1 + the rank that saw an error first
  std::atomic<std::uint32_t> reason_ready;
  std::atomic<std::uint32_t> stage;  // bytes; what rank 0 has, since all must agree
  char reason[kReasonSize];
};
inline constexpr std::size_t kHeaderSize = 4096;
static_assert(sizeof(Header) <= kHeaderSize);
inline constexpr std::size_t kRankSize = 2 * kSmall + kTurns * kStage;

// To a sum that only the thread of the call adds to.
inline void add_time_since(std::chrono::steady_clock::time_point began,
                           std::atomic<std::int64_t>& sum) {
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
  sum.store(sum.load(std::memory_order_relaxed) + took.count(), std::memory_order_relaxed);
}

// A call: only one thread is in it.
struct SharedGroup::Call {
  explicit Call(SharedGroup& its)
      : group(its), lock(its.mutex_), began(std::chrono::steady_clock::now()) {}
  ~Call() {
    group.block(group.rank_).left.store(group.sequence_, std::memory_order_relaxed);
    add_time_since(began, group.inside_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Runs pieces through the stages: in phase t, piece t is filled in, piece t - 1 is reduced (if
  // the call reduces) and the piece before that is taken out, each in its own stage, with one
  // meeting after each phase but the last. `posted` begins the call at the first meeting.
  template <typename Fill, typename Reduce, typename Take>
  void pipeline(std::size_t pieces, bool first_is_filled, bool reduces, bool takes, Fill fill,
                Reduce reduce, Take take) {
    const std::size_t take_after = reduces ? 2 : 1;
    const std::size_t phases = pieces + (reduces ? 1 : 0) + (takes ? 1 : 0);
    for (std::size_t t = first_is_filled ? 1 : 0; t < phases; ++t) {
      if (t < pieces) fill(t);
      if (reduces && t >= 1 && t - 1 < pieces) reduce(t - 1);
      if (takes && t >= take_after && t - take_after < pieces) take(t - take_after);
      if (t + 1 < phases) group.sync();
    }
    group.turn_ += pieces;
  }

  SharedGroup& group;
  const std::lock_guard<std::mutex> lock;
  const std::chrono::steady_clock::time_point began;
};

inline Header& header_of(const Meeting& meeting) {
  return *reinterpret_cast<Header*>(meeting.control.data());
}

}  // namespace dtrain::train::comm
