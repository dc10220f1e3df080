// A training of which some ranks are slow until a file is there, and which ends when another is:
// slow_rank data|compute RANK[,RANK…] FILE FILE

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/ATen.h>

#include "trainer/trainer.hpp"

using namespace dtrain::train;

namespace {

constexpr std::chrono::milliseconds kStep{20};   // of each rank
constexpr std::chrono::milliseconds kSlow{100};  // more, of a slow one

int train(const std::string& phase, const std::string& ranks, const std::filesystem::path& well,
          const std::filesystem::path& end) {
  init({});
  const bool is_slow =
      ("," + ranks + ",").find("," + std::to_string(context().rank()) + ",") != std::string::npos;
  const auto dawdle = [&](const std::string& here) {
    if (is_slow && phase == here && !std::filesystem::exists(well)) {
      std::this_thread::sleep_for(kSlow);
    }
  };
  const auto model = prepare_model(Mlp(MlpOptions{.inputs = 8, .hidden = {16}, .classes = 2}));
  prepare_optimizer(sgd(*model, {.lr = 0.01}));
  const DataLoader::Make make = [&](std::span<const std::int64_t> indices, std::int64_t) {
    dawdle("data");
    const auto size = static_cast<std::int64_t>(indices.size());
    return Batch{{at::ones({size, 8}), at::zeros({size}, at::kLong)},
                 {indices.begin(), indices.end()}};
  };
  const DataLoader loader = prepare_data_loader(DataLoader(1 << 20, make, {.batch_size = 4}));
  for (const auto epoch : epochs(1)) {
    for (const auto& [inputs, labels] : loader.epoch(epoch)) {
      std::this_thread::sleep_for(kStep);
      dawdle("compute");
      backward(at::cross_entropy_loss(model(inputs), labels));
      optimizer_step();
      if (all_reduce_sum(std::filesystem::exists(end) ? 1.0 : 0.0) > 0) break;
    }
  }
  shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run([&] {
    if (argc != 5) throw std::runtime_error("slow_rank data|compute RANK[,RANK] FILE FILE");
    return train(argv[1], argv[2], argv[3], argv[4]);
  });
}
