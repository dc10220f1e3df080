#include "trainer/comm/group.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "trainer/core/stacks.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtrain::train::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLine = 128;  // two cache lines: the prefetcher takes pairs
// Contributions up to this size travel in the call itself: one meeting of the ranks, no more.
constexpr std::size_t kSmall = std::size_t{32} << 10;
constexpr std::size_t kStage = std::size_t{1} << 20;  // the most that a stage can be
constexpr std::size_t kDefaultStage = std::size_t{256} << 10;
constexpr std::uint64_t kTurns = 3;  // one stage fills, one is reduced, one is read
constexpr std::size_t kInPlacePass = std::size_t{16} << 10;  // bytes: stays in the first cache
constexpr std::chrono::milliseconds kSlice{100};
constexpr int kDefaultSpins = 2000;
constexpr std::size_t kReasonSize = 1024;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not the private kind of futex: the word is shared between processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::chrono::milliseconds timeout) {
  const timespec time{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr,
            0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

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
    root.store(static_cast<std::uint64_t>(post.root + 1), relaxed);
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

bool same_call(const Post& a, const Post& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.element == b.element &&
         a.bytes == b.bytes && a.reduction == b.reduction && a.root == b.root;
}

int cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

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

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "nothing";
    case Kind::barrier:
      return "barrier";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_gather:
      return "all_gather";
    case Kind::broadcast:
      return "broadcast";
  }
  return "?";
}

std::string describe(const Post& post) {
  if (post.sequence == 0) return "nothing yet";
  std::string text = std::string(name_of(post.kind)) + " #" + std::to_string(post.sequence);
  if (post.kind == Kind::barrier) return text;
  text += " (";
  if (post.kind == Kind::all_reduce || post.kind == Kind::reduce_scatter) {
    text += std::string(name_of(post.reduction)) + " of ";
  }
  text += std::to_string(post.bytes / std::max<std::size_t>(1, size_of(post.element))) + " " +
          name_of(post.element);
  if (post.root >= 0) text += " from rank " + std::to_string(post.root);
  return text + ")";
}

struct alignas(kLine) SharedGroup::RankBlock {
  std::atomic<std::uint32_t> arrived;  // meetings that this rank has come to; a futex
  std::atomic<std::uint32_t> waiters;  // who sleep on it
  alignas(kLine) SharedPost posts[2];  // of calls with an even and an odd sequence
  std::atomic<std::int64_t> step;
};

namespace {

// The group's memory: this, then for each rank its two small buffers and its stages.
struct Header {
  std::atomic<std::uint32_t> broken;  // 1 + the rank that saw an error first
  std::atomic<std::uint32_t> reason_ready;
  std::atomic<std::uint32_t> stage;  // bytes; what rank 0 has, since all must agree
  char reason[kReasonSize];
};
constexpr std::size_t kHeaderSize = 4096;
static_assert(sizeof(Header) <= kHeaderSize);
constexpr std::size_t kRankSize = 2 * kSmall + kTurns * kStage;

Header& header_of(const Meeting& meeting) {
  return *reinterpret_cast<Header*>(meeting.control.data());
}

}  // namespace

std::unique_ptr<SharedGroup> SharedGroup::join(const KeyValue& store, int rank, int size,
                                               const Options& options, std::string* problem) {
  const auto n = static_cast<std::size_t>(size);
  const std::size_t blocks = (n * sizeof(RankBlock) + kHeaderSize - 1) / kHeaderSize * kHeaderSize;
  Meeting meeting =
      meet(store, rank, size, kHeaderSize + blocks + n * kRankSize, options.join_timeout);
  if (problem != nullptr) *problem = meeting.problem;
  if (!meeting.problem.empty()) return nullptr;
  std::unique_ptr<SharedGroup> group(new SharedGroup(std::move(meeting), rank, size, options));
  group->barrier();  // from here on all know what rank 0 has chosen
  return group;
}

// The memory is zeroed, which is what all these atomics begin with: nothing is constructed in it,
// since rank 0 could not say when it has done so before the first meeting.
SharedGroup::SharedGroup(Meeting meeting, int rank, int size, Options options)
    : meeting_(std::move(meeting)), rank_(rank), size_(size), options_(std::move(options)) {
  if (options_.spins < 0) options_.spins = size > cores() ? 0 : kDefaultSpins;
  if (rank != 0) return;
  const std::size_t stage = options_.stage != 0 ? std::min(options_.stage, kStage) : kDefaultStage;
  header_of(meeting_).stage.store(static_cast<std::uint32_t>(stage));
}

std::size_t SharedGroup::stage_bytes() const {
  return header_of(meeting_).stage.load(std::memory_order_relaxed);
}

SharedGroup::~SharedGroup() = default;

SharedGroup::RankBlock& SharedGroup::block(int rank) const {
  auto* const blocks = reinterpret_cast<RankBlock*>(meeting_.control.data() + kHeaderSize);
  return blocks[rank];
}

std::byte* SharedGroup::small(int rank, std::uint64_t sequence) const {
  const auto n = static_cast<std::size_t>(size_);
  const std::size_t blocks = (n * sizeof(RankBlock) + kHeaderSize - 1) / kHeaderSize * kHeaderSize;
  return meeting_.control.data() + kHeaderSize + blocks +
         static_cast<std::size_t>(rank) * kRankSize + (sequence % 2) * kSmall;
}

std::byte* SharedGroup::stage(int rank, std::uint64_t turn) const {
  return small(rank, 0) + 2 * kSmall + (turn % kTurns) * kStage;
}

bool SharedGroup::broken() const {
  return header_of(meeting_).broken.load(std::memory_order_acquire) != 0;
}

void SharedGroup::set_step(std::int64_t step) {
  block(rank_).step.store(step, std::memory_order_relaxed);
}

std::int64_t SharedGroup::step_of(int rank) const {
  return block(rank).step.load(std::memory_order_relaxed);
}

Post SharedGroup::last_post(int rank) const {
  const Post even = block(rank).posts[0].load();
  const Post odd = block(rank).posts[1].load();
  return even.sequence > odd.sequence ? even : odd;
}

// The first error of any rank becomes the group's; the others are told.
void SharedGroup::fail(const std::string& message) {
  Header& header = header_of(meeting_);
  std::uint32_t nobody = 0;
  if (header.broken.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_ + 1))) {
    std::snprintf(header.reason, sizeof header.reason, "%s", message.c_str());
    header.reason_ready.store(1, std::memory_order_release);
    futex_wake_all(block(rank_).arrived);
  }
  failure_ = message;
  throw CollectiveError(message);
}

// What each rank that is awaited did last.
std::string SharedGroup::others(const Post& mine, std::uint32_t target) const {
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const std::uint32_t arrived = block(rank).arrived.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(arrived - target) >= 0) continue;
    const Post last = last_post(rank);
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank);
    if (same_call(last, mine)) {
      text += " is inside this call";
    } else {
      text += " has not come: its last call was " + describe(last);
    }
    if (const std::int64_t step = step_of(rank); step > 0) {
      text += ", it is at step " + std::to_string(step);
    }
  }
  return text;
}

// Between two naps of a wait.
void SharedGroup::check_peers() {
  const Header& header = header_of(meeting_);
  const std::uint32_t by = header.broken.load(std::memory_order_acquire);
  if (by != 0 && by != static_cast<std::uint32_t>(rank_ + 1)) {
    std::string reason;
    if (header.reason_ready.load(std::memory_order_acquire) != 0) reason = header.reason;
    fail("rank " + std::to_string(by - 1) + " gave up while this rank was in " +
         describe(current_) + ": " + reason);
  }
  for (int rank = 0; rank < size_; ++rank) {
    const FileDescriptor& life = meeting_.peers[static_cast<std::size_t>(rank)].life;
    if (rank == rank_ || !life.valid()) continue;
    pollfd entry{life.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0 || (entry.revents & (POLLIN | POLLHUP)) == 0) continue;
    // A peer that is not awaited may have finished its work and left.
    const std::uint32_t arrived = block(rank).arrived.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(arrived - arrived_) >= 0) continue;
    fail("rank " + std::to_string(rank) + " died: rank " + std::to_string(rank_) +
         " waited for it in " + describe(current_) + ", its last call was " +
         describe(last_post(rank)));
  }
}

void SharedGroup::wait_for(int peer, std::uint32_t target) {
  std::atomic<std::uint32_t>& word = block(peer).arrived;
  const auto there = [&](std::uint32_t value) {
    return static_cast<std::int32_t>(value - target) >= 0;
  };
  for (int i = 0; i < options_.spins; ++i) {
    if (there(word.load(std::memory_order_acquire))) return;
    pause_cpu();
  }
  const Clock::time_point began = Clock::now();
  Clock::time_point looked = began;
  std::atomic<std::uint32_t>& waiters = block(peer).waiters;
  for (;;) {
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    if (there(seen)) return;
    // The peer writes its word and then looks for waiters; this rank is a waiter and then looks at
    // the word: one of the two sees the other.
    waiters.fetch_add(1);
    if (word.load() == seen) futex_wait(word, seen, std::min(kSlice, options_.timeout));
    waiters.fetch_sub(1);
    if (there(word.load(std::memory_order_acquire))) return;
    const Clock::time_point now = Clock::now();
    if (now - looked >= kSlice / 2 || broken()) {
      looked = now;
      check_peers();
    }
    if (now - began >= options_.timeout) {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g",
                    std::chrono::duration<double>(options_.timeout).count());
      note_stacks(native_stacks());
      fail(describe(current_) + " of group '" + options_.name + "' timed out after " + seconds +
           " s on rank " + std::to_string(rank_) + ": " + others(current_, target));
    }
  }
}

void SharedGroup::sync() {
  RankBlock& mine = block(rank_);
  ++arrived_;
  mine.arrived.store(arrived_);
  if (mine.waiters.load() != 0) futex_wake_all(mine.arrived);
  bool all = true;
  for (int i = 1; i < size_ && all; ++i) {
    const std::uint32_t value = block((rank_ + i) % size_).arrived.load(std::memory_order_acquire);
    all = static_cast<std::int32_t>(value - arrived_) >= 0;
  }
  if (all) return;
  for (int i = 1; i < size_; ++i) wait_for((rank_ + i) % size_, arrived_);
}

Post SharedGroup::make_post(Kind kind, std::size_t bytes, const void* data) const {
  Post post;
  post.kind = kind;
  post.bytes = bytes;
  const std::optional<std::uint64_t> offset =
      data == nullptr ? std::nullopt : SharedHeap::of_process()->offset_of(data, bytes);
  post.offset = offset.value_or(Post::kElsewhere);
  return post;
}

void SharedGroup::post(const Post& post) {
  if (!failure_.empty()) throw CollectiveError(failure_);
  current_ = post;
  current_.sequence = ++sequence_;
  if (broken()) check_peers();  // throws: this call would never be whole
  block(rank_).posts[sequence_ % 2].store(current_);
}

// After the first meeting of a call: whether all mean the same one.
void SharedGroup::compare(const Post& mine) {
  const Post first = rank_ == 0 ? mine : block(0).posts[sequence_ % 2].load();
  std::string differing;
  for (int rank = 1; rank < size_; ++rank) {
    const Post theirs = rank == rank_ ? mine : block(rank).posts[sequence_ % 2].load();
    if (same_call(first, theirs)) continue;
    differing += ", rank " + std::to_string(rank) + " " + describe(theirs);
  }
  if (differing.empty()) return;
  fail("the ranks of group '" + options_.name + "' call different collectives: rank 0 " +
       describe(first) + differing);
}

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

// A call: only one thread is in it.
struct SharedGroup::Call {
  explicit Call(SharedGroup& its) : group(its), lock(its.mutex_) {}
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
};

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
