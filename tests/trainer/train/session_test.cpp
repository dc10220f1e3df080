#include "trainer/train/session.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "tests/trainer/support/fake_supervisor.hpp"
#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using nlohmann::json;
using test::contains;
using test::message_of;

namespace {

Session::Options quiet(std::optional<std::filesystem::path> storage = std::nullopt) {
  return {.storage = std::move(storage), .retention = {}, .print_metrics = false};
}

}  // namespace

TEST_CASE("alone, the session commits and finds its checkpoints itself") {
  const test::TemporaryFolder storage;
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {.lr = 0.25});
  at::Tensor drawn;
  at::Tensor saved;
  {
    Session session(context, quiet(storage.path()));
    CHECK_FALSE(session.resume(*model, optimizer).has_value());
    session.report(Place{12, 3, 40}, {{"a", 1}}, *model, optimizer);
    drawn = at::rand({4});  // what comes after the checkpoint
    saved = model->parameters()[0].detach().clone();
    at::NoGradGuard no_grad;
    model->parameters()[0].zero_();  // the checkpoint has its copy
    CHECK(session.finish() == storage / "checkpoints/checkpoint_000000");
    CHECK(session.last_checkpoint() == storage / "checkpoints/checkpoint_000000");
    CHECK(session.blocked().checkpoints == 1);
  }

  auto other = test::make_small_model(2);
  Adam other_optimizer(named_parameters(*other), {.lr = 0.5});
  Session session(context, quiet(storage.path()));
  const auto place = session.resume(*other, other_optimizer);
  REQUIRE(place.has_value());
  CHECK(place->step == 12);
  CHECK(place->epoch == 3);
  CHECK(place->position == 40);
  CHECK(other_optimizer.lr() == 0.25);
  CHECK(other->parameters()[0].equal(saved));
  CHECK(at::rand({4}).equal(drawn));
}

TEST_CASE("alone, what a run began from stays until it ends") {
  const test::TemporaryFolder storage;
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {.lr = 0.25});
  Session::Options one_kept = quiet(storage.path());
  one_kept.retention.num_to_keep = 1;
  const auto report = [&](Session& session, std::int64_t step) {
    session.report(Place{step, 0, step}, {}, *model, optimizer);
    session.finish();
  };
  const auto kept = [&](std::int64_t number) {
    return std::filesystem::exists(storage / "checkpoints" / checkpoint_name(number));
  };
  {
    Session session(context, one_kept);
    report(session, 1);
  }
  {
    Session session(context, one_kept);
    REQUIRE(session.resume(*model, optimizer).has_value());
    report(session, 2);
    report(session, 3);
    CHECK(kept(0));
    CHECK_FALSE(kept(1));
    CHECK(kept(2));
  }
  Session session(context, one_kept);
  REQUIRE(session.resume(*model, optimizer).has_value());
  report(session, 4);
  CHECK_FALSE(kept(0));
  CHECK(kept(2));
  CHECK(kept(3));
}

TEST_CASE("a checkpoint for which the disk has no room waits for it") {
  if (::getuid() != 0) {
    MESSAGE("skipped: a disk that is full needs root");
    return;
  }
  const test::TemporaryFolder folder;
  // A thread that sees a disk of its own, as do those that it starts.
  std::thread([&] {
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("disk", folder.path().c_str(), "tmpfs", 0, "size=1m") == 0;
    CHECK_MESSAGE(mounted, "no disk of its own: ", std::generic_category().message(errno));
    if (!mounted) return;
    Context context = Context::join(Environment{}, {});
    auto model = test::make_small_model(1);
    Adam optimizer(named_parameters(*model), {});
    Session session(context, quiet(folder / "storage"));
    session.report(Place{1, 0, 1}, {}, *model, optimizer);
    const auto first = session.finish();
    {
      std::ofstream filler(folder / "filler");
      while (filler << std::string(4096, 'x') << std::flush) {
      }
    }
    const int said = ::memfd_create("stderr", MFD_CLOEXEC);
    const int before = ::dup(STDERR_FILENO);
    ::dup2(said, STDERR_FILENO);
    session.report(Place{2, 0, 2}, {}, *model, optimizer);
    std::string text(1000, 0);
    while (!contains(text, "the checkpoint of step 2 waits for room")) {
      std::this_thread::yield();
      ::pread(said, text.data(), text.size(), 0);
    }
    ::dup2(before, STDERR_FILENO);
    ::close(before);
    ::close(said);
    CHECK(session.last_checkpoint() == first);
    std::filesystem::remove(folder / "filler");
    const auto second = session.finish();
    CHECK(second != first);
    CHECK(std::filesystem::exists(second.value() / "manifest.json"));
  }).join();
}

TEST_CASE("a checkpoint that does not fit is refused with its file") {
  const test::TemporaryFolder storage;
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  Session session(context, quiet(storage.path()));
  session.report(Place{}, {}, *model, optimizer);
  const auto path = session.finish().value();
  const auto refusal = [&](torch::nn::Module& module, Optimizer& its) {
    return message_of<Error>([&] { session.resume(module, its); });
  };
  auto wide = test::make_small_model(1, {.hidden = 17});
  Adam wide_optimizer(named_parameters(*wide), {});
  CHECK(contains(refusal(*wide, wide_optimizer), "'first.bias' is Float[16]"));
  CHECK(contains(refusal(*wide, wide_optimizer), "while loading " + path.string()));
  Sgd sgd(named_parameters(*model), {});
  CHECK(contains(refusal(*model, sgd), "the optimizer was Adam, this one is SGD"));
  const auto weights = path / "shard-00000-of-00001/model.safetensors";
  std::string content = test::read_file(weights);
  content.back() = static_cast<char>(~content.back());
  test::write_file(weights, content);
  CHECK(contains(refusal(*model, optimizer), "does not match its SHA-256"));
}

namespace {

void damage(const std::filesystem::path& checkpoint) {
  const auto weights = checkpoint / "shard-00000-of-00001/model.safetensors";
  std::string content = test::read_file(weights);
  content.back() = static_cast<char>(~content.back());
  test::write_file(weights, content);
}

}  // namespace

TEST_CASE("a damaged checkpoint is set aside for the one before it") {
  const test::TemporaryFolder storage;
  const auto checkpoints = storage / "checkpoints";
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  Session session(context, quiet(storage.path()));
  for (std::int64_t step = 1; step <= 3; ++step) {
    session.report(Place{step, 0, 0}, {}, *model, optimizer);
    session.finish();
  }
  damage(checkpoints / "checkpoint_000002");
  std::filesystem::remove(checkpoints /
                          "checkpoint_000001/shard-00000-of-00001/optimizer.safetensors");
  CHECK(session.resume(*model, optimizer)->step == 1);
  CHECK_FALSE(std::filesystem::exists(checkpoints / "checkpoint_000002"));
  CHECK(std::filesystem::exists(checkpoints / "checkpoint_000002.bad/manifest.json"));
  session.report(Place{4, 0, 0}, {}, *model, optimizer);
  CHECK(session.finish() == checkpoints / "checkpoint_000003");  // its number is not given again
  CHECK(session.resume(*model, optimizer)->step == 4);

  // With no whole one left nothing begins anew by itself.
  damage(checkpoints / "checkpoint_000003");
  damage(checkpoints / "checkpoint_000000");
  const auto refusal = [&] { session.resume(*model, optimizer); };
  CHECK(contains(message_of<Error>(refusal), "remove it to begin anew"));
  CHECK(contains(message_of<Error>(refusal), "checkpoint_000000"));
  CHECK(std::filesystem::exists(checkpoints / "checkpoint_000003"));
}

TEST_CASE("under dtrain a damaged checkpoint is passed over, and stays the head's") {
  const test::TemporaryFolder folder;
  const test::FakeSupervisor supervisor(folder / "s");
  Context alone = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  {
    Session session(alone, quiet(folder / "storage"));
    for (std::int64_t step = 1; step <= 3; ++step) {
      session.report(Place{step, 0, 0}, {}, *model, optimizer);
      session.finish();
    }
  }
  const auto checkpoints = folder / "storage/checkpoints";
  damage(checkpoints / "checkpoint_000001");
  Environment env;
  env.checkpoint = checkpoints / "checkpoint_000001";
  {
    // A person who names a checkpoint means that one.
    Context context = Context::join(env, {});
    Session session(context, quiet());
    CHECK(contains(message_of<Error>([&] { session.resume(*model, optimizer); }), "SHA-256"));
  }
  env.report_socket = folder / "s";
  Context context = Context::join(env, {});
  Session session(context, quiet());
  CHECK(session.resume(*model, optimizer)->step == 1);  // never a newer one
  CHECK(std::filesystem::exists(checkpoints / "checkpoint_000001"));
}

TEST_CASE("without a storage path a checkpoint is an error that says what to do") {
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  Session session(context, quiet());
  CHECK_FALSE(session.can_checkpoint());
  CHECK(contains(message_of<Error>([&] { session.report(Place{}, {}, *model, optimizer); }),
                 "give a storage path"));
}

TEST_CASE("under dtrain the head commits, and says where to resume from") {
  const test::TemporaryFolder folder;
  test::FakeSupervisor supervisor(folder / "s");
  Environment env;
  env.job = "mnist-k3x7qa";
  env.report_socket = folder / "s";
  env.storage_path = folder / "storage";
  env.attempt = 2;
  Context context = Context::join(env, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  Session session(context, quiet(folder / "ignored"));
  session.report(Place{7, 0, 0}, {{"accuracy", 0.5}}, *model, optimizer);
  const json metrics = supervisor.read_report();
  CHECK(metrics["type"] == "metrics");
  CHECK(metrics["metrics"].contains("checkpoint_blocked_ms"));
  // The shard comes on a connection of its own, from behind the training.
  supervisor.hang_up();
  const json line = supervisor.read_report();
  CHECK(line["type"] == "checkpoint");
  CHECK(line["metrics"] == json{{"accuracy", 0.5}});
  CHECK(line["path"] ==
        (temporary_folder(folder / "storage", 2, 7) / "shard-00000-of-00001").string());
  CHECK_FALSE(session.last_checkpoint().has_value());
  const auto committed =
      commit_checkpoint(folder / "storage", {.job = env.job,
                                             .attempt = 2,
                                             .step = 7,
                                             .world_size = 1,
                                             .shards = 1,
                                             .metrics = metrics_from_json(line["metrics"])});
  supervisor.answer(json({{"ok", true}, {"path", committed.string()}}).dump());
  CHECK(session.finish() == committed);

  session.report(Place{8, 0, 0}, {}, *model, optimizer);
  CHECK(supervisor.read_report()["step"] == 8);
  supervisor.answer(R"({"error":"no space"})");
  // Told where it is waited for, once; the training may go on.
  CHECK(contains(message_of<Error>([&] {
                   session.report(Place{9, 0, 0}, {}, *model, optimizer);
                 }),
                 "checkpoint of step 8 was not committed: no space"));
  CHECK(session.finish() == committed);

  env.checkpoint = committed;
  Context next = Context::join(env, {});
  Session resumed(next, quiet());
  CHECK(resumed.resume(*model, optimizer)->step == 7);
}

TEST_CASE("what is kept beside model and optimizer comes back") {
  const test::TemporaryFolder storage;
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  int counter = 41;
  at::Tensor average = at::full({3}, 2.5);
  const auto keep = [&](Session& session, const std::string& name) {
    session.keep(name, {.save =
                            [&] {
                              return json{{"n", counter}};
                            },
                        .load = [&](const json& state) { counter = state.at("n").get<int>(); },
                        .alike = true});
    session.keep(name + " of the rank",
                 {.save = [&] { return json(counter + 1); },
                  .load = [&](const json& state) { counter += state.get<int>(); },
                  .alike = false});
    session.keep_tensors("ema", [&] { return TensorMap{{"w", average}}; });
  };
  {
    Session session(context, quiet(storage.path()));
    keep(session, "counter");
    CHECK_THROWS_AS(session.keep("counter", {}), Error);
    CHECK_THROWS_AS(session.keep_tensors("model", {}), Error);
    session.report(Place{}, {}, *model, optimizer);
    session.finish();
  }
  counter = 0;
  average.zero_();
  Session session(context, quiet(storage.path()));
  keep(session, "counter");
  // What the checkpoint has nothing of begins when model and optimizer are loaded.
  at::Tensor newer = at::zeros({3});
  std::string begun;
  session.keep("newer", {.save = [] { return json(1); },
                         .load = [&](const json&) { begun += "loaded"; },
                         .alike = true,
                         .begin = [&] { begun += "state" + std::to_string(optimizer.lr()); }});
  session.keep_tensors(
      "newer",
      [&] {
        return TensorMap{{"w", newer}};
      },
      /*alike=*/true, [&] { begun += "tensors"; });
  optimizer.set_lr(77);
  session.resume(*model, optimizer);
  CHECK(counter == 41 + 42);
  CHECK(average.eq(2.5).all().item<bool>());
  CHECK(begun == "tensorsstate" + std::to_string(AdamOptions{}.lr));
}

TEST_CASE("a loss that is no number is named with step and rank") {
  Context context = Context::join(Environment{}, {});
  Session::Options options = quiet();
  options.stop_on_bad_loss = true;
  Session session(context, options);
  session.check_loss(4, 0.5);
  CHECK(message_of<Error>([&] { session.check_loss(5, std::nan("")); }) ==
        "the loss is nan at step 5 on rank 0");
  CHECK(contains(message_of<Error>([&] { session.check_loss(6, -INFINITY); }), "the loss is -inf"));
}

TEST_CASE("metrics also go to a file and to TensorBoard") {
  const test::TemporaryFolder folder;
  Context context = Context::join(Environment{}, {});
  Session::Options options = quiet();
  options.metrics_file = folder / "run/metrics.jsonl";
  options.tensorboard = folder / "run/tb";
  options.hyperparameters = {};
  Session session(context, options);
  CHECK(!std::filesystem::exists(folder / "run"));
  session.report(3, {{"loss", 0.25}, {"bad", std::nan("")}}, 1);
  const json line = json::parse(test::read_file(folder / "run/metrics.jsonl"));
  CHECK(line["step"] == 3);
  CHECK(line["epoch"] == 1);
  CHECK(line["metrics"] == json{{"loss", 0.25}, {"bad", "nan"}});
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "run/tb"), {}) == 1);
}

TEST_CASE("loggers go on where the checkpoint is, and hear of the end") {
  class Own final : public Logger {
   public:
    std::string name() const override { return "own"; }
    void start(std::optional<std::int64_t> step) override {
      told += "start" + std::to_string(step.value_or(-1));
    }
    void log_hyperparams(const json& values) override { told += values.dump(); }
    void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                     const Metrics&) override {
      told += " " + std::to_string(step) + "/" + std::to_string(epoch.value_or(-1));
    }
    void finalize(Status status) override { told += status == Status::failed ? " failed" : " ok"; }
    std::string told;
  };
  const test::TemporaryFolder folder;
  Context context = Context::join(Environment{}, {});
  const auto model = test::make_small_model(1);
  Sgd optimizer(named_parameters(*model), SgdOptions{});
  const auto train = [&](const std::vector<Place>& places, bool fails) {
    const auto own = std::make_shared<Own>();
    Session::Options options = quiet(folder / "storage");
    options.loggers = {own};
    options.metrics_file = folder / "metrics.jsonl";
    options.hyperparameters = {{"lr", 1}};
    try {
      Session session(context, options);
      session.resume(*model, optimizer);
      for (const Place& place : places) {
        if (place.epoch == 0) {
          session.report(place, {{"loss", 1}}, *model, optimizer);
        } else {
          session.report(place.step, {{"loss", 2}}, place.epoch);
        }
      }
      session.finish();
      if (fails) throw std::runtime_error("as asked");
    } catch (const std::runtime_error&) {
    }
    return own->told;
  };
  CHECK(train({{100, 0, 4}, {130, 1, 0}}, true) == R"(start-1{"lr":1} 100/0 130/1 failed)");
  CHECK(train({{110, 1, 0}, {120, 1, 0}}, false) == R"(start100{"lr":1} 110/1 120/1 ok)");
  std::vector<int> steps;
  std::istringstream in(test::read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    if (const json each = json::parse(line); each.contains("step")) steps.push_back(each["step"]);
  }
  CHECK(steps == std::vector<int>{100, 110, 120});
}
