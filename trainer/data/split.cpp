#include "trainer/data/split.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "trainer/core/error.hpp"
#include "trainer/data/sampler.hpp"

namespace dtrain::train {
namespace {

class SubsetImages : public ImageSource {
 public:
  SubsetImages(Images all, std::vector<std::int64_t> indices)
      : all_(std::move(all)), indices_(std::move(indices)) {}

  std::string name() const override { return all_->name(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  const std::vector<std::string>& classes() const override { return all_->classes(); }
  std::int64_t class_count() const override { return all_->class_count(); }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t least) const override {
    const std::int64_t there = at(index);
    try {
      return all_->image(there, scratch, least);
    } catch (const std::exception& error) {
      throw Error("(sample " + std::to_string(there) + " of all) " + error.what());
    }
  }
  std::int64_t label(std::int64_t index) const override { return all_->label(at(index)); }

 private:
  std::int64_t at(std::int64_t index) const { return indices_[static_cast<std::size_t>(index)]; }

  Images all_;
  std::vector<std::int64_t> indices_;
};

}  // namespace

std::vector<std::int64_t> split_lengths(std::int64_t samples,
                                        const std::vector<SplitLength>& lengths) {
  double sum = 0;
  bool whole = true;
  for (const SplitLength& length : lengths) {
    if (!(length.value >= 0)) {
      throw Error("random_split: a length of " + std::to_string(length.value) + " is not possible");
    }
    sum += length.value;
    whole = whole && length.value == std::floor(length.value);
  }
  const bool parts = std::abs(sum - 1) <= 1e-9;
  if (lengths.empty() || (!parts && (!whole || sum != static_cast<double>(samples)))) {
    throw Error("random_split: lengths that sum to " + std::to_string(sum) +
                " are neither those of " + std::to_string(samples) +
                " samples nor parts, which sum to 1");
  }
  std::vector<std::int64_t> result;
  std::int64_t left = samples;
  for (const SplitLength& length : lengths) {
    const double wanted =
        parts ? std::floor(static_cast<double>(samples) * length.value) : length.value;
    result.push_back(std::min(static_cast<std::int64_t>(wanted), left));
    left -= result.back();
  }
  for (std::size_t i = 0; left > 0; i = (i + 1) % result.size(), --left) ++result[i];
  return result;
}

std::vector<std::vector<std::int64_t>> random_split(std::int64_t samples,
                                                    const std::vector<SplitLength>& lengths,
                                                    std::uint64_t seed) {
  const Permutation order(samples, seed, kSplitEpoch);
  std::vector<std::vector<std::int64_t>> parts;
  std::int64_t position = 0;
  for (const std::int64_t length : split_lengths(samples, lengths)) {
    std::vector<std::int64_t>& part = parts.emplace_back();
    part.reserve(static_cast<std::size_t>(length));
    for (const std::int64_t end = position + length; position < end; ++position) {
      part.push_back(order[position]);
    }
  }
  return parts;
}

Images subset(Images images, std::vector<std::int64_t> indices) {
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= images->size()) {
      throw Error("data set " + images->name() + ": a subset wants sample " +
                  std::to_string(index) + ", there are " + std::to_string(images->size()));
    }
  }
  return std::make_shared<SubsetImages>(std::move(images), std::move(indices));
}

std::vector<Images> random_split(const Images& images, const std::vector<SplitLength>& lengths,
                                 std::uint64_t seed) {
  std::vector<Images> parts;
  for (std::vector<std::int64_t>& indices : random_split(images->size(), lengths, seed)) {
    parts.push_back(subset(images, std::move(indices)));
  }
  return parts;
}

}  // namespace dtrain::train
