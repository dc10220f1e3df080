// Classifies PNG and JPEG files with the best checkpoint of a run of one of the examples, prints
// what it finds, and writes a picture of it.

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "examples/common/cifar_resnet.hpp"
#include "examples/predict/sheet.hpp"
#include "trainer/checkpoint/store.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"
#include "trainer/core/run.hpp"
#include "trainer/data/codecs.hpp"
#include "trainer/data/transform.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/vision_transformer.hpp"
#include "trainer/train/tensors.hpp"

namespace {

namespace dt = dtrain::train;
namespace fs = std::filesystem;

struct Options {
  std::string run;  // a job's storage, or one checkpoint
  std::string score = "accuracy";
  std::string order = "max";
  std::string output = "predictions.svg";
  std::vector<std::string> files;
};

dt::Checkpoint find_checkpoint(const Options& options) {
  if (fs::exists(fs::path(options.run) / "manifest.json")) return dt::open_checkpoint(options.run);
  const auto warn = [](const std::string& text) {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  };
  dt::Retention wanted;
  wanted.score_attribute = options.score;
  wanted.higher_is_better = options.order == "max";
  const auto best = dt::best_first(dt::list_checkpoints(options.run, warn), wanted);
  if (best.empty()) throw dt::Error(options.run + ": has no checkpoint");
  return best.front();
}

using Forward = std::function<at::Tensor(const at::Tensor&)>;

template <typename Model>
Forward loaded(Model model, const fs::path& weights) {
  dt::load_state_dict(*model, dt::map_tensors(weights));
  model->eval();
  return [model](const at::Tensor& images) mutable { return model->forward(images); };
}

// A model by the name that the example gave it.
Forward load_model(const std::string& name, const fs::path& weights) {
  constexpr std::int64_t kClasses = 10;
  if (name == "mlp") return loaded(dt::Mlp(dt::MlpOptions{}), weights);
  if (name == "vit") return loaded(dt::VisionTransformer(dt::vit_for_cifar10()), weights);
  if (name == "resnet18-small") return loaded(small_resnet18(kClasses), weights);
  if (name == "resnet18-grey") {
    dt::ResNet model = dt::resnet18(kClasses);
    model->replace_conv1(dt::resnet_conv1(/*channels=*/1));
    return loaded(model, weights);
  }
  throw dt::Error("the checkpoint is of a model '" + name + "', which no example has");
}

// The mean of the channels, for models of grey pictures.
dt::Image grey_of(const dt::ImageView& view) {
  dt::Image grey{1, view.rows, view.columns, {}};
  for (std::int64_t i = 0; i < view.rows * view.columns; ++i) {
    const std::uint8_t* p = view.pixels + i * view.column_stride;
    grey.pixels.push_back(static_cast<std::uint8_t>((p[0] + p[1] + p[2]) / 3));
  }
  return grey;
}

int predict(const Options& options) {
  const dt::Checkpoint checkpoint = find_checkpoint(options);
  const fs::path shard = checkpoint.folder / dt::shard_name(0, checkpoint.manifest.shards);
  const auto state = nlohmann::json::parse(dt::read_text(shard / "state.json", 1 << 28));
  const nlohmann::json& about = state.at("hyperparameters");
  const auto name = about.at("model").get<std::string>();
  const Forward model = load_model(name, shard / "model.safetensors");
  const auto classes = about.at("classes").get<std::vector<std::string>>();
  const bool grey = name == "mlp" || name == "resnet18-grey";

  dt::Transform transform;
  transform.rows = about.at("rows");
  transform.columns = about.at("columns");
  transform.fit = dt::Transform::Fit::resize;
  transform.mean = about.at("mean").get<std::vector<float>>();
  transform.std = about.at("std").get<std::vector<float>>();
  const dt::Transformer transformer(transform, grey ? 1 : 3);

  std::printf("%s, step %lld\n", checkpoint.folder.c_str(),
              static_cast<long long>(checkpoint.manifest.step));
  const at::NoGradGuard no_grad;
  std::vector<Prediction> predictions;
  for (const std::string& file : options.files) {
    std::vector<std::byte> bytes;
    dt::read_bytes(file, dt::kMostImageBytes, bytes);
    std::vector<std::uint8_t> pixels;
    dt::ImageView view;
    try {
      view = dt::decode_image(bytes, pixels);
    } catch (const dt::Error& error) {
      throw dt::Error(file + ": " + error.what());
    }
    dt::Image picture{3, view.rows, view.columns, {}};
    if (grey) {
      picture = grey_of(view);
    } else {
      picture.pixels = pixels;
    }
    at::Tensor input = at::empty({1, grey ? 1 : 3, transform.rows, transform.columns});
    transformer.write(picture.view(), dt::SampleRandom(0, 0, 0), input.mutable_data_ptr<float>());
    const auto [probability, label] = model(input).softmax(1).max(1);
    const auto index = static_cast<std::size_t>(label.item<std::int64_t>());
    predictions.push_back({file, std::move(picture),
                           index < classes.size() ? classes[index] : std::to_string(index),
                           probability.item<double>()});
    std::printf("%s  %s  %.3f\n", file.c_str(), predictions.back().label.c_str(),
                predictions.back().probability);
  }
  write_sheet(options.output, predictions);
  std::printf("wrote %s\n", options.output.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Classifies pictures with the best checkpoint of a run.");
  app.add_option("run", options.run, "The run's storage folder, or one checkpoint's")->required();
  app.add_option("files", options.files, "PNG and JPEG files")->required();
  app.add_option("--score", options.score, "The metric that tells the best checkpoint")
      ->capture_default_str();
  app.add_option("--order", options.order, "Whether a high or a low score is better")
      ->check(CLI::IsMember({"max", "min"}))
      ->capture_default_str();
  app.add_option("--output", options.output, "The picture of the results, an SVG file")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return dt::run([&options] { return predict(options); });
}
