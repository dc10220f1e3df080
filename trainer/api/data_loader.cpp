#include "trainer/api/data_loader.hpp"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "trainer/core/error.hpp"
#include "trainer/train/device_copy.hpp"

namespace dtrain::train {

namespace {

void check(const DataLoaderOptions& options) {
  if (options.batch_size < 1) throw Error("data loader: batch_size must be at least 1");
  if (options.workers < 0 || options.prefetch < 1) {
    throw Error("data loader: workers must be at least 0 and prefetch at least 1");
  }
}

}  // namespace

void Batch::check_count(std::size_t wanted) const {
  if (tensors.size() == wanted) return;
  const std::string has = std::to_string(tensors.size());
  throw Error("a batch of " + has + " tensors is taken apart as " + std::to_string(wanted) +
              ": take them as batch.as<" + has + ">(), or as batch[i]");
}

DataLoader::DataLoader(std::int64_t samples, Make make, DataLoaderOptions options)
    : samples_(samples), make_(std::move(make)), options_(options) {
  if (samples < 1) throw Error("data loader: the data set has no samples");
  check(options);
}

DataLoader::DataLoader(OpenPart open, DataLoaderOptions options)
    : samples_(0), open_(std::move(open)), options_(options) {
  check(options);
  if (options.shuffle) throw Error("data loader: a stream has its own order: shuffle it inside");
}

DataLoader DataLoader::of_tensors(std::vector<at::Tensor> tensors, DataLoaderOptions options) {
  if (tensors.empty()) throw Error("data loader: there are no tensors");
  const std::int64_t samples = tensors[0].size(0);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.size(0) != samples) {
      throw Error("data loader: tensors of " + std::to_string(samples) + " and of " +
                  std::to_string(tensor.size(0)) + " samples");
    }
  }
  return {samples,
          [tensors = std::move(tensors)](std::span<const std::int64_t> indices,
                                         std::int64_t /*epoch*/) {
            const at::Tensor rows =
                at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
            Batch batch;
            for (const at::Tensor& tensor : tensors) {
              batch.tensors.push_back(tensor.index_select(0, rows));
            }
            batch.indices.assign(indices.begin(), indices.end());
            return batch;
          },
          options};
}

DataLoader DataLoader::of_images(Images images, const ImageBatches& batches,
                                 DataLoaderOptions options) {
  const std::int64_t samples = images->size();
  DataLoader loader(
      samples,
      [make = ImageBatcher(std::move(images), batches)](std::span<const std::int64_t> indices,
                                                        std::int64_t epoch) {
        ImageBatch made = make(indices, epoch);
        return Batch{{std::move(made.images), std::move(made.labels)}, std::move(made.indices)};
      },
      options);
  if (batches.bad_samples == BadSamples::skip) loader.skipped_ = batches.skipped;
  return loader;
}

DataLoader DataLoader::subset(std::vector<std::int64_t> indices) const {
  if (is_stream()) throw Error("data loader: a stream has no indices to make a subset of");
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= samples_) {
      throw Error("data loader: a subset wants sample " + std::to_string(index) + ", there are " +
                  std::to_string(samples_));
    }
  }
  DataLoader part = *this;
  const auto chosen = std::make_shared<const std::vector<std::int64_t>>(std::move(indices));
  if (chosen->empty()) throw Error("data loader: a subset has no samples");
  part.samples_ = static_cast<std::int64_t>(chosen->size());
  part.make_ = [make = make_, chosen](std::span<const std::int64_t> places, std::int64_t epoch) {
    std::vector<std::int64_t> there;
    there.reserve(places.size());
    for (const std::int64_t place : places) {
      there.push_back(chosen->at(static_cast<std::size_t>(place)));
    }
    return make(there, epoch);
  };
  return part;
}

DataLoader DataLoader::with(DataLoaderOptions options) const {
  check(options);
  if (is_stream()) throw Error("data loader: a stream's options are those it was opened with");
  DataLoader other = *this;
  other.options_ = options;
  return other;
}

DataLoader DataLoader::mixed(const MixupOptions& options) const {
  if (is_stream()) throw Error("data loader: batches of a stream cannot be mixed");
  DataLoader other = *this;
  other.make_ = [make = make_, options](std::span<const std::int64_t> indices, std::int64_t epoch) {
    Batch batch = make(indices, epoch);
    if (batch.tensors.size() != 2) throw Error("mixup: a batch must be images and labels");
    Mixed mixed = mix_batch(batch[0], batch[1], options, epoch, batch.indices);
    batch.tensors = {std::move(mixed.images), std::move(mixed.labels)};
    return batch;
  };
  return other;
}

std::vector<DataLoader> random_split(const DataLoader& loader,
                                     const std::vector<SplitLength>& lengths, std::uint64_t seed) {
  std::vector<DataLoader> parts;
  for (std::vector<std::int64_t>& indices : random_split(loader.samples(), lengths, seed)) {
    parts.push_back(loader.subset(std::move(indices)));
  }
  return parts;
}

DataLoader DataLoader::shared(const Context& context, bool evaluates) const {
  DataLoader mine = *this;
  mine.rank_ = context.rank();
  mine.ranks_ = context.world_size();
  mine.evaluates_ = evaluates;
  return mine;
}

DataLoader DataLoader::on(c10::Device device) const {
  DataLoader there = *this;
  there.device_ = device;
  return there;
}

DistributedSampler DataLoader::sampler(std::int64_t epoch, std::int64_t position) const {
  DistributedSampler sampler(samples_, rank_, ranks_,
                             {.shuffle = options_.shuffle,
                              .tail = evaluates_ ? Tail::keep : Tail::pad,
                              .seed = options_.seed});
  sampler.set_epoch(epoch, position);
  return sampler;
}

std::int64_t DataLoader::batches() const {
  if (is_stream()) return kUnknown;
  const std::int64_t samples = sampler(0, 0).remaining();
  return options_.drop_last ? samples / options_.batch_size
                            : (samples + options_.batch_size - 1) / options_.batch_size;
}

DataLoader::Pass DataLoader::pass(std::int64_t epoch, std::int64_t position) const {
  if (is_stream()) {
    const std::int64_t of_all = options_.batch_size * ranks_;
    Pass pass(
        [open = open_, rank = rank_, ranks = ranks_, epoch] { return open(rank, ranks, epoch); },
        (position + of_all - 1) / of_all, of_all);
    pass.device_ = device_;
    return pass;
  }
  DistributedSampler from = sampler(epoch, position);
  const LoaderOptions options{.batch_size = options_.batch_size,
                              .workers = options_.workers,
                              .prefetch = options_.prefetch,
                              .drop_last = options_.drop_last};
  // With threads of its own for it, batches are on the GPU before they are asked for.
  std::shared_ptr<DeviceCopy> copier;
  if (device_ && device_->is_cuda() && options_.workers > 0) {
    copier = std::make_shared<DeviceCopy>(*device_);
  }
  auto loader =
      std::make_unique<Loader<Batch>>(from, options,
                                      [make = make_, epoch, copier, apart = options.workers > 0](
                                          std::span<const std::int64_t> indices) {
                                        if (apart) keep_to_one_thread();
                                        Batch batch = make(indices, epoch);
                                        if (copier)
                                          batch.tensors = copier->copy(std::move(batch.tensors));
                                        return batch;
                                      });
  Pass pass(from, std::move(loader));
  pass.device_ = device_;
  return pass;
}

DataLoader::Epoch DataLoader::epoch(std::int64_t epoch) const {
  if (open_epoch_) return Epoch(open_epoch_(*this, epoch));
  return Epoch([its = std::make_shared<Pass>(pass(epoch))]() mutable { return its->next(); });
}

DataLoader DataLoader::with_epochs(OpenEpoch open) const {
  DataLoader other = *this;
  other.open_epoch_ = std::move(open);
  return other;
}

DataLoader::Pass::Pass(std::function<Next()> open, std::int64_t seen, std::int64_t of_all)
    : open_(std::move(open)), next_(open_()), seen_(seen), of_all_(of_all) {
  for (std::int64_t i = 0; i < seen;) {
    if (next_of_stream()) {
      ++i;
    } else if (is_empty()) {
      break;
    } else {
      again();
    }
  }
}

std::optional<Batch> DataLoader::Pass::next() {
  std::optional<Batch> batch = loader_ ? loader_->next() : next_of_stream();
  if (!batch) return batch;
  ++given_;
  DeviceCopy::will_use(batch->tensors);
  return device_ ? to_device(std::move(*batch), *device_) : std::move(batch);
}

std::optional<Batch> DataLoader::Pass::next_of_stream() {
  std::optional<Batch> batch = next_();
  if (std::exchange(is_anew_, false) && !batch) {
    throw Error("data loader: a stream that had batches has none when it is opened again");
  }
  has_begun_ = has_begun_ || batch.has_value();
  has_ended_ = has_ended_ || !batch;
  return batch;
}

void DataLoader::Pass::again() {
  next_ = nullptr;  // its threads first
  next_ = open_();
  is_anew_ = true;
}

std::int64_t DataLoader::Pass::position() const {
  return position_after(loader_ ? loader_->dealt() : 0, given_);
}

std::int64_t DataLoader::Pass::position_after(std::int64_t samples, std::int64_t batches) const {
  return sampler_ ? sampler_->position_after(samples) : (seen_ + batches) * of_all_;
}

void check_alike(Context& context, const DataLoader* loader, const std::string& what) {
  if (context.world_size() == 1) return;
  constexpr std::array kNames{"loaders", "streams", "samples",  "batch_size",
                              "shuffle", "seed",    "drop_last"};
  std::array<std::int64_t, kNames.size()> mine{};
  if (loader != nullptr && loader->is_stream()) {
    mine = {1, 1};
  } else if (loader != nullptr) {
    const DataLoaderOptions& options = loader->options();
    const bool shuffles = options.shuffle;
    mine = {1,
            0,
            loader->samples(),
            options.batch_size,
            shuffles ? 1 : 0,
            static_cast<std::int64_t>(shuffles ? options.seed : 0),
            options.drop_last ? 1 : 0};
  }
  const std::vector<at::Tensor> all = context.all_gather(
      at::tensor(at::ArrayRef<std::int64_t>(mine.data(), mine.size()), at::kLong));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      const auto first = all[0].const_data_ptr<std::int64_t>()[i];
      const auto other = all[rank].const_data_ptr<std::int64_t>()[i];
      if (first == other) continue;
      throw Error("the ranks' " + what + " differ: " + kNames[i] + " is " + std::to_string(first) +
                  " on rank 0 and " + std::to_string(other) + " on rank " + std::to_string(rank) +
                  ": each rank takes its part of the same data, of which all need the same copy");
    }
  }
}

Batch to_device(Batch batch, c10::Device device) {
  for (at::Tensor& tensor : batch.tensors) {
    if (tensor.device() != device) tensor = tensor.to(device, /*non_blocking=*/true);
  }
  return batch;
}

}  // namespace dtrain::train
