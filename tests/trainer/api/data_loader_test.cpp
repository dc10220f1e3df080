#include "trainer/api/data_loader.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

namespace {

// Counts what is decoded.
class Counted : public ImageSource {
 public:
  std::string name() const override { return "counted"; }
  std::int64_t size() const override { return 12; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int64_t class_count() const override { return 12; }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t /*least*/) const override {
    ++decodes[static_cast<std::size_t>(index)];
    scratch.assign(4, static_cast<std::uint8_t>(index));
    return ImageView::planar(scratch.data(), 1, 2, 2);
  }
  std::int64_t label(std::int64_t index) const override { return index; }

  mutable std::array<std::atomic<int>, 12> decodes{};

 private:
  std::vector<std::string> classes_;
};

std::vector<std::int64_t> indices_of(const DataLoader& loader, std::int64_t epoch = 0) {
  std::vector<std::int64_t> indices;
  auto pass = loader.pass(epoch);
  while (const auto batch = pass.next()) {
    indices.insert(indices.end(), batch->indices.begin(), batch->indices.end());
  }
  return indices;
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Large enough for a team.
void work() {
  at::ones({1 << 20}).exp_();
}

}  // namespace

TEST_CASE("each sample is decoded once in an epoch, and the first once more, for its shape") {
  const auto images = std::make_shared<Counted>();
  const DataLoader loader =
      DataLoader::of_images(images, {}, {.batch_size = 2, .shuffle = true, .workers = 2});
  for (int epoch = 0; epoch < 3; ++epoch) CHECK(indices_of(loader, epoch).size() == 12);
  CHECK(images->decodes[0] == 4);
  for (std::size_t i = 1; i < 12; ++i) CHECK(images->decodes[i] == 3);
}

TEST_CASE("threads that make batches start no threads of their own, all others may") {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  work();  // this thread's team
  const std::ptrdiff_t alone = threads();
  constexpr int kWorkers = 3;
  std::atomic<std::ptrdiff_t> most = 0;
  const auto make = [&](std::span<const std::int64_t> indices, std::int64_t /*epoch*/) {
    work();
    most = std::max(most.load(), threads());
    CHECK(at::get_num_threads() == 1);
    return Batch{{}, {indices.begin(), indices.end()}};
  };
  CHECK(indices_of(DataLoader(64, make, {.workers = kWorkers})).size() == 64);
  CHECK(most <= alone + kWorkers);
  CHECK(most > alone);

  class One final : public SampleStream<int> {
   public:
    std::optional<int> next() override {
      const int given = given_++;
      if (at::get_num_threads() != 1) throw Error("a team");
      return given < 4 ? std::optional(given) : std::nullopt;
    }

   private:
    int given_ = 0;
  };
  auto pass = DataLoader::of_stream<int>(
                  "numbers",
                  [](StreamShare, std::int64_t) -> std::unique_ptr<SampleStream<int>> {
                    return std::make_unique<One>();
                  },
                  [](std::vector<int>) {
                    work();
                    return Batch{{at::ones({1})}, {}};
                  },
                  {.workers = 1})
                  .pass(0);
  int batches = 0;
  while (pass.next()) ++batches;
  CHECK(batches == 4);

  CHECK(at::get_num_threads() == 4);
  // What workers must not do; last, for such a team may outlive its thread by a moment.
  std::thread([&] {
    work();
    CHECK(threads() >= alone + 4);  // this one and its team
  }).join();
  std::thread([] { CHECK(at::get_num_threads() == 4); }).join();
  // Inside of next() it is the training's own thread.
  const auto inside = [](std::span<const std::int64_t> indices, std::int64_t /*epoch*/) {
    CHECK(at::get_num_threads() == 4);
    return Batch{{}, {indices.begin(), indices.end()}};
  };
  CHECK(indices_of(DataLoader(4, inside, {.workers = 0})).size() == 4);
  at::set_num_threads(before);
}

TEST_CASE("a subset of a loader keeps its samples' indices, and its own order") {
  const at::Tensor values = at::arange(10);
  const DataLoader all = DataLoader::of_tensors({values}, {.batch_size = 4});
  const DataLoader some = all.subset({9, 3, 4});
  CHECK(some.samples() == 3);
  CHECK(indices_of(some) == std::vector<std::int64_t>{9, 3, 4});
  CHECK(some.pass(0).next()->tensors[0].equal(values.index_select(0, at::tensor({9, 3, 4}))));
  CHECK(some.with({.batch_size = 1}).batches() == 3);
  CHECK(indices_of(some.with({.shuffle = true}), 1) != indices_of(some.with({.shuffle = true}), 3));
  CHECK(contains(message_of<Error>([&] { all.subset({10}); }), "wants sample 10, there are 10"));
  CHECK(contains(message_of<Error>([&] { all.subset({}); }), "no samples"));

  const auto parts = random_split(all, {0.7, 0.3}, 2);
  std::vector<std::int64_t> both = indices_of(parts[0]);
  CHECK(both.size() == 7);
  const auto rest = indices_of(parts[1]);
  both.insert(both.end(), rest.begin(), rest.end());
  CHECK(both != std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::sort(both.begin(), both.end());
  CHECK(both == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}
