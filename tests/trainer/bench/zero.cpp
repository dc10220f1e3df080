// Trainings of a rank: DDP with the replicated optimizer, ZeRO-1, ZeRO-2, or several of them in
// turn, a few steps of each, so that what else the machine does meets them alike. Prints, on rank
// 0, for each its samples per second of all ranks (by its median step), its buckets and a checksum
// of its weights; at the end the peak of its memory.
//
//     bench_zero mlp|resnet18 WAY[,WAY] [STEPS] [BATCH]        started once for each rank

#include <ATen/ATen.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "trainer/core/run.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/resnet.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/zero.hpp"

using namespace dtrain::train;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kWarmUp = 24;  // DDP tries bucket sizes in its first steps
constexpr int kTurn = 4;     // steps of one before the next; the first finds cold caches

template <typename Module>
class Training {
 public:
  Training(Context& context, std::shared_ptr<Module> module, std::string way)
      : way_(std::move(way)), context_(context), ddp_(std::move(module), context) {
    optimizer_ = std::make_shared<Adam>(named_parameters(ddp_.module()), AdamOptions{});
    if (way_ == "ddp") return;
    optimizer_ = std::make_shared<ZeroOptimizer>(
        optimizer_, context, &ddp_, way_ == "zero2" ? ZeroStage::gradients : ZeroStage::state);
  }

  void turn(const at::Tensor& inputs, const at::Tensor& labels, bool counts) {
    for (int step = 0; step < kTurn; ++step) {
      context_.barrier();
      const Clock::time_point began = Clock::now();
      at::cross_entropy_loss(ddp_(inputs), labels).backward();
      optimizer_->step();
      optimizer_->zero_grad();
      context_.barrier();
      if (counts && step > 0) seconds_.push_back(Clock::now() - began);
    }
  }

  void print(std::int64_t samples) {
    std::nth_element(seconds_.begin(), seconds_.begin() + seconds_.size() / 2, seconds_.end());
    double checksum = 0;
    for (const at::Tensor& p : ddp_.module().parameters()) {
      checksum += p.sum(at::kDouble).template item<double>();
    }
    std::printf("%s: %.1f samples/s, buckets %.1f MiB, checksum %.17g\n", way_.c_str(),
                static_cast<double>(samples) / seconds_[seconds_.size() / 2].count(),
                static_cast<double>(ddp_.peak_bucket_bytes()) / (1 << 20), checksum);
  }

 private:
  std::string way_;
  Context& context_;
  Ddp<Module> ddp_;
  std::shared_ptr<Optimizer> optimizer_;
  std::vector<std::chrono::duration<double>> seconds_;
};

template <typename Make>
int train(Context& context, Make make, const at::Tensor& inputs, const std::string& ways,
          int steps) {
  using Module = typename decltype(make())::ContainedType;
  std::vector<std::unique_ptr<Training<Module>>> trainings;
  std::istringstream list(ways);
  for (std::string way; std::getline(list, way, ',');) {
    at::manual_seed(1);
    trainings.push_back(std::make_unique<Training<Module>>(context, make().ptr(), way));
  }
  const at::Tensor labels = at::randint(0, 10, {inputs.size(0)}, at::kLong);
  for (int step = 0; step < kWarmUp + steps; step += kTurn) {
    for (const auto& training : trainings) training->turn(inputs, labels, step >= kWarmUp);
  }
  if (!context.is_first()) return 0;
  for (const auto& training : trainings) training->print(inputs.size(0) * context.world_size());
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf("peak %ld MiB\n", usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "mlp";
  const std::string ways = argc > 2 ? argv[2] : "ddp,zero1,zero2";
  const int steps = std::max(kTurn, argc > 3 ? std::atoi(argv[3]) : 40);
  const int batch = argc > 4 ? std::atoi(argv[4]) : 16;
  return run([&] {
    Context context = Context::join();
    at::manual_seed(2);
    if (model == "mlp") {  // 20 million parameters
      return train(
          context,
          [] {
            return Mlp(MlpOptions{784, {4096, 4096}, 10});
          },
          at::randn({batch, 784}), ways, steps);
    }
    return train(
        context, [] { return resnet18(10); }, at::randn({batch, 3, 32, 32}), ways, steps);
  });
}
