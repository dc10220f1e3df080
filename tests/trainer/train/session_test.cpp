#include "trainer/train/session.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <future>

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
  {
    Session session(context, quiet(storage.path()));
    CHECK_FALSE(session.resume(*model, optimizer).has_value());
    const auto path = session.report(Place{12, 3, 40}, {{"a", 1}}, *model, optimizer);
    CHECK(path == storage / "checkpoints/checkpoint_000000");
  }
  const at::Tensor drawn = at::rand({4});  // what comes after the checkpoint

  auto other = test::make_small_model(2);
  Adam other_optimizer(named_parameters(*other), {.lr = 0.5});
  Session session(context, quiet(storage.path()));
  const auto place = session.resume(*other, other_optimizer);
  REQUIRE(place.has_value());
  CHECK(place->step == 12);
  CHECK(place->epoch == 3);
  CHECK(place->position == 40);
  CHECK(other_optimizer.lr() == 0.25);
  CHECK(other->parameters()[0].equal(model->parameters()[0]));
  CHECK(at::rand({4}).equal(drawn));
}

TEST_CASE("a checkpoint that does not fit is refused with its file") {
  const test::TemporaryFolder storage;
  Context context = Context::join(Environment{}, {});
  auto model = test::make_small_model(1);
  Adam optimizer(named_parameters(*model), {});
  Session session(context, quiet(storage.path()));
  const auto path = session.report(Place{}, {}, *model, optimizer);
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
  auto path = std::async(std::launch::async, [&] {
    return session.report(Place{7, 0, 0}, {{"accuracy", 0.5}}, *model, optimizer);
  });
  CHECK(supervisor.read_line()["type"] == "metrics");
  const json line = supervisor.read_line();
  CHECK(line["type"] == "checkpoint");
  CHECK(line["path"] ==
        (temporary_folder(folder / "storage", 2, 7) / "shard-00000-of-00001").string());
  const auto committed =
      commit_checkpoint(folder / "storage", {.job = env.job,
                                             .attempt = 2,
                                             .step = 7,
                                             .world_size = 1,
                                             .shards = 1,
                                             .metrics = metrics_from_json(line["metrics"])});
  supervisor.answer(json({{"ok", true}, {"path", committed.string()}}).dump());
  CHECK(path.get() == committed);

  env.checkpoint = committed;
  Context next = Context::join(env, {});
  Session resumed(next, quiet());
  CHECK(resumed.resume(*model, optimizer)->step == 7);
}
