#include "trainer/train/export.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/batches.hpp"

using namespace dtrain::train;
using test::TemporaryFolder;

namespace {

// Runs Python with LibTorch's wheel; nothing if this machine has no such Python.
std::optional<int> python(const std::string& code) {
  const char* path = std::getenv("DTRAIN_PYTHON_TORCH");
  if (path == nullptr || *path == '\0') return std::nullopt;
  const std::string command = std::string(path) + " -c '" + code + "'";
  return ::system(command.c_str());
}

}  // namespace

TEST_CASE("Python loads what is exported, weights only") {
  const TemporaryFolder folder;
  const TensorMap tensors{{"fc.weight", at::arange(6, at::kFloat).view({2, 3})},
                          {"part", at::arange(10, at::kLong).narrow(0, 2, 3)},
                          {"half", at::full({2}, 0.5).to(at::kBFloat16)},
                          {"scalar", at::scalar_tensor(3)},
                          {"transposed", at::arange(6, at::kDouble).view({2, 3}).t()}};
  export_for_torch(folder / "plain.pt", tensors);
  export_for_torch(folder / "plain.pt", tensors);  // replaced
  export_for_torch(folder / "nested.pt", {{"model", tensors}, {"optimizer", {}}},
                   {{"step", 7},
                    {"lr", 0.25},
                    {"names", {"a", "b"}},
                    {"deep", {{"x", true}}},
                    {"none", nullptr}});
  CHECK(std::filesystem::file_size(folder / "plain.pt") > 200);
  CHECK_THROWS_AS(export_for_torch(folder / "x", {{"a", {}}}, {{"a", 1}}), Error);
  export_safetensors(folder / "plain.safetensors", tensors);
  CHECK(read_tensors(folder / "plain.safetensors").at("part").equal(tensors.at("part")));

  const auto code = python(
      "import torch\n"
      "f = \"" +
      folder.path().string() +
      "/\"\n"
      "def check(d):\n"
      "    assert d[\"fc.weight\"].tolist() == [[0, 1, 2], [3, 4, 5]]\n"
      "    assert d[\"part\"].tolist() == [2, 3, 4] and d[\"part\"].dtype == torch.int64\n"
      "    assert d[\"part\"].untyped_storage().nbytes() == 24\n"
      "    assert d[\"half\"].dtype == torch.bfloat16 and d[\"half\"].tolist() == [0.5, 0.5]\n"
      "    assert d[\"scalar\"].item() == 3\n"
      "    assert d[\"transposed\"].tolist() == [[0, 3], [1, 4], [2, 5]]\n"
      "d = torch.load(f + \"plain.pt\", weights_only=True)\n"
      "assert type(d) is dict and len(d) == 5\n"
      "check(d)\n"
      "n = torch.load(f + \"nested.pt\", weights_only=True)\n"
      "check(n[\"model\"])\n"
      "assert n[\"optimizer\"] == {} and n[\"step\"] == 7 and n[\"lr\"] == 0.25\n"
      "assert n[\"names\"] == [\"a\", \"b\"] and n[\"deep\"] == {\"x\": True}\n"
      "assert n[\"none\"] is None\n");
  if (code) {
    CHECK(*code == 0);
  } else {
    MESSAGE("no Python with torch (DTRAIN_PYTHON_TORCH): not loaded there");
  }
}

TEST_CASE("a buffer is used again when nobody has it any more") {
  BufferPool pool;
  at::Tensor first = pool.take({4, 8}, at::kFloat);
  const void* memory = first.data_ptr();
  const at::Tensor second = pool.take({4, 8}, at::kFloat);
  CHECK(second.data_ptr() != memory);
  const at::Tensor view = first.narrow(0, 1, 2);
  first.reset();
  CHECK(pool.take({4, 8}, at::kFloat).data_ptr() != memory);  // a view still looks at it
  const at::Tensor copy = view.clone();
  const_cast<at::Tensor&>(view).reset();
  const at::Tensor third = pool.take({2, 8}, at::kFloat);  // smaller ones fit too
  CHECK(third.data_ptr() == memory);
  CHECK((third.sizes() == at::IntArrayRef({2, 8})));
  CHECK((pool.take({4, 8}, at::kLong).scalar_type() == at::kLong));
  CHECK(pool.reused() == 1);
}

TEST_CASE("batches of any source, in one pass, into memory that comes again") {
  const auto data = std::make_shared<MemoryImages>(
      MemoryImages::Content{.name = "made up",
                            .channels = 3,
                            .rows = 2,
                            .columns = 2,
                            .pixels = std::vector<std::uint8_t>(36, 255),
                            .labels = {4, 5, 6},
                            .classes = {},
                            .class_count = 10});
  ImageBatches options;
  options.transform.pad = 1;
  options.transform.rows = options.transform.columns = 4;
  auto make = image_batches(data, options);
  const std::vector<std::int64_t> indices{2, 0};
  {
    const ImageBatch batch = make(indices);
    CHECK((batch.images.sizes() == at::IntArrayRef({2, 3, 4, 4})));
    CHECK(batch.images.sum().item<float>() == 2 * 3 * (4 - 12));  // 1 inside, -1 around
    CHECK(batch.labels.equal(at::tensor({6, 4}, at::kLong)));
    CHECK(batch.indices == indices);
  }
  make(indices);
  CHECK(options.pool.reused() >= 2);
  options.as_bytes = true;
  CHECK(image_batches(data, options)(indices).images.sum().item<std::int64_t>() == 2 * 3 * 4 * 255);
  const std::vector<std::int64_t> beyond{3};
  CHECK(test::message_of<SampleError>([&] { make(beyond); }) ==
        "data set made up, sample 3: there are 3 samples");
  options.transform.rows = 9;
  auto too_large = image_batches(data, options);
  CHECK(test::contains(test::message_of<SampleError>([&] { too_large(indices); }),
                       "data set made up, sample 2: is 2x2, too small for 9x4"));
}
