#include "trainer/api/functions.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/zero.hpp"

using namespace dtrain::train;
using test::contains;
using test::make_samples;
using test::message_of;
using test::SmallNet;
using test::TemporaryFolder;

namespace {

std::shared_ptr<SmallNet> small_net() {
  at::manual_seed(3);
  return std::make_shared<SmallNet>(4, false);
}

std::shared_ptr<Sgd> sgd(const torch::nn::Module& model, double lr = 0.1) {
  return std::make_shared<Sgd>(named_parameters(model), SgdOptions{.lr = lr});
}

void begin(const TemporaryFolder& folder) {
  InitOptions options;
  options.session.storage = folder / "storage";
  options.session.print_metrics = false;
  init(options);
}

}  // namespace

TEST_CASE("a schedule that is prepared goes on after a resume") {
  const TemporaryFolder folder;
  const SchedulePtr schedule = linear_schedule(1, 0, 10);
  std::shared_ptr<Optimizer> optimizer;
  const auto start = [&] {
    begin(folder);
    auto model = prepare_model(small_net());
    optimizer = prepare_optimizer(sgd(*model));
    return prepare_scheduler(std::make_shared<Scheduler>(*optimizer, schedule));
  };
  {
    const auto scheduler = start();
    CHECK_FALSE(get_checkpoint().has_value());
    for (int step = 0; step < 4; ++step) scheduler->after_step();
    report({}, Place{4, 0, 0});
    shutdown();
  }
  const auto scheduler = start();
  CHECK(get_checkpoint()->step == 4);
  CHECK(scheduler->done() == 4);
  CHECK(optimizer->lr() == doctest::Approx(0.06));
  CHECK(contains(message_of<Error>([&] {
                   prepare_scheduler(std::make_shared<Scheduler>(*optimizer, schedule), "late");
                 }),
                 "too late"));
  shutdown();
}

TEST_CASE("a scheduler that no checkpoint keeps is an error, where it would be lost") {
  const TemporaryFolder folder;
  begin(folder);
  auto model = prepare_model(small_net());
  auto optimizer = prepare_optimizer(sgd(*model));
  get_checkpoint();
  {
    Scheduler scheduler(*optimizer, linear_schedule(1, 0, 10));
    CHECK(contains(message_of<Error>([] { get_checkpoint(); }), "prepare_scheduler()"));
    CHECK(contains(message_of<Error>([] { report({}, Place{1, 0, 0}); }), "prepare_scheduler()"));
    report(1, {{"loss", 0.5}});  // without a checkpoint nothing is lost
  }
  report({}, Place{1, 0, 0});  // it is gone
  auto other = sgd(*model);
  CHECK(contains(message_of<Error>([&] {
                   prepare_scheduler(
                       std::make_shared<Scheduler>(*other, linear_schedule(1, 0, 10)));
                 }),
                 "another optimizer"));
  shutdown();

  begin(folder);
  model = prepare_model(small_net());
  other = sgd(*model);
  const Scheduler of_inner(*other, linear_schedule(1, 0, 10));
  CHECK(contains(message_of<Error>([&] { prepare_optimizer(other, Strategy::zero1); }),
                 "on what prepare_optimizer() returns"));
  shutdown();
}

TEST_CASE("fp16: gradients that are clipped and then dropped leave the next step as it is") {
  const auto weights_after = [](const std::function<void(SmallNet&)>& drop) {
    init();
    PrepareModel options;
    options.precision = Precision::fp16;
    auto model = prepare_model(small_net(), options);
    prepare_optimizer(sgd(*model));
    const test::Samples samples = make_samples(12);
    const auto back = [&] {
      at::Tensor loss;
      {
        const auto in_precision = autocast();
        loss = at::cross_entropy_loss(model(samples.inputs), samples.labels);
      }
      backward(loss);
    };
    if (drop) {
      back();
      CHECK(clip_gradients(1e-3) < 100);  // of the loss, not of 65536 times it
      CHECK(contains(message_of<Error>(back), "unscaled already"));
      drop(*model);
    }
    back();
    CHECK(clip_gradients(1e6) < 100);
    CHECK(optimizer_step());
    const at::Tensor weights = model->parameters()[0].detach().clone();
    shutdown();
    return weights;
  };
  const at::Tensor expected = weights_after({});
  CHECK(weights_after([](SmallNet&) { zero_grad(); }).equal(expected));
  CHECK(weights_after([](SmallNet& net) {
          for (const at::Tensor& each : net.parameters()) each.mutable_grad().zero_();
        }).equal(expected));
}

TEST_CASE("batches of prepared data are on the device") {
  const test::Samples all = make_samples(10);
  const DataLoader here = DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 4});
  // No GPU is needed to see where they go.
  auto pass = here.on(c10::Device(c10::kMeta)).pass(0);
  CHECK(pass.position() == 0);
  std::int64_t batches = 0;
  while (const auto batch = pass.next()) {
    ++batches;
    CHECK((*batch)[0].is_meta());
    CHECK((*batch)[1].is_meta());
    CHECK(pass.position() == std::min<std::int64_t>(4 * batches, 10));
  }
  CHECK(batches == 3);
  init();
  CHECK((prepare_data_loader(here).pass(0).next()->tensors[0].device() == context().device()));
  shutdown();
}

namespace {

// Images of which some cannot be read.
class Damaged final : public ImageSource {
 public:
  explicit Damaged(std::vector<std::int64_t> bad) : bad_(std::move(bad)) {}
  std::string name() const override { return "made"; }
  std::int64_t size() const override { return 10; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int64_t class_count() const override { return 10; }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t /*least*/) const override {
    if (std::find(bad_.begin(), bad_.end(), index) != bad_.end()) {
      throw Error("/data/" + std::to_string(index) + ".jpg: a damaged JPEG");
    }
    scratch.assign(4, static_cast<std::uint8_t>(index));
    return ImageView::planar(scratch.data(), 1, 2, 2);
  }
  std::int64_t label(std::int64_t index) const override { return index; }

 private:
  std::vector<std::int64_t> bad_;
  std::vector<std::string> classes_;
};

}  // namespace

TEST_CASE("a sample that cannot be read is an error, or left out and counted") {
  const auto all_of = [](DataLoader::Pass pass) {
    std::vector<std::int64_t> labels;
    std::vector<std::int64_t> positions;
    while (const auto batch = pass.next()) {
      CHECK(batch->size() == (*batch)[0].size(0));
      for (std::int64_t i = 0; i < batch->size(); ++i) {
        labels.push_back((*batch)[1][i].item<std::int64_t>());
        CHECK(batch->indices[static_cast<std::size_t>(i)] == labels.back());
      }
      positions.push_back(pass.position());
    }
    return std::pair(labels, positions);
  };
  ImageBatches batches;
  batches.as_bytes = true;
  const auto loader = [&](std::vector<std::int64_t> bad) {
    return DataLoader::of_images(std::make_shared<Damaged>(std::move(bad)), batches,
                                 {.batch_size = 4, .workers = 2});
  };
  CHECK(message_of<SampleError>([&] { all_of(loader({5}).pass(0)); }) ==
        "data set made, sample 5: /data/5.jpg: a damaged JPEG");
  CHECK(loader({}).skipped() == nullptr);
  batches.bad_samples = BadSamples::skip;
  const DataLoader skipping = loader({0, 5, 9});
  const auto [labels, positions] = all_of(skipping.pass(0));
  CHECK(labels == std::vector<std::int64_t>{1, 2, 3, 4, 6, 7, 8});
  // Where a resume goes on does not depend on what was left out.
  CHECK(positions == std::vector<std::int64_t>{4, 8, 10});
  CHECK(skipping.skipped()->count() == 3);
  const auto [rest, ends] = all_of(skipping.pass(0, 4));
  CHECK(rest == std::vector<std::int64_t>{4, 6, 7, 8});
  CHECK(contains(message_of<Error>([&] {
                   all_of(loader({4, 5, 6, 7}).pass(0));
                 }),
                 "none of the 4 samples of a batch can be read; the last one: data set made"));
}
