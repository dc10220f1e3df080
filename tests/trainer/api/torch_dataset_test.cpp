#include "trainer/api/torch_dataset.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/data.h>

#include <atomic>
#include <thread>

#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

using Example = torch::data::Example<>;

// Sample i is (i, i + 1) and i's parity. A copy may be used by one thread at a time only.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::optional<std::size_t> size, std::atomic<int>* copies = nullptr)
      : size_(size), copies_(copies) {}
  Numbers(const Numbers& other) : size_(other.size_), copies_(other.copies_) {
    if (copies_ != nullptr) ++*copies_;
  }
  Example get(std::size_t index) override {
    if (busy_.exchange(true)) throw std::runtime_error("used by two threads");
    std::this_thread::yield();
    busy_ = false;
    if (index == 77) throw std::runtime_error("unlucky");
    const auto value = static_cast<float>(index);
    return {at::tensor({value, value + 1}), at::tensor(static_cast<std::int64_t>(index % 2))};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::optional<std::size_t> size_;
  std::atomic<int>* copies_;
  std::atomic<bool> busy_ = false;
};

// The samples of one part of ten, one by one.
class Stateful
    : public torch::data::datasets::StatefulDataset<Stateful, std::vector<Example>, std::size_t> {
 public:
  explicit Stateful(StreamShare share) : share_(share), at_(100) {}
  std::optional<std::vector<Example>> get_batch(std::size_t count) override {
    std::vector<Example> batch;
    for (; batch.size() < count && at_ < 10; at_ += share_.parts) {
      batch.emplace_back(at::tensor({at_}), at::tensor(at_));
    }
    if (batch.empty()) return std::nullopt;
    return batch;
  }
  void reset() override { at_ = share_.part; }
  std::optional<std::size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}

 private:
  StreamShare share_;
  std::int64_t at_;
};

std::vector<std::int64_t> values_of(const DataLoader& loader, std::size_t tensor) {
  std::vector<std::int64_t> values;
  auto pass = loader.pass(0);
  while (const auto batch = pass.next()) {
    const at::Tensor all = (*batch)[tensor].to(at::kLong).reshape({batch->size(), -1}).select(1, 0);
    for (std::int64_t i = 0; i < all.size(0); ++i) values.push_back(all[i].item<std::int64_t>());
  }
  return values;
}

}  // namespace

TEST_CASE("a dataset of LibTorch's gives its samples by index, in our order") {
  const DataLoader plain = make_data_loader(Numbers(10), {.batch_size = 4, .workers = 2});
  CHECK(values_of(plain, 0) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(values_of(plain, 1) == std::vector<std::int64_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  const auto first = plain.pass(0).next();
  CHECK((*first)[0].sizes() == at::IntArrayRef({4, 2}));
  CHECK(first->indices == std::vector<std::int64_t>{0, 1, 2, 3});

  // With its transforms, collated by them.
  auto mapped = Numbers(10)
                    .map(torch::data::transforms::Normalize<>(1.0, 0.5))
                    .map(torch::data::transforms::Stack<>());
  const DataLoader loader = make_data_loader(mapped, {.batch_size = 4, .shuffle = true});
  auto pass = loader.pass(3, 4);
  const auto batch = pass.next();
  CHECK(batch->indices ==
        plain.with({.batch_size = 4, .shuffle = true}).pass(3, 4).next()->indices);
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto index = static_cast<double>(batch->indices[static_cast<std::size_t>(i)]);
    CHECK((*batch)[0][i].flatten()[1].item<double>() == doctest::Approx(index / 0.5));
  }
}

TEST_CASE("each worker has a copy of the dataset, and no more are made") {
  std::atomic<int> copies = 0;
  const DataLoader loader = make_data_loader(Numbers(64, &copies), {.batch_size = 1, .workers = 4});
  const int before = copies;
  for (int i = 0; i < 3; ++i) CHECK(values_of(loader, 0).size() == 64);
  CHECK(copies - before <= 4);
}

TEST_CASE("a dataset without a size, or with a bad sample, is an error") {
  CHECK(contains(message_of<Error>([] { make_data_loader(Numbers(std::nullopt), {}); }),
                 "make_stream_loader"));
  const DataLoader loader = make_data_loader(Numbers(80), {.batch_size = 20});
  CHECK(contains(message_of<Error>([&] { values_of(loader, 0); }),
                 "the batch that begins with sample 60: unlucky"));
}

TEST_CASE("a stateful dataset is a stream") {
  const DataLoader loader =
      make_stream_loader("numbers", [](StreamShare share, std::int64_t) { return Stateful(share); },
                         {.batch_size = 3, .workers = 1});
  CHECK(loader.is_stream());
  CHECK(values_of(loader, 0) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto first = loader.pass(0).next();
  CHECK((*first)[0].sizes() == at::IntArrayRef({3, 1}));
  CHECK((*first)[1].sizes() == at::IntArrayRef({3, 1}));
}
