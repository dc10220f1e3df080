#include "trainer/data/sampler.hpp"

#include <algorithm>
#include <string>

#include "trainer/core/error.hpp"
#include "trainer/core/mix.hpp"

namespace dtrain::train {

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch)
    : size_(static_cast<std::uint64_t>(size)) {
  while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t key = mix(seed, static_cast<std::uint64_t>(epoch));
  for (std::uint64_t& round : keys_) round = key = mix(key);
}

std::int64_t Permutation::operator[](std::int64_t position) const {
  std::uint64_t value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & half_mask_;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix(right ^ key) & half_mask_);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

DistributedSampler::DistributedSampler(std::int64_t size, int rank, int ranks, Options options)
    : size_(size), rank_(rank), ranks_(ranks), options_(options), order_(size, options.seed, 0) {
  if (size < 0 || size > (std::int64_t{1} << 62)) {
    throw Error("sampler: " + std::to_string(size) + " samples are not possible");
  }
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw Error("sampler: rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                " is not possible");
  }
}

std::int64_t DistributedSampler::end() const {
  if (start_ >= size_) return start_;
  const std::int64_t left = size_ - start_;
  switch (options_.tail) {
    case Tail::pad:
      return start_ + (left + ranks_ - 1) / ranks_ * ranks_;
    case Tail::drop:
      return start_ + left / ranks_ * ranks_;
    case Tail::keep:
      break;
  }
  return size_;
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t position) {
  if (position < 0) {
    throw Error("sampler: position " + std::to_string(position) + " is not possible");
  }
  epoch_ = epoch;
  start_ = position;
  order_ = Permutation(size_, options_.seed, epoch);
}

std::int64_t DistributedSampler::remaining() const {
  const std::int64_t first = start_ + rank_;
  const std::int64_t last = end();
  return first >= last ? 0 : (last - first + ranks_ - 1) / ranks_;
}

std::int64_t DistributedSampler::at(std::int64_t offset) const {
  const std::int64_t position = start_ + rank_ + offset * ranks_;
  if (offset < 0 || position >= end()) {
    throw Error("sampler: offset " + std::to_string(offset) + " is outside of the epoch");
  }
  const std::int64_t wrapped = position % size_;  // beyond size only where it is padded
  return options_.shuffle ? order_[wrapped] : wrapped;
}

std::int64_t DistributedSampler::position_after(std::int64_t taken) const {
  const std::int64_t last = start_ + (end() - start_ + ranks_ - 1) / ranks_ * ranks_;
  return std::min(start_ + taken * ranks_, last);
}

}  // namespace dtrain::train
