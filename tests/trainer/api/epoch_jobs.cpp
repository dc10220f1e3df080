// Trainings by epochs(), that end in their midst and must go on as if they had not.
#include <ATen/ATen.h>
#include <signal.h>

#include <fstream>
#include <stdexcept>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/support/require.hpp"
#include "trainer/trainer.hpp"

namespace dtrain::train::test {
namespace {

// Lines of what each rank saw, that begin with their place.
std::ofstream seen_by(const std::filesystem::path& folder) {
  std::ofstream out(folder / ("seen-" + std::to_string(context().rank())), std::ios::app);
  out.precision(17);
  return out;
}

void end(const std::filesystem::path& folder, const torch::nn::Module& module) {
  write_weights(folder / ("final-" + std::to_string(context().rank()) + ".safetensors"), module);
  shutdown();
}

bool is_last_rank() {
  return context().rank() + 1 == context().world_size();
}

void come_to_grief(std::int64_t step) {
  if (step == number_of("TEST_DIE_AT", -1)) {
    session().finish();  // so that it is known which checkpoint is the last one
    ::raise(SIGKILL);
  }
  if (step == number_of("TEST_TERM_AT", -1) && is_last_rank()) ::raise(SIGTERM);
}

// Dropout, a schedule, two batches to a step, five steps to an epoch, a checkpoint at every second
// step, evaluations within and behind epochs.
//
// TEST_DIE_AT=STEP: SIGKILL behind that step; TEST_TERM_AT=STEP: SIGTERM to the last rank;
// TEST_TERM_IN_EVALUATION=N: SIGTERM to it in the Nth batch of the evaluations behind epochs.
int counted(const std::filesystem::path& folder) {
  init({.storage = folder / "storage", .log_every_n_steps = 1, .checkpoint_every_n_steps = 2});
  set_seed(5);
  auto model = prepare_model(std::make_shared<SmallNet>(16, true));
  prepare_optimizer(adamw(decay_groups(*model), {.lr = 1e-2, .weight_decay = 0.1}),
                    strategy_of(number_of("TEST_ZERO", 0) != 0 ? "zero1" : "ddp"));
  auto scheduler = prepare_scheduler(linear_schedule(1, 0.1, 12));
  const Samples all = make_samples(40 * context().world_size() - 1);  // one is there twice
  const DataLoader loader = prepare_data_loader(DataLoader::of_tensors(
      {all.inputs, all.labels}, {.batch_size = 4, .shuffle = true, .seed = 3}));
  const Samples some = make_samples(9);
  const DataLoader test = prepare_data_loader(
      DataLoader::of_tensors({some.inputs, some.labels}, {.batch_size = 2}), /*evaluates=*/true);
  const int break_at = number_of("TEST_BREAK_AT", -1);
  const auto evaluate = [&](int term_at) {
    const Evaluation evaluation;
    WeightedMean mean;
    int evaluated = 0;
    for (const auto& [inputs, labels] : test.epoch(0)) {
      if (++evaluated == term_at && is_last_rank()) ::raise(SIGTERM);
      at::rand({3});  // an evaluation may draw, and is then drawn again
      mean.add(at::cross_entropy_loss(model(inputs), labels).item<double>(), labels.size(0));
      if (evaluated == break_at) break;
    }
    return mean.over(context());
  };
  std::ofstream seen = seen_by(folder);
  for (const auto epoch : epochs(3)) {
    std::int64_t batches = 0;
    at::Tensor loss;
    for (const auto& [inputs, labels] : loader.epoch(epoch)) {
      loss = at::cross_entropy_loss(model(inputs), labels);
      backward(loss / 2);
      if (++batches % 2 != 0) continue;
      clip_gradients(0.5);
      optimizer_step();
      scheduler->after_step();
      log({{"loss", loss}});
      seen << "step" << global_step() << ": " << loss.item<double>() << std::endl;
      if (global_step() == 8) seen << "within: " << evaluate(-1) << std::endl;
      come_to_grief(global_step());
    }
    // What stands behind the epoch's data is done again after leaving in an evaluation.
    scheduler->after_step();
    const double before = evaluate(-1);
    seen << "before" << epoch << ": " << before << std::endl;
    const double tested = evaluate(epoch == 1 ? number_of("TEST_TERM_IN_EVALUATION", -1) : -1);
    seen << "epoch" << epoch << ": " << tested << std::endl;
    save_checkpoint({{"loss", loss}, {"tested", tested}});
  }
  require(global_step() == 15, "five steps an epoch");
  end(folder, *model);
  return 0;
}

// A stream of which rank 0 has 13 samples and the others 6, in batches of two: a checkpoint at each
// step.
struct CountedNumber {
  std::int64_t value;
};

class CountedNumbers final : public SampleStream<CountedNumber> {
 public:
  CountedNumbers(StreamShare share, std::int64_t epoch)
      : share_(share), epoch_(epoch), count_(share.part == 0 ? 13 : 6) {}
  std::optional<CountedNumber> next() override {
    if (given_ == count_) return std::nullopt;
    return CountedNumber{share_.part * 100 + (given_++ + epoch_) % count_};
  }

 private:
  StreamShare share_;
  std::int64_t epoch_;
  std::int64_t count_;
  std::int64_t given_ = 0;
};

int counted_stream(const std::filesystem::path& folder) {
  init({.storage = folder / "storage", .checkpoint_every_n_steps = 1});
  set_seed(5);
  auto model = prepare_model(std::make_shared<SmallNet>(16, true));
  prepare_optimizer(sgd(*model, {.lr = 0.1}));
  const DataLoader loader = prepare_data_loader(DataLoader::of_stream<CountedNumber>(
      "numbers",
      [](StreamShare share, std::int64_t epoch) {
        return std::make_unique<CountedNumbers>(share, epoch);
      },
      [](const std::vector<CountedNumber>& numbers) {
        std::vector<std::int64_t> values;
        for (const CountedNumber& number : numbers) values.push_back(number.value);
        const at::Tensor value = at::tensor(values, at::kLong);
        return Batch{{at::sin(at::arange(8) * 0.7 + value.unsqueeze(1)), value}, {}};
      },
      {.batch_size = 2}));
  std::ofstream seen = seen_by(folder);
  for (const auto epoch : epochs(2)) {
    for (const auto& [inputs, values] : loader.epoch(epoch)) {
      backward(at::cross_entropy_loss(model(inputs), values.remainder(3)));
      optimizer_step();
      seen << "step" << global_step() << ": " << values[0].item<std::int64_t>() << std::endl;
      come_to_grief(global_step());
    }
    save_checkpoint();
  }
  require(global_step() == 14, "as many steps as the longest part has batches");
  end(folder, *model);
  return 0;
}

// Who reads what is logged: rank 0, where it is reported.
// Ends as a program that forgets shutdown() does.
int no_shutdown(const std::filesystem::path& folder) {
  init({.storage = folder / "storage"});
  auto model = prepare_model(std::make_shared<SmallNet>(4, false));
  prepare_optimizer(sgd(*model));
  const Samples all = make_samples(4 * context().world_size());
  const DataLoader loader =
      prepare_data_loader(DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 2}));
  for (const auto epoch : epochs(1)) {
    for (const auto& [inputs, labels] : loader.epoch(epoch)) {
      backward(at::cross_entropy_loss(model(inputs), labels));
      optimizer_step();
    }
    save_checkpoint();
  }
  return 0;
}

int late(const std::filesystem::path& /*folder*/) {
  init({.log_every_n_steps = 4});
  auto model = prepare_model(std::make_shared<SmallNet>(4, false));
  prepare_optimizer(sgd(*model));
  const Samples all = make_samples(10 * context().world_size());
  const DataLoader loader =
      prepare_data_loader(DataLoader::of_tensors({all.inputs, all.labels}, {.batch_size = 1}));
  int reads = 0;
  for (const auto epoch : epochs(1)) {
    for (const auto& [inputs, labels] : loader.epoch(epoch)) {
      backward(at::cross_entropy_loss(model(inputs), labels));
      optimizer_step();
      log({{"read", [&reads] { return static_cast<double>(++reads); }}});
    }
  }
  require(reads == (context().rank() == 0 ? 2 : 0), "read " + std::to_string(reads) + " times");
  report({{"read", [&reads] { return static_cast<double>(++reads); }}});
  require(reads == (context().rank() == 0 ? 3 : 0), "a report is rank 0's");
  shutdown();
  return 0;
}

}  // namespace

const ApiJobs& epoch_jobs() {
  static const ApiJobs jobs{{"counted", counted},
                            {"counted_stream", counted_stream},
                            {"late", late},
                            {"no_shutdown", no_shutdown}};
  return jobs;
}

}  // namespace dtrain::train::test
