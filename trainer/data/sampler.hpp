#pragma once

#include <cstdint>
#include <vector>

namespace dtrain::train {

// A permutation of 0 … size-1 that is computed, not stored: position i of the order is a function
// of (seed, epoch, i) alone. Any position costs the same, whatever came before it, so that a
// resume in the middle of an epoch costs nothing, and every rank sees the same order without
// talking. (A Feistel network over the next even number of bits, walked until it lands inside.)
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);
  std::int64_t operator[](std::int64_t position) const;

 private:
  static constexpr int kRounds = 6;
  std::uint64_t size_;
  unsigned half_bits_ = 1;
  std::uint64_t half_mask_ = 1;
  std::uint64_t keys_[kRounds]{};
};

// What happens to the end of an epoch when the samples do not divide by the ranks.
enum class Tail : std::uint8_t {
  pad,   // the first samples of the order come again, so that each rank has ceil(size / ranks)
  drop,  // the last samples of the order are left out: floor(size / ranks) each
  keep,  // some ranks have one sample more; each sample is seen exactly once. For evaluation:
         // ranks must not take part in collectives batch by batch
};

// Deals the samples of a data set to the ranks of a group, epoch by epoch.
//
// Position p of an epoch's order goes to rank p % ranks. A place in the epoch is counted in
// positions dealt to all ranks together, so that it means the same for any number of ranks.
class DistributedSampler {
 public:
  struct Options {
    bool shuffle = true;
    Tail tail = Tail::pad;
    std::uint64_t seed = 0;
  };

  // Throws Error on a negative size, or a rank outside of ranks.
  DistributedSampler(std::int64_t size, int rank, int ranks, Options options);

  // The order of `epoch` from its beginning, or from `position`, which may have been counted by
  // another number of ranks; beyond the epoch's end nothing remains. Throws Error on a negative
  // one.
  void set_epoch(std::int64_t epoch, std::int64_t position = 0);

  std::int64_t epoch() const { return epoch_; }
  // Samples of this rank from the current position to the epoch's end.
  std::int64_t remaining() const;
  // The sample at `offset` (below remaining()) from the current position, for this rank.
  std::int64_t at(std::int64_t offset) const;
  // The position when this rank, and so each, has taken `taken` samples from the current one.
  std::int64_t position_after(std::int64_t taken) const;

 private:
  std::int64_t end() const;  // of the epoch's positions, from the current one, all ranks together

  std::int64_t size_;
  int rank_;
  int ranks_;
  Options options_;
  std::int64_t epoch_ = 0;
  std::int64_t start_ = 0;
  Permutation order_;
};

}  // namespace dtrain::train
