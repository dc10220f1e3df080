#include "trainer/train/weights.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::TemporaryFolder;

namespace {

TensorMap weights(std::uint64_t seed) {
  TensorMap tensors;
  for (const auto& [name, tensor] : state_dict(*test::make_small_model(seed))) {
    tensors[name] = tensor.detach().clone();
  }
  return tensors;
}

// A parameter under two names.
struct Tied : torch::nn::Module {
  Tied() {
    one = register_parameter("one", at::zeros({2}));
    two = register_parameter("two", one);
    three = register_parameter("three", at::zeros({3}));
  }
  at::Tensor one;
  at::Tensor two;
  at::Tensor three;
};

}  // namespace

TEST_CASE("weights go to several files with an index, and come back") {
  const TemporaryFolder folder;
  const TensorMap tensors = weights(1);
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += tensor.nbytes();
  write_weights(folder / "many", tensors, total / 3);
  const auto index =
      nlohmann::json::parse(std::ifstream(folder.path() / "many/model.safetensors.index.json"));
  CHECK(index.at("metadata").at("total_size") == total);
  CHECK(index.at("weight_map").size() == tensors.size());
  CHECK(std::filesystem::exists(folder.path() / "many/model-00001-of-00004.safetensors") !=
        std::filesystem::exists(folder.path() / "many/model-00001-of-00003.safetensors"));
  for (const char* path : {"many", "many/model.safetensors.index.json"}) {
    const TensorMap back = read_weights(folder.path() / path);
    REQUIRE(back.size() == tensors.size());
    for (const auto& [name, tensor] : tensors) CHECK(back.at(name).equal(tensor));
  }
  write_weights(folder / "one", tensors);
  CHECK(read_weights(folder / "one").size() == tensors.size());
  CHECK(read_weights(folder.path() / "one/model.safetensors").size() == tensors.size());
  CHECK(contains(message_of<Error>([&] { write_weights(folder / "one", tensors); }),
                 "holds model.safetensors already"));
  CHECK(contains(message_of<Error>([&] { read_weights(folder.path()); }), "holds no weights"));
}

TEST_CASE("non-strict loading says what it left, and leaves nothing out silently") {
  auto model = test::make_small_model(1);
  const TensorMap before = weights(1);
  TensorMap tensors = weights(2);
  tensors.erase("first.bias");
  tensors["stranger"] = at::zeros({1});
  CHECK(contains(message_of<Error>([&] { load_state_dict(*model, tensors, {}); }),
                 "missing: first.bias; unexpected: stranger"));
  CHECK(state_dict(*model).at("first.weight").equal(before.at("first.weight")));
  const LoadReport report = load_state_dict(*model, tensors, {.strict = false});
  CHECK(report.missing_keys == std::vector<std::string>{"first.bias"});
  CHECK(report.unexpected_keys == std::vector<std::string>{"stranger"});
  CHECK(report.text() == "missing: first.bias; unexpected: stranger");
  const TensorMap now = state_dict(*model);
  CHECK(now.at("first.bias").equal(before.at("first.bias")));
  CHECK(now.at("first.weight").equal(tensors.at("first.weight")));

  // Another shape is an error in any case, as in Python, unless it is asked for.
  tensors["last.bias"] = at::ones({4});
  CHECK(contains(message_of<Error>([&] { load_state_dict(*model, tensors, {.strict = false}); }),
                 "last.bias: Float[4], the model has Float[3]"));
  const LoadReport some =
      load_state_dict(*model, tensors, {.strict = false, .ignore_mismatched_sizes = true});
  CHECK(some.mismatched_keys.size() == 1);
  CHECK_FALSE(some.empty());
}

TEST_CASE("values of another type are an error, or converted") {
  auto model = test::make_small_model(1);
  TensorMap tensors = weights(2);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  CHECK(contains(message_of<Error>([&] {
                   load_state_dict(*model, tensors,
                                   {.strict = false, .ignore_mismatched_sizes = true});
                 }),
                 "BFloat16"));
  CHECK(load_state_dict(*model, tensors, {.cast = true}).empty());
  CHECK(state_dict(*model).at("last.bias").equal(tensors.at("last.bias").to(at::kFloat)));
}

TEST_CASE("names are mapped by patterns or by a function") {
  const NameMap names = rename_keys({{"^module\\.", ""}, {"\\.gamma$", ".weight"}});
  CHECK(names("module.bn.gamma") == "bn.weight");
  CHECK(names("a.module.gamma.x") == "a.module.gamma.x");
  CHECK(contains(message_of<Error>([] { rename_keys({{"(", ""}}); }), "not a regular expression"));

  auto model = test::make_small_model(1);
  TensorMap tensors;
  for (const auto& [name, tensor] : weights(2)) tensors["module." + name] = tensor;
  tensors["module.head"] = at::zeros({1});
  const auto map = [&](const std::string& name) {
    return name == "module.head" ? std::string() : names(name);
  };
  CHECK(load_state_dict(*model, tensors, {.names = map}).empty());
  CHECK(state_dict(*model).at("last.bias").equal(weights(2).at("last.bias")));
  CHECK(contains(message_of<Error>([&] {
                   load_state_dict(*model, tensors,
                                   {.names = [](const std::string&) { return std::string("x"); }});
                 }),
                 "get the name 'x'"));
}

TEST_CASE("a parameter with two names needs one of them, and takes no two values") {
  Tied model;
  const TensorMap one{{"one", at::ones({2})}, {"three", at::ones({3})}};
  CHECK(load_state_dict(model, one, {}).empty());
  CHECK(model.two.equal(at::ones({2})));
  CHECK(contains(
      message_of<Error>([&] {
        load_state_dict(
            model, {{"one", at::ones({2})}, {"two", at::zeros({2})}, {"three", at::ones({3})}}, {});
      }),
      "'one' and 'two' are one parameter"));
  CHECK(load_state_dict(model, {{"three", at::ones({3})}}, {.strict = false}).missing_keys.size() ==
        2);
}
