#include "trainer/api/trainer.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <map>
#include <sstream>

#include "tests/trainer/api/api_jobs.hpp"
#include "tests/trainer/api/expect.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/jobs.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::expect;
using test::launch;
using test::message_of;
using test::read_file;
using test::small;
using test::SmallModule;
using test::TemporaryFolder;
using test::Variables;

namespace {

// The same training by hand: SGD with lr 0.1 on the mean gradient of each window.
void train_by_hand(torch::nn::Module& module, test::SmallNet& net, std::int64_t window_size,
                   std::int64_t batches, std::optional<double> clip) {
  const test::Samples all = test::make_samples(40);
  const auto parameters = named_parameters(module);
  for (std::int64_t first = 0; first < batches; first += window_size) {
    const std::int64_t size = std::min(window_size, batches - first);
    // One backward of the joined batches: all have 4 samples.
    at::cross_entropy_loss(net.forward(all.inputs.narrow(0, first * 4, size * 4)),
                           all.labels.narrow(0, first * 4, size * 4))
        .backward();
    if (clip) clip_gradient_norm(parameters, *clip);
    const at::NoGradGuard no_grad;
    for (const NamedParameter& p : parameters) {
      at::Tensor parameter = p.tensor;
      parameter.add_(parameter.grad(), -0.1);
      parameter.mutable_grad().reset();
    }
  }
}

bool near(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto theirs = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    if (!item.value().allclose(theirs[item.key()], 1e-4, 1e-5)) return false;
  }
  return true;
}

// How often things happened.
class Counter final : public Callback {
 public:
  std::string name() const override { return "counter"; }
  void on_train_batch_end(Trainer&, Module&) override { ++batches; }
  void on_before_optimizer_step(Trainer&, Module&, Optimizer&) override { ++before_step; }
  void on_step_end(Trainer&, Module&) override { ++steps; }
  void on_validation_end(Trainer& trainer, Module&) override {
    validated_at.push_back(trainer.global_step());
  }
  void on_train_epoch_end(Trainer&, Module&) override { ++epochs; }
  int batches = 0;
  int before_step = 0;
  int steps = 0;
  int epochs = 0;
  std::vector<std::int64_t> validated_at;
};

}  // namespace

TEST_CASE(
    "accumulation: a window's step has the mean of its batches, the last one of what it has") {
  for (const bool clips : {false, true}) {
    auto module = small();
    auto by_hand = small();
    const auto counter = std::make_shared<Counter>();
    TrainerOptions options;
    options.accumulate_grad_batches = 4;  // of 10: 4, 4, 2
    options.callbacks = {counter};
    if (clips) options.gradient_clip_val = 0.2;
    Trainer trainer(options);
    CHECK(trainer.fit(module) == 0);
    CHECK(trainer.global_step() == 3);
    CHECK(counter->batches == 10);
    CHECK(counter->before_step == 3);
    CHECK(counter->steps == 3);
    const double norm = clips ? trainer.callback_metrics().at("grad_norm") : 1;
    CHECK(norm > 0.2);  // so that clipping did something, at the boundary only
    train_by_hand(*by_hand, by_hand->net(), 4, 10, options.gradient_clip_val);
    CHECK(near(*module, *by_hand));
  }
}

TEST_CASE("a training that is killed within a window goes on at the last one's end, bit-exactly") {
  const auto weights = [](const TemporaryFolder& folder, int rank) {
    return read_tensors(folder / ("final-" + std::to_string(rank) + ".safetensors"));
  };
  for (const int ranks : {1, 2}) {
    for (const char* strategy : {"", "1"}) {
      if (ranks == 1 && *strategy != 0) continue;
      Variables env;
      if (*strategy != 0) env["TEST_ZERO"] = strategy;
      const TemporaryFolder whole;
      expect("fit", ranks, whole, 0, env);
      // Micro batch 16 is the second of a window, 27 the third.
      for (const auto& [variable, at, code] :
           {std::tuple{"TEST_DIE_AT", "16", 128 + 9}, {"TEST_TERM_AT", "27", 143}}) {
        const char* const how = variable;  // clang 14 captures no structured binding
        CAPTURE(ranks);
        CAPTURE(how);
        const TemporaryFolder folder;
        Variables dying = env;
        dying[variable] = at;
        expect("fit", ranks, folder, code, dying);
        CHECK(!std::filesystem::exists(folder / "final-0.safetensors"));
        expect("fit", ranks, folder, 0, env);
        CHECK(contains(read_file(folder / "rank-0.log"), "resumed from"));
        for (int rank = 0; rank < ranks; ++rank) {
          const TensorMap expected = weights(whole, rank);
          for (const auto& [name, tensor] : weights(folder, rank)) {
            CHECK(tensor.equal(expected.at(name)));
          }
        }
      }
    }
  }
}

TEST_CASE("how long, and how much of the data") {
  const auto run = [](TrainerOptions options) {
    const auto counter = std::make_shared<Counter>();
    options.callbacks.push_back(counter);
    Trainer trainer(options);
    trainer.fit(small(false));
    return counter;
  };
  TrainerOptions options;
  SUBCASE("epochs") {
    options.max_epochs = 2;
    const auto counter = run(options);
    CHECK(counter->steps == 20);
    CHECK(counter->epochs == 2);
    CHECK(counter->validated_at == std::vector<std::int64_t>{10, 20});
  }
  SUBCASE("steps, over epochs") {
    options.max_epochs = -1;
    options.max_steps = 13;
    CHECK(run(options)->steps == 13);
  }
  SUBCASE("a part of an epoch, and a number of batches") {
    options.limit_train_batches = 0.5;
    options.limit_val_batches = 0;
    CHECK(run(options)->batches == 5);
    CHECK(run(options)->validated_at.empty());
    options.limit_train_batches = 3;
    CHECK(run(options)->batches == 3);
  }
  SUBCASE("validation within an epoch") {
    options.val_check_interval = 4;
    CHECK(run(options)->validated_at == std::vector<std::int64_t>{4, 8});
    options.val_check_interval = 0.25;
    CHECK(run(options)->validated_at == std::vector<std::int64_t>{2, 4, 6, 8, 10});
  }
  SUBCASE("validation within a window comes at its end") {
    options.val_check_interval = 5;
    options.accumulate_grad_batches = 4;
    CHECK(run(options)->validated_at == std::vector<std::int64_t>{2, 3});
  }
  SUBCASE("one batch of each") {
    const TemporaryFolder folder;
    options.fast_dev_run = true;
    options.max_epochs = 9;
    options.accumulate_grad_batches = 4;
    options.default_root_dir = folder.path() / "storage";
    options.metrics_file = folder.path() / "metrics";
    const auto counter = run(options);
    CHECK(counter->batches == 1);
    CHECK(counter->validated_at.size() == 1);
    CHECK(!std::filesystem::exists(folder.path() / "metrics"));
    CHECK(!std::filesystem::exists(folder.path() / "storage/checkpoints/checkpoint_000000"));
  }
  SUBCASE("one batch of each, also where there is a checkpoint") {
    const TemporaryFolder folder;
    options.default_root_dir = folder.path() / "storage";
    run(options);
    CHECK(std::filesystem::exists(folder.path() / "storage/checkpoints/checkpoint_000000"));
    options.fast_dev_run = true;
    const auto counter = run(options);
    CHECK(counter->batches == 1);
    CHECK(counter->validated_at == std::vector<std::int64_t>{1});
  }
}

TEST_CASE("options that make no sense are refused with their names") {
  const auto problem = [](auto change) {
    TrainerOptions options;
    change(options);
    return message_of<Error>([&] {
      Trainer trainer(options);
      trainer.fit(small());
    });
  };
  CHECK(contains(problem([](auto& o) { o.accumulate_grad_batches = 0; }), "accumulate_grad"));
  CHECK(contains(problem([](auto& o) { o.precision = "8"; }), "precision '8'"));
  CHECK(contains(problem([](auto& o) { o.strategy = "fsdp"; }), "strategy 'fsdp'"));
  CHECK(contains(problem([](auto& o) { o.max_epochs = -1; }), "max_epochs"));
  CHECK(contains(problem([](auto& o) {
                   o.max_epochs = -1;
                   o.max_steps = 3;
                   o.limit_train_batches = 0;
                 }),
                 "max_steps would never be reached"));
  CHECK(contains(problem([](auto& o) { o.limit_train_batches = 1.5; }), "limit_train_batches"));
  CHECK(contains(problem([](auto& o) { o.gradient_clip_val = 0; }), "gradient_clip_val"));
  CHECK(contains(problem([](auto& o) {
                   o.callbacks = {std::make_shared<Counter>(), std::make_shared<Counter>()};
                 }),
                 "'counter'"));
  CHECK(contains(problem([](auto& o) {
                   EarlyStopping::Options stopping;
                   stopping.monitor = "no_such";
                   o.callbacks = {std::make_shared<EarlyStopping>(stopping)};
                 }),
                 "no metric 'no_such'"));
  for (const int count : {0, -2}) {
    const std::string words =
        message_of<Error>([&] { ModelCheckpoint(ModelCheckpoint::Options{.save_top_k = count}); });
    CHECK(words == "ModelCheckpoint: save_top_k is -1 (all) or at least 1");
  }
  init();
  CHECK(contains(problem([](auto& o) {
                   o.callbacks = {std::make_shared<ModelCheckpoint>(
                       ModelCheckpoint::Options{.save_top_k = 2})};
                 }),
                 "its session has the 'retention'"));
  shutdown();
  CHECK((strategy_of("horovod") == strategy_of("ring")));
}

TEST_CASE("what a checkpoint knows nothing of begins at the weights that it has") {
  const TemporaryFolder folder;
  const auto fit = [&](bool plain, std::vector<std::shared_ptr<Callback>> callbacks) {
    TrainerOptions options;
    options.max_epochs = 1;
    options.default_root_dir = folder / "storage";
    options.callbacks = std::move(callbacks);
    auto trainer = std::make_unique<Trainer>(options);
    auto module = small(plain);
    trainer->fit(module);
    return std::pair(std::move(trainer), std::move(module));
  };
  auto trained = fit(true, {}).second;
  const auto ema = std::make_shared<EmaWeights>(0.999);
  const auto again = fit(true, {ema});
  CHECK(again.first->global_step() == 10);
  CHECK(near(*again.second, *trained));
  for (const auto& [name, average] : ema->average()) {
    CHECK(average.equal(again.second->named_parameters()[name]));
  }
}

TEST_CASE("a schedule that a checkpoint knows nothing of begins at its own rate") {
  class Rated final : public SmallModule {
   public:
    Rated(double lr, SchedulePtr schedule)
        : SmallModule({}), lr_(lr), schedule_(std::move(schedule)) {}
    Optimizers configure_optimizers() override {
      return {std::make_shared<Sgd>(trained_parameters(), SgdOptions{.lr = lr_}), schedule_};
    }

   private:
    double lr_;
    SchedulePtr schedule_;
  };
  const TemporaryFolder folder;
  TrainerOptions options;
  options.max_epochs = 1;
  options.default_root_dir = folder / "storage";
  Trainer(options).fit(std::make_shared<Rated>(0.1, nullptr));
  Trainer again(options);
  again.fit(std::make_shared<Rated>(1e-3, exponential_schedule(0.5)));
  CHECK(again.global_step() == 10);
  CHECK(again.optimizer().lr() == 1e-3);
}

TEST_CASE("averaged weights are validated with, and trained weights stay") {
  const auto ema = std::make_shared<EmaWeights>(0.5);
  auto module = small();
  auto by_hand = small();
  TrainerOptions options;
  options.callbacks = {ema};
  Trainer trainer(options);
  trainer.fit(module);
  train_by_hand(*by_hand, by_hand->net(), 1, 10, {});
  CHECK(near(*module, *by_hand));
  // The average lags behind: it is neither the weights nor what they were.
  const auto& [name, average] = *ema->average().begin();
  const at::Tensor weights = module->named_parameters()[name];
  const at::Tensor before = small()->named_parameters()[name];
  const double lag = (average - weights).abs().max().item<double>();
  CHECK(lag > 0);
  CHECK(lag < (average - before).abs().max().item<double>());
}

TEST_CASE("weights that are tied have one average, and come back after each validation") {
  const auto tied = [] {
    auto module = small();
    module->register_parameter("tied", module->net().named_parameters()["first.weight"]);
    return module;
  };
  const auto ema = std::make_shared<EmaWeights>(0.5);
  auto module = tied();
  auto by_hand = tied();
  TrainerOptions options;
  options.val_check_interval = 3;
  options.callbacks = {ema};
  Trainer trainer(options);
  trainer.fit(module);
  train_by_hand(*by_hand, by_hand->net(), 1, 10, {});
  CHECK(near(*module, *by_hand));
  CHECK(ema->average().at("tied").is_same(ema->average().at("net.first.weight")));
  CHECK_FALSE(ema->average().at("tied").equal(module->named_parameters()["tied"]));
}

TEST_CASE("the session goes on keeping what a Trainer gave it when the Trainer is gone") {
  const TemporaryFolder folder;
  InitOptions options;
  options.session.storage = folder / "storage";
  init(std::move(options));
  std::weak_ptr<EarlyStopping> stopping;
  {
    TrainerOptions its;
    const auto callback = std::make_shared<EarlyStopping>(EarlyStopping::Options{});
    stopping = callback;
    its.callbacks = {callback, std::make_shared<EmaWeights>(0.5)};
    Trainer trainer(its);
    trainer.fit(small(false));  // with a schedule
  }
  REQUIRE(!stopping.expired());
  report({}, Place{11, 1, 0});
  const auto path = session().finish();
  REQUIRE(path.has_value());
  const auto shard = *path / "shard-00000-of-00001";
  const auto state = nlohmann::json::parse(read_file(shard / "state.json"));
  CHECK(state["kept"]["callback/early_stopping"]["waited"] == 0);
  CHECK(state["kept"]["scheduler"].is_object());
  CHECK(!read_tensors(shard / "ema.safetensors").empty());
  shutdown();
  CHECK(stopping.expired());
}

TEST_CASE("a profile of some steps is a trace") {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.profile = ProfileOptions{.first_step = 3, .last_step = 4, .trace = folder / "trace.json"};
  Trainer trainer(options);
  trainer.fit(small());
  const std::string trace = read_file(folder / "trace.json");
  CHECK(contains(trace, "traceEvents"));
  CHECK(contains(trace, "aten::"));
}

TEST_CASE("a training that ends within the profile's range has one of the steps that it had") {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.max_steps = 4;
  options.profile = ProfileOptions{.first_step = 3, .last_step = 9, .trace = folder / "trace.json"};
  Trainer trainer(options);
  trainer.fit(small());
  CHECK(contains(read_file(folder / "trace.json"), "aten::"));
}

TEST_CASE("bf16 and fp16 train too") {
  for (const char* precision : {"bf16", "16"}) {
    CAPTURE(precision);
    TrainerOptions options;
    options.precision = precision;
    options.max_epochs = 3;
    options.gradient_clip_val = 1.0;
    options.scaler.init_scale = 1e10;  // the first steps are left out, until it has fallen
    Trainer trainer(options);
    auto module = small();
    const at::Tensor before = module->parameters()[0].detach().clone();
    trainer.fit(module);
    CHECK((module->parameters()[0].scalar_type() == c10::ScalarType::Float));
    CHECK(module->parameters()[0].isfinite().all().item<bool>());
    CHECK(!module->parameters()[0].equal(before));
  }
}

TEST_CASE("the functions, with ZeRO-1, and again from the checkpoint") {
  const TemporaryFolder folder;
  expect("functions", 2, folder, 0);
  expect("functions", 2, folder, 0, {{"TEST_EPOCH", "1"}});
}

TEST_CASE("a checkpoint after the first step: what it tells of DDP is every rank's work") {
  const TemporaryFolder folder;
  const Variables env{{"DTRAIN_TRANSPORT", "gloo"}};
  expect("early_checkpoint", 3, folder, 0, env);
  expect("early_checkpoint", 3, folder, 0, {{"DTRAIN_TRANSPORT", "gloo"}, {"TEST_STEP", "3"}});
}

TEST_CASE("functions before init() say what is missing") {
  CHECK(contains(message_of<Error>([] { context(); }), "init()"));
  init();
  CHECK(contains(message_of<Error>([] { zero_grad(); }), "prepare_model"));
  CHECK(contains(message_of<Error>([] { init(); }), "already"));
  shutdown();
}

TEST_CASE("a shutdown() whose checkpoint fails is a shutdown all the same") {
  const TemporaryFolder folder;
  InitOptions options;
  options.session.storage = folder / "storage";
  init(options);
  prepare_optimizer(sgd(*prepare_model(std::make_shared<test::SmallNet>(4, false))));
  session().keep_tensors(std::string(300, 'n'), [] { return TensorMap{}; });
  report({}, Place{1, 0, 0});
  CHECK(contains(message_of<Error>([] { shutdown(); }), "File name too long"));
  CHECK(!is_initialized());
  init();
  shutdown();
}

TEST_CASE("what is logged is the mean over all samples of all ranks") {
  const TemporaryFolder folder;
  expect("logging", 2, folder, 0);
}

TEST_CASE("one rank's stop() is every rank's") {
  const TemporaryFolder folder;
  expect("stops", 2, folder, 0);
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder own;
    expect("stops_within", ranks, own, 0);
  }
}

TEST_CASE("a stream of one rank: its end, its beginning anew, and a place in it") {
  class Counting final : public SampleStream<int> {
   public:
    Counting(int count, std::int64_t epoch) : count_(count), next_(static_cast<int>(epoch) * 10) {}
    std::optional<int> next() override {
      return count_-- > 0 ? std::optional(next_++) : std::nullopt;
    }

   private:
    int count_;
    int next_;
  };
  int opened = 0;
  const auto loader_of = [&](const std::vector<int>& counts, DataLoaderOptions options) {
    return DataLoader::of_stream<int>(
        "counting",
        [&opened, counts](StreamShare, std::int64_t epoch) {
          const auto which =
              std::min<std::size_t>(static_cast<std::size_t>(opened++), counts.size() - 1);
          return std::make_unique<Counting>(counts[which], epoch);
        },
        [](const std::vector<int>& samples) {
          return Batch{{at::tensor(samples, at::kLong)}, {}};
        },
        options);
  };
  const DataLoader loader = loader_of({5}, {.batch_size = 2});
  CHECK(loader.is_stream());
  CHECK(loader.batches() == DataLoader::kUnknown);
  auto pass = loader.pass(3);
  CHECK(pass.next()->tensors[0].equal(at::tensor({30, 31}, at::kLong)));
  CHECK(pass.next()->size() == 2);
  CHECK(pass.next()->size() == 1);
  CHECK_FALSE(pass.has_ended());
  CHECK_FALSE(pass.next().has_value());
  CHECK(pass.has_ended());
  CHECK_FALSE(pass.is_empty());
  pass.again();
  CHECK(pass.next()->tensors[0].equal(at::tensor({30, 31}, at::kLong)));
  // Four batches of a part of three: the next one is the second, in its second round.
  auto later = loader.pass(3, pass.position_after(7, 4));
  CHECK(later.has_ended());
  CHECK(later.next()->tensors[0].equal(at::tensor({32, 33}, at::kLong)));
  CHECK(later.position_after(2, 1) == 10);

  opened = 0;
  auto once = loader_of({1, 0}, {.batch_size = 2}).pass(0);
  CHECK(once.next().has_value());
  CHECK_FALSE(once.next().has_value());
  once.again();
  CHECK(contains(message_of<Error>([&] { once.next(); }), "has none when it is opened again"));
  CHECK(contains(message_of<Error>([&] { loader_of({1}, {.shuffle = true}); }), "shuffle"));
  CHECK(contains(message_of<Error>([] { Limit(0.5).of(DataLoader::kUnknown, "limit"); }),
                 "length of a stream"));
  CHECK(Limit(1.0).of(DataLoader::kUnknown, "limit") == DataLoader::kUnknown);
  CHECK(Limit(7).of(DataLoader::kUnknown, "limit") == 7);
}

TEST_CASE("a stream: uneven parts train together, and a resume sees what is left, bit-exactly") {
  const auto weights = [](const TemporaryFolder& folder) {
    return read_tensors(folder / "final-1.safetensors");
  };
  const auto lines = [](const TemporaryFolder& folder, int rank) {
    std::map<std::string, std::string> seen;
    std::istringstream in(read_file(folder / ("seen-" + std::to_string(rank))));
    for (std::string line; std::getline(in, line);) {
      const auto [at, fresh] = seen.emplace(line.substr(0, line.find(':')), line);
      if (!fresh) CHECK(at->second == line);
    }
    return seen;
  };
  for (const char* window : {"1", "3"}) {
    CAPTURE(window);
    const TemporaryFolder whole;
    expect("streams", 2, whole, 0, {{"TEST_WINDOW", window}});
    // 7 batches of rank 0, and 3 of rank 1, which begins anew until rank 0 has ended.
    const auto first = lines(whole, 0);
    const auto second = lines(whole, 1);
    CHECK(first.size() == 14);
    CHECK(second.size() == 14);
    CHECK(first.at("0.0") == "0.0: 0 1");
    CHECK(first.at("0.6") == "0.6: 12");
    CHECK(first.at("1.0") == "1.0: 1 2");
    CHECK(second.at("0.2") == "0.2: 104 105");
    CHECK(second.at("0.3") == "0.3: 100 101");
    CHECK(second.at("0.6") == "0.6: 100 101");
    CHECK(second.at("1.6") == "1.6: 101 102");
    for (const char* dies : {"2", "5", "14"}) {
      CAPTURE(dies);
      const TemporaryFolder folder;
      expect("streams", 2, folder, 128 + 9, {{"TEST_WINDOW", window}, {"TEST_DIE_AT", dies}});
      expect("streams", 2, folder, 0, {{"TEST_WINDOW", window}});
      CHECK(lines(folder, 0) == first);
      CHECK(lines(folder, 1) == second);
      const TensorMap expected = weights(whole);
      for (const auto& [name, tensor] : weights(folder)) CHECK(tensor.equal(expected.at(name)));
    }
  }
  const TemporaryFolder folder;
  const auto exits = launch("streams", 2, folder.path(), {{"TEST_SHORT", "0"}});
  for (const test::Exit& exit : exits) {
    CHECK(exit.code == 1);
    CHECK(contains(exit.error_file, "rank 1's part of the training stream has no batch"));
  }
}

TEST_CASE("creators, as RaySGD's TorchTrainer") {
  const TemporaryFolder folder;
  expect("creators", 2, folder, 0);
}
