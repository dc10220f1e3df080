#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/api/data_loader.hpp"
#include "trainer/core/error.hpp"

// LibTorch's own datasets (torch::data::datasets) with its transforms (map) as a DataLoader, which
// brings its order, ranks and resume; LibTorch's samplers and loaders are not used.
namespace dtrain::train {

namespace torch_dataset {

template <typename Value>
concept Tensor = std::same_as<std::remove_cvref_t<Value>, at::Tensor>;

// What a sample or a collated batch has: `data`, and `target` unless it is torch::data::NoTarget.
template <typename Example>
std::vector<at::Tensor> tensors_of(const Example& example) {
  static_assert(Tensor<decltype(example.data)>, "a sample's data must be a tensor");
  if constexpr (Tensor<decltype(example.target)>) return {example.data, example.target};
  return {example.data};
}

template <typename Example>
std::vector<std::vector<at::Tensor>> columns_of(const std::vector<Example>& examples) {
  std::vector<std::vector<at::Tensor>> columns;
  for (const Example& example : examples) {
    std::vector<at::Tensor> tensors = tensors_of(example);
    columns.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) columns[i].push_back(std::move(tensors[i]));
  }
  return columns;
}

template <typename Dataset>
concept MapStyle = requires(Dataset dataset, std::vector<std::size_t> indices) {
  dataset.get_batch(indices);
  { *dataset.size() } -> std::convertible_to<std::size_t>;
};

// A batch as the dataset gives it: collated by a transform (Stack), or a sample after the other.
template <typename Given>
std::vector<at::Tensor> batch_of(const Given& given) {
  if constexpr (requires { given.data; }) {
    return tensors_of(given);
  } else {
    std::vector<at::Tensor> batch;
    for (const auto& column : columns_of(given)) batch.push_back(at::stack(column));
    return batch;
  }
}

// Copies of a dataset, one for each thread that is at work.
template <typename Dataset>
class Copies {
 public:
  explicit Copies(Dataset dataset) : original_(std::move(dataset)) {}

  auto get_batch(const std::vector<std::size_t>& indices) {
    std::unique_ptr<Dataset> mine;
    {
      const std::lock_guard lock(mutex_);
      if (idle_.empty()) idle_.push_back(std::make_unique<Dataset>(original_));
      mine = std::move(idle_.back());
      idle_.pop_back();
    }
    auto batch = mine->get_batch(indices);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(mine));
    return batch;
  }

 private:
  std::mutex mutex_;
  const Dataset original_;
  std::vector<std::unique_ptr<Dataset>> idle_;
};

}  // namespace torch_dataset

// Of a map-style dataset, one that is asked for samples by index and knows its size():
//     make_data_loader(torch::data::datasets::MNIST(folder).map(Normalize<>(0.13, 0.31)), options)
// Samples of tensors are stacked, if no Stack<> has done that already.
//
// Threads: as in LibTorch each worker has a copy of the dataset, so get() need not be ready for
// calls from several threads, unless copies share something. Randomness of its transforms comes
// from LibTorch's generators and so depends on which worker makes which batch: a resume has the
// same samples, not the same random changes. Throws Error when the dataset does not know its size.
template <torch_dataset::MapStyle Dataset>
DataLoader make_data_loader(Dataset dataset, DataLoaderOptions options) {
  const auto size = dataset.size();
  if (!size) {
    throw Error("data loader: the dataset does not know its size; make_stream_loader takes those");
  }
  const auto copies = std::make_shared<torch_dataset::Copies<Dataset>>(std::move(dataset));
  return DataLoader(
      static_cast<std::int64_t>(*size),
      [copies](std::span<const std::int64_t> indices, std::int64_t /*epoch*/) {
        try {
          return Batch{torch_dataset::batch_of(copies->get_batch({indices.begin(), indices.end()})),
                       {indices.begin(), indices.end()}};
        } catch (const std::exception& error) {
          throw Error("dataset, in the batch that begins with sample " +
                      std::to_string(indices.empty() ? -1 : indices.front()) + ": " + error.what());
        }
      },
      options);
}

// Of a stateful dataset (torch::data::datasets::StatefulDataset, ChunkDataset): `open` makes the
// one that gives one part of an epoch, on the worker's thread that reads it. It is reset() once and
// asked for one sample at a time; data_loader.hpp says what holds of streams. `name` is for
// messages.
template <typename Open>
DataLoader make_stream_loader(std::string name, Open open, DataLoaderOptions options) {
  using Dataset = std::remove_cvref_t<std::invoke_result_t<Open, StreamShare, std::int64_t>>;
  using Sample = std::vector<at::Tensor>;  // each [1, …]
  class Stream final : public SampleStream<Sample> {
   public:
    explicit Stream(Dataset dataset) : dataset_(std::move(dataset)) { dataset_.reset(); }
    std::optional<Sample> next() override {
      auto given = dataset_.get_batch(1);
      if (!given) return std::nullopt;
      return torch_dataset::batch_of(*given);
    }

   private:
    Dataset dataset_;
  };
  return DataLoader::of_stream<Sample>(
      std::move(name),
      [open](StreamShare share, std::int64_t epoch) -> std::unique_ptr<SampleStream<Sample>> {
        return std::make_unique<Stream>(open(share, epoch));
      },
      [](const std::vector<Sample>& samples) {
        Batch batch;
        for (std::size_t i = 0; i < samples.front().size(); ++i) {
          std::vector<at::Tensor> column;
          for (const Sample& sample : samples) column.push_back(sample.at(i));
          batch.tensors.push_back(at::cat(column));
        }
        return batch;
      },
      options);
}

}  // namespace dtrain::train
