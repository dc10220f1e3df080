#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/data/loader.hpp"
#include "trainer/data/sampler.hpp"
#include "trainer/data/split.hpp"
#include "trainer/data/stream_loader.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/mixup.hpp"
#include "trainer/train/one_thread.hpp"

namespace dtrain::train {

// What a step gets: as a tuple of tensors in Python, batch[0] the inputs and batch[1] the labels.
struct Batch {
  std::vector<at::Tensor> tensors;    // each [batch, …]
  std::vector<std::int64_t> indices;  // of the samples in their data set

  const at::Tensor& operator[](std::size_t i) const { return tensors.at(i); }

  // `const auto& [images, labels] = batch`; of more or fewer tensors than two,
  // `const auto [a, b, c] = batch.as<3>()`. Throws Error if it has not just as many.
  template <std::size_t N>
  std::array<at::Tensor, N> as() const {
    check_count(N);
    std::array<at::Tensor, N> all;
    std::copy(tensors.begin(), tensors.end(), all.begin());
    return all;
  }
  template <std::size_t I>
  at::Tensor& get() & {
    check_count(2);
    return tensors[I];
  }
  template <std::size_t I>
  const at::Tensor& get() const& {
    check_count(2);
    return tensors[I];
  }
  template <std::size_t I>
  at::Tensor&& get() && {
    check_count(2);
    return std::move(tensors[I]);
  }
  void check_count(std::size_t wanted) const;

  // Samples. Those of a stream have no indices: the rows of the first tensor.
  std::int64_t size() const {
    if (!indices.empty() || tensors.empty()) return static_cast<std::int64_t>(indices.size());
    return tensors[0].dim() == 0 ? 0 : tensors[0].size(0);
  }
};

}  // namespace dtrain::train

template <>
struct std::tuple_size<dtrain::train::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I>
struct std::tuple_element<I, dtrain::train::Batch> {
  using type = at::Tensor;
};

namespace dtrain::train {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;  // of one rank
  bool shuffle = false;
  bool drop_last = false;
  int workers = 1;   // threads that make batches; 0: inside of next()
  int prefetch = 2;  // batches for each worker
  std::uint64_t seed = 0;
};

// A data set and how batches are made of it. A value that is cheap to copy.
//
// Of a map-style set the order of an epoch is a function of (seed, epoch, index): a resume costs
// nothing, and any number of ranks sees the same one.
//
// A stream (of_stream) has an order of its own and a length that nobody knows before its end. It is
// cut into parts, one for each worker of each rank, which may be uneven. A resume reads what it has
// seen of the epoch and leaves it out; with as many ranks and workers as before it sees the same
// batches as a training that was never stopped, with another number other ones.
// The Trainer evens the ranks' parts out (Module::train_dataloader); a loop of one's own has
// DistributedDataParallel::Join for that.
class DataLoader {
 public:
  // Makes the batch of these samples; from several threads at once, each of which has ATen's
  // operations to itself (one_thread.hpp). A transform's randomness should come from (seed, epoch,
  // index) alone: SampleRandom (trainer/data/random.hpp).
  using Make = std::function<Batch(std::span<const std::int64_t> indices, std::int64_t epoch)>;

  // Throws Error if there are no samples or the options make no sense.
  DataLoader(std::int64_t samples, Make make, DataLoaderOptions options);

  // Rows of tensors of equal length, as torch.utils.data.TensorDataset.
  static DataLoader of_tensors(std::vector<at::Tensor> tensors, DataLoaderOptions options);
  // Images and labels, through a transform; `batches` has no epoch yet.
  static DataLoader of_images(Images images, const ImageBatches& batches,
                              DataLoaderOptions options);

  // Samples that come one after the other: `open` makes the stream of one of the parts of an epoch,
  // `collate` a batch of its samples. From the workers' threads, one stream in each; there is
  // always at least one. Each part has its own order: `shuffle` is an Error. `name` is for
  // messages.
  template <typename Sample>
  static DataLoader of_stream(
      std::string name,
      std::function<std::unique_ptr<SampleStream<Sample>>(StreamShare, std::int64_t epoch)> open,
      std::function<Batch(std::vector<Sample>)> collate, DataLoaderOptions options);

  // These samples alone, which keep their indices; one may come twice. Throws Error on an index
  // that the data set does not have, and of a stream. random_split makes several of it.
  DataLoader subset(std::vector<std::int64_t> indices) const;
  // The same data set with other options: of a part to validate on, say.
  DataLoader with(DataLoaderOptions options) const;

  // Batches of images (batch[0], float) and labels (batch[1]) come mixed; mixup.hpp says how. For a
  // stream, which has no indices that the randomness could come from, it is an Error.
  DataLoader mixed(const MixupOptions& options) const;

  // This rank's share: what prepare_data_loader does. With `evaluates` each sample comes to exactly
  // one rank, so ranks may have different numbers of batches; else all have as many.
  DataLoader shared(const Context& context, bool evaluates) const;
  // Gives its batches on that device; else they are where `make` has them, on the CPU.
  DataLoader on(c10::Device device) const;

  bool is_stream() const { return static_cast<bool>(open_); }
  std::int64_t samples() const { return samples_; }  // 0 of a stream: not known
  const DataLoaderOptions& options() const { return options_; }
  int ranks() const { return ranks_; }
  // Samples that this process has left out (BadSamples::skip), null where none ever is.
  const std::shared_ptr<const SkippedSamples>& skipped() const { return skipped_; }
  // Of a whole epoch, for this rank; kUnknown of a stream.
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
  std::int64_t batches() const;

  // One pass, from a place in the epoch on. Of a stream the place is counted in full batches of all
  // ranks, and what this rank has seen is left out when the pass is made.
  class Pass {
   public:
    // After the last one of this rank: nothing. Of a stream, again() begins this rank's part anew;
    // next() throws Error if it then has nothing.
    std::optional<Batch> next();
    void again();
    // Of a stream: whether this rank's part has ended once, and whether it had no batch at all.
    bool has_ended() const { return has_ended_; }
    bool is_empty() const { return has_ended_ && !has_begun_; }
    std::int64_t batches() const { return loader_ ? loader_->batches() : kUnknown; }
    LoaderStats stats() const { return loader_ ? loader_->stats() : LoaderStats{}; }
    // Where all ranks together stand after what next() has given so far: a checkpoint's
    // Place::position, once all of it is trained on.
    std::int64_t position() const;
    // The same after so many samples, in so many batches, that this rank was dealt.
    std::int64_t position_after(std::int64_t samples, std::int64_t batches) const;

   private:
    friend class DataLoader;
    using Next = std::function<std::optional<Batch>()>;
    Pass(DistributedSampler sampler, std::unique_ptr<Loader<Batch>> loader)
        : sampler_(sampler), loader_(std::move(loader)) {}
    Pass(std::function<Next()> open, std::int64_t seen, std::int64_t of_all);

    std::optional<Batch> next_of_stream();

    std::optional<c10::Device> device_;
    std::optional<DistributedSampler> sampler_;  // neither of a stream
    std::unique_ptr<Loader<Batch>> loader_;
    std::function<Next()> open_;  // of a stream
    Next next_;
    std::int64_t seen_ = 0;    // batches of this rank, when the pass was made
    std::int64_t given_ = 0;   // batches of this rank, since then
    std::int64_t of_all_ = 0;  // samples that a batch of each rank has
    bool has_begun_ = false;
    bool has_ended_ = false;
    bool is_anew_ = false;  // again() was the last call
  };
  Pass pass(std::int64_t epoch, std::int64_t position = 0) const;

  using NextBatch = std::function<std::optional<Batch>()>;  // none after the last one

  // The batches of an epoch, for a range-based for; a batch is gone when the next one comes.
  class Epoch {
   public:
    explicit Epoch(NextBatch next) : next_(std::move(next)) {}

    class Iterator {
     public:
      using difference_type = std::ptrdiff_t;
      explicit Iterator(Epoch& epoch) : epoch_(&epoch) {}
      Batch& operator*() const { return *epoch_->batch_; }
      Iterator& operator++() {
        epoch_->advance();
        return *this;
      }
      void operator++(int) { ++*this; }
      bool operator==(std::default_sentinel_t /*end*/) const { return !epoch_->batch_; }

     private:
      Epoch* epoch_;
    };
    // Once: there is one way through it.
    Iterator begin() {
      advance();
      return Iterator(*this);
    }
    static std::default_sentinel_t end() { return {}; }

   private:
    void advance() {
      batch_.reset();  // its memory may serve the next one
      batch_ = next_();
    }
    NextBatch next_;
    std::optional<Batch> batch_;
  };
  //     for (const auto& [images, labels] : loader.epoch(epoch)) { … }
  //
  // A pass from the epoch's beginning, unless prepare_data_loader made this loader: epochs() in
  // trainer/api/functions.hpp says what it does then.
  Epoch epoch(std::int64_t epoch) const;
  // How epoch() is gone through instead.
  using OpenEpoch = std::function<NextBatch(const DataLoader& loader, std::int64_t epoch)>;
  DataLoader with_epochs(OpenEpoch open) const;

 private:
  // The batches of one of `ranks` parts, by a stream loader.
  using OpenPart = std::function<Pass::Next(int rank, int ranks, std::int64_t epoch)>;
  DataLoader(OpenPart open, DataLoaderOptions options);
  DistributedSampler sampler(std::int64_t epoch, std::int64_t position) const;

  std::int64_t samples_;
  Make make_;
  OpenPart open_;  // of a stream
  DataLoaderOptions options_;
  int rank_ = 0;
  int ranks_ = 1;
  bool evaluates_ = false;
  std::optional<c10::Device> device_;
  std::shared_ptr<const SkippedSamples> skipped_;
  OpenEpoch open_epoch_;
};

template <typename Sample>
DataLoader DataLoader::of_stream(
    std::string name,
    std::function<std::unique_ptr<SampleStream<Sample>>(StreamShare, std::int64_t epoch)> open,
    std::function<Batch(std::vector<Sample>)> collate, DataLoaderOptions options) {
  StreamOptions part{.batch_size = options.batch_size,
                     .workers = std::max(1, options.workers),
                     .prefetch = options.prefetch,
                     .drop_last = options.drop_last};
  return DataLoader(
      [=](int rank, int ranks, std::int64_t epoch) mutable -> Pass::Next {
        part.rank = rank;
        part.ranks = ranks;
        const auto loader = std::make_shared<StreamLoader<Sample, Batch>>(
            name, part,
            [open, epoch](StreamShare share) {
              keep_to_one_thread();
              return open(share, epoch);
            },
            collate);
        return [loader] { return loader->next(); };
      },
      options);
}

// The data set in random parts that have no sample in common, as torch.utils.data.random_split;
// split.hpp says how lengths are meant, and which samples come into which part.
std::vector<DataLoader> random_split(const DataLoader& loader,
                                     const std::vector<SplitLength>& lengths,
                                     std::uint64_t seed = 0);

// That all ranks share out the same data: as many samples, in the same order and batches. Throws
// Error on every rank, with both numbers, where rank 0 and another have not. `loader` may be null,
// and nothing is compared of streams. Collective.
void check_alike(Context& context, const DataLoader* loader, const std::string& what);

// A batch on the device; copies nothing that is there already.
Batch to_device(Batch batch, c10::Device device);

}  // namespace dtrain::train
