#include "trainer/checkpoint/safetensors_index.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::TemporaryFolder;

namespace {

const std::vector<std::byte> kBytes(64);

TensorSource source_of(const std::string& name, std::int64_t size) {
  return {name, DType::u8, {size}, {kBytes.data(), static_cast<std::size_t>(size)}};
}

// Two files: a and b, c.
struct Weights {
  Weights() {
    write_weights(folder.path(), {source_of("a", 30), source_of("b", 20), source_of("c", 8)}, {},
                  32);
  }

  std::string index() const { return test::read_file(folder / kWeightsIndex); }
  void change(const std::string& from, const std::string& to) const {
    std::string text = index();
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(folder / kWeightsIndex) << text.replace(at, from.size(), to);
  }
  std::string refusal() const {
    return message_of<Error>([&] { open_weights(folder.path()); });
  }

  TemporaryFolder folder;
};

}  // namespace

TEST_CASE("tensors are dealt to files in their order, each as full as it may be") {
  const Weights weights;
  const WeightMap map = read_weight_map(weights.folder / kWeightsIndex);
  CHECK(map == WeightMap{{"a", "model-00001-of-00002.safetensors"},
                         {"b", "model-00002-of-00002.safetensors"},
                         {"c", "model-00002-of-00002.safetensors"}});
  CHECK(contains(weights.index(), "\"total_size\": 58"));
  const auto files = open_weights(weights.folder.path());
  REQUIRE(files.size() == 2);
  CHECK(files[1]->find("c") != nullptr);
  const TemporaryFolder folder;
  write_weights(folder / "large", {source_of("a", 3), source_of("b", 64), source_of("c", 3)}, {},
                32);
  CHECK(read_weight_map(folder.path() / "large" / kWeightsIndex).at("c") ==
        "model-00003-of-00003.safetensors");
  write_weights(folder / "fits", {source_of("a", 30), source_of("b", 2)}, {}, 32);
  CHECK(std::filesystem::exists(folder.path() / "fits" / kWeightsFile));
  CHECK(!std::filesystem::exists(folder.path() / "fits" / kWeightsIndex));
  CHECK(
      contains(message_of<Error>([&] {
                 write_weights(folder / "twice", {source_of("a", 30), source_of("a", 30)}, {}, 32);
               }),
               "'a' is given twice"));
}

TEST_CASE("an index that leads out of its folder is refused") {
  for (const char* file :
       {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b"}) {
    const Weights weights;
    std::string escaped = file;
    if (escaped == "a\\b") escaped = "a\\\\b";
    weights.change("model-00001-of-00002.safetensors", escaped);
    CHECK(contains(weights.refusal(), "not the name of a file beside it"));
  }
}

TEST_CASE("an index that is not of its files is refused") {
  {
    const Weights weights;
    std::filesystem::remove(weights.folder / "model-00002-of-00002.safetensors");
    CHECK(contains(weights.refusal(), "model-00002-of-00002.safetensors"));
  }
  {
    const Weights weights;
    weights.change("\"c\": \"model-00002", "\"c\": \"model-00001");
    CHECK(contains(weights.refusal(), "tensor 'c' is not in model-00001-of-00002.safetensors"));
  }
  {
    const Weights weights;
    weights.change("\"c\": \"model-00002-of-00002.safetensors\"", "\"a\": \"x\"");
    CHECK(contains(weights.refusal(), "'a' stands there twice"));
  }
  {
    const Weights weights;
    weights.change(",\n    \"c\": \"model-00002-of-00002.safetensors\"", "");
    CHECK(contains(weights.refusal(), "holds tensor 'c', which is not in the index"));
  }
  {
    const Weights weights;
    weights.change("weight_map", "weights");
    CHECK(contains(weights.refusal(), "no weight_map"));
    std::ofstream(weights.folder / kWeightsIndex) << "[1";
    CHECK(contains(weights.refusal(), "not a valid index"));
  }
}
