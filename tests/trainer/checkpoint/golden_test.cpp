#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/checkpoint/safetensors.hpp"
#include "trainer/checkpoint/store.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;

// tests/golden/checkpoint is a storage path that must stay readable for ever: these tests and the
// head's read the same files.
namespace {

std::filesystem::path golden() {
  const char* folder = std::getenv("DTRAIN_GOLDEN");
  if (folder == nullptr) throw std::runtime_error("DTRAIN_GOLDEN is not set; run meson test");
  return std::filesystem::path(folder) / "checkpoint";
}

}  // namespace

TEST_CASE("golden: the committed checkpoint") {
  std::vector<std::string> warnings;
  const auto list =
      list_checkpoints(golden(), [&](const std::string& text) { warnings.push_back(text); });
  REQUIRE(list.size() == 1);
  const Manifest& manifest = list[0].manifest;
  CHECK(manifest.number == 3);
  CHECK(manifest.job == "golden-k3x7qa");
  CHECK(manifest.attempt == 2);
  CHECK(manifest.step == 470);
  CHECK(manifest.world_size == 2);
  CHECK(manifest.shards == 2);
  CHECK(manifest.created == "2026-01-02T03:04:05.678Z");
  CHECK(manifest.metrics.at("accuracy") == 0.9);
  CHECK(manifest.metrics.at("loss") > 1e300);
  CHECK(manifest.files.size() == 3);
  verify_checkpoint(list[0]);

  // The one beside it, which has lost a file, is passed over.
  REQUIRE(warnings.size() == 1);
  CHECK(test::contains(warnings[0], "checkpoint_000004"));
}

TEST_CASE("golden: the tensors") {
  const SafetensorsFile file(
      golden() / "checkpoints/checkpoint_000003/shard-00000-of-00002/model.safetensors");
  REQUIRE(file.tensors().size() == 3);
  const TensorEntry* weight = file.find("fc.weight");
  REQUIRE(weight != nullptr);
  CHECK(weight->dtype == DType::f32);
  CHECK(weight->shape == std::vector<std::int64_t>{2, 3});
  std::vector<float> values(6);
  std::memcpy(values.data(), file.bytes(*weight).data(), 24);
  CHECK(values == std::vector<float>{0, 0.5F, 1, 1.5F, 2, 2.5F});
  CHECK(file.find("bn.num_batches_tracked")->shape.empty());
}

TEST_CASE("golden: a shard that waits for its commit") {
  const test::TemporaryFolder storage;
  std::filesystem::create_directories(storage / "checkpoints");
  std::filesystem::copy(golden() / "shards", storage / "checkpoints/.tmp",
                        std::filesystem::copy_options::recursive);
  const auto folder = commit_checkpoint(
      storage.path(),
      {.job = "", .attempt = 1, .step = 12, .world_size = 1, .shards = 1, .metrics = {}});
  CHECK(folder.filename() == "checkpoint_000000");
  verify_checkpoint(open_checkpoint(folder));
}
