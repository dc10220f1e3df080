#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "trainer/comm/kernels.hpp"
#include "trainer/comm/rendezvous.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train::comm {

// A collective that failed: a peer died, did not come in time, or called something else.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

enum class Kind : std::uint32_t {
  none,
  barrier,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce_parts,
  gather_parts
};
const char* name_of(Kind kind);

// One rank's call, as its peers see it.
struct Post {
  std::uint64_t sequence = 0;  // of this group, from 1
  std::uint64_t bytes = 0;     // of one rank's contribution
  std::uint64_t offset = 0;    // in the poster's heap; kElsewhere if it is not there
  Kind kind = Kind::none;
  Element element = Element::u8;
  Reduction reduction = Reduction::sum;
  std::int32_t root = -1;

  static constexpr std::uint64_t kElsewhere = ~std::uint64_t{0};
};
// "all_reduce #12 (sum of 4096 f32)"
std::string describe(const Post& post);

// Bytes of something that all ranks have alike.
struct Range {
  std::size_t begin = 0;
  std::size_t length = 0;
};

// Memory that belongs together, in this order.
using Parts = std::vector<std::span<std::byte>>;

// The processes of one host as a group that works in shared memory.
//
// All ranks call the same collectives in the same order, one thread at a time in each. Every call
// compares sequence, kind, type, bytes, reduction and root of all ranks before a result is used:
// what differs throws CollectiveError on all of them and names both. A peer that dies throws within
// about 100 ms, one that does not come after `timeout`, with its rank and its last call. After an
// error the group is broken: every further call throws the same.
//
// Sums are in the order of the ranks for each element, whatever the size of the call.
class SharedGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::minutes(30);
    std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
    // Pauses before a wait sleeps; -1: 2,000, or none when there are more ranks than cores
    // and these are not bound to their own.
    int spins = -1;
    std::size_t stage = 0;  // bytes that a rank stages at a time, up to 1 MiB; 0: chosen. Rank 0's
    std::string name = "default";  // in messages
  };

  // Collective. Null, with the reason in *problem, if the ranks cannot share memory: the same on
  // all. Throws Error if not all come.
  static std::unique_ptr<SharedGroup> join(const KeyValue& store, int rank, int size,
                                           const Options& options, std::string* problem);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  void barrier();
  // In place. Where all ranks' data lies in their SharedHeap it is reduced there.
  void all_reduce(void* data, std::size_t count, Element element, Reduction reduction);
  // `in` holds `count` elements for each rank; this rank's part of the result goes to `out`, which
  // may be that part of `in`.
  void reduce_scatter(void* out, const void* in, std::size_t count, Element element,
                      Reduction reduction);
  // `out` holds `bytes` of each rank, by rank; `in` may be this rank's part of it.
  void all_gather(void* out, const void* in, std::size_t bytes, Element element = Element::u8);
  void broadcast(void* data, std::size_t bytes, int root, Element element = Element::u8);

  // For ranks that share out data of one layout by parts of any size.
  //
  // Each part (in bytes of `data`) becomes the sum over all ranks of what they have there times
  // `factor` (the product is rounded, then summed in the ranks' order), at `outs[i]`: outside of
  // `data`, or where the part lies in it. No two ranks' parts overlap. Of types that can_scale().
  // Where all ranks' data lies in their SharedHeap they work there, without staging; else they do
  // nothing and return false, on all ranks alike, and the caller takes one of the calls above.
  bool reduce_parts(const void* data, std::size_t bytes, Element element, double factor,
                    const std::vector<Range>& parts, const std::vector<void*>& outs);
  // by_rank[r]: where this rank has what rank r has the right bytes of, the same bytes in all on
  // every rank. The other ranks copy them from there.
  void gather_parts(const std::vector<Parts>& by_rank);

  // What this rank is told by the program, for the messages of its peers: the step it works on.
  void set_step(std::int64_t step);
  // The last call of a rank of the group. Any thread.
  Post last_post(int rank) const;
  // The sequence of the last call that it has come out of. Any thread.
  std::uint64_t last_left(int rank) const;
  std::int64_t step_of(int rank) const;
  // Whether an error was seen by any rank. Any thread.
  bool broken() const;

  // How long this rank has been inside of calls so far, and of that waited for others. Any thread.
  struct Spent {
    std::chrono::nanoseconds inside{};
    std::chrono::nanoseconds waiting{};
  };
  Spent spent() const;

  // Calls that needed no staging: all ranks' data lay in their heaps.
  std::uint64_t in_place_calls() const { return in_place_calls_; }

 private:
  struct RankBlock;
  struct Call;
  SharedGroup(Meeting meeting, int rank, int size, Options options);

  RankBlock& block(int rank) const;
  std::byte* small(int rank, std::uint64_t sequence) const;
  std::byte* stage(int rank, std::uint64_t turn) const;

  Post make_post(Kind kind, std::size_t bytes, const void* data) const;
  void post(const Post& post);  // and begins the call
  void sync();                  // arrive, and wait for all
  void wait_for(int peer, std::uint32_t target);
  void compare(const Post& mine);
  void check_peers();
  [[noreturn]] void fail(const std::string& message);
  std::string others(const Post& mine, std::uint32_t target) const;

  bool all_shared(std::uint64_t sequence) const;
  bool any_shared(std::uint64_t sequence) const;
  std::size_t stage_bytes() const;
  std::byte* peer_data(int peer, std::uint64_t sequence);  // fails the group if it is not there

  Meeting meeting_;
  const int rank_;
  const int size_;
  Options options_;
  std::uint64_t sequence_ = 0;
  std::uint64_t turn_ = 0;  // of the stages, which take turns
  std::uint32_t arrived_ = 0;
  Post current_;
  std::string failure_;
  std::uint64_t in_place_calls_ = 0;
  std::atomic<std::int64_t> inside_{0};   // nanoseconds in calls
  std::atomic<std::int64_t> waiting_{0};  // nanoseconds
  std::mutex mutex_;
};

}  // namespace dtrain::train::comm
