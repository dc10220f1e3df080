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

#include "trainer/comm/group_memory.hpp"
#include "trainer/core/environment.hpp"
#include "trainer/core/stacks.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtrain::train::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{100};
constexpr int kDefaultSpins = 2000;

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

bool same_call(const Post& a, const Post& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.element == b.element &&
         a.bytes == b.bytes && a.reduction == b.reduction && a.root == b.root;
}

// So many ranks of one host: none has to wait for its turn on a core.
bool have_cores(int ranks) {
  // cpu_bind: each has its own, unless these were begun by another launcher within such a rank.
  const auto job = process_variable("DTRAIN_JOB_ID");
  if (process_variable("DTRAIN_CPUS") && job && job == process_variable("TORCHELASTIC_RUN_ID")) {
    return true;
  }
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return ranks == 1;
  return ranks <= CPU_COUNT(&set);
}

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
    case Kind::reduce_parts:
      return "reduce_parts";
    case Kind::gather_parts:
      return "gather_parts";
  }
  return "?";
}

std::string describe(const Post& post) {
  if (post.sequence == 0) return "nothing yet";
  std::string text = std::string(name_of(post.kind)) + " #" + std::to_string(post.sequence);
  if (post.kind == Kind::barrier) return text;
  text += " (";
  if (post.kind == Kind::all_reduce || post.kind == Kind::reduce_scatter ||
      post.kind == Kind::reduce_parts) {
    text += std::string(name_of(post.reduction)) + " of ";
  }
  text += std::to_string(post.bytes / std::max<std::size_t>(1, size_of(post.element))) + " " +
          name_of(post.element);
  if (post.root >= 0) text += " from rank " + std::to_string(post.root);
  return text + ")";
}

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
  if (options_.spins < 0) options_.spins = have_cores(size) ? kDefaultSpins : 0;
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

SharedGroup::Spent SharedGroup::spent() const {
  return {std::chrono::nanoseconds(inside_.load(std::memory_order_relaxed)),
          std::chrono::nanoseconds(waiting_.load(std::memory_order_relaxed))};
}

std::uint64_t SharedGroup::last_left(int rank) const {
  return block(rank).left.load(std::memory_order_relaxed);
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
  const Clock::time_point began = Clock::now();
  for (int i = 1; i < size_; ++i) wait_for((rank_ + i) % size_, arrived_);
  add_time_since(began, waiting_);
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

}  // namespace dtrain::train::comm
