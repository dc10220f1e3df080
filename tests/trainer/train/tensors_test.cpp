#include "trainer/train/tensors.hpp"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/trainer/support/temporary.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/batches.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;

TEST_CASE("tensors of every type go to a file and come back") {
  const test::TemporaryFolder folder;
  TensorMap tensors;
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
        at::kFloat, at::kDouble, at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn,
        at::kFloat8_e5m2}) {
    tensors[c10::toString(type)] = at::arange(6).reshape({2, 3}).to(type);
  }
  tensors["transposed"] = at::arange(6).reshape({2, 3}).t();
  tensors["scalar"] = at::scalar_tensor(3.5);
  tensors["empty"] = at::empty({0, 4});
  FileSink sink(folder / "f");
  write_tensors(sink, tensors);
  sink.finish();
  const TensorMap back = read_tensors(folder / "f");
  REQUIRE(back.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK((back.at(name).scalar_type() == tensor.scalar_type()));
    CHECK(back.at(name).sizes() == tensor.sizes());
    CHECK(back.at(name).to(at::kDouble).equal(tensor.to(at::kDouble)));
  }
  FileSink other(folder / "g");
  CHECK(contains(message_of<Error>([&] {
                   write_tensors(other, {{"c", at::zeros({1}, at::kComplexFloat)}});
                 }),
                 "tensor 'c': safetensors does not know the type ComplexFloat"));
}

TEST_CASE("weights load strictly: every problem at once, and nothing is changed") {
  auto model = test::make_small_model(1);
  const at::Tensor before = model->parameters()[0].detach().clone();
  TensorMap weights;
  for (const auto& [name, tensor] : state_dict(*test::make_small_model(2))) weights[name] = tensor;
  weights.erase("first.bias");
  weights["last.bias"] = at::zeros({4});
  weights["stranger"] = at::zeros({1});
  const std::string message = message_of<Error>([&] { load_state_dict(*model, weights); });
  CHECK(contains(message, "'first.bias' is missing"));
  CHECK(contains(message, "'last.bias' is Float[4], the model has Float[3]"));
  CHECK(contains(message, "'stranger' is not in the model"));
  CHECK(model->parameters()[0].equal(before));
  load_state_dict(*model, state_dict(*test::make_small_model(2)));
  CHECK(model->parameters()[0].equal(test::make_small_model(2)->parameters()[0]));
}

TEST_CASE("batches of images are normalized and in the order asked for") {
  const auto data = test::make_images(5);
  const std::vector<std::int64_t> indices{3, 0};
  const ImageBatch batch = image_batches(data)(indices);
  CHECK(batch.images.sizes() == at::IntArrayRef({2, 1, 2, 4}));
  CHECK(batch.labels[0].item<std::int64_t>() == data->labels[3]);
  const float pixel = static_cast<float>(data->images.pixels[3 * 8 + 5]);
  CHECK(batch.images[0][0][1][1].item<float>() ==
        doctest::Approx((pixel / 255.0F - 0.5F) / 0.5F).epsilon(1e-6));
  const std::vector<std::int64_t> wrong{5};
  CHECK(message_of<SampleError>([&] { image_batches(data)(wrong); }) ==
        "data set made up, sample 5: there are 5 samples");
}

TEST_CASE("samples of any data set, joined; a sample that fails is named") {
  const auto make = map_batches<std::int64_t>(
      "numbers",
      [](std::int64_t index) {
        if (index == 7) throw std::runtime_error("unlucky");
        return index * 10;
      },
      [](std::vector<std::int64_t> samples) {
        std::int64_t sum = 0;
        for (const std::int64_t sample : samples) sum += sample;
        return sum;
      });
  CHECK(make(std::vector<std::int64_t>{1, 2}) == 30);
  CHECK(message_of<SampleError>([&] {
          make(std::vector<std::int64_t>{6, 7});
        }) == "data set numbers, sample 7: unlucky");
}
