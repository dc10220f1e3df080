// One training of a rank: DDP with the replicated optimizer, ZeRO-1 or ZeRO-2. Prints, on rank 0,
// samples per second of all ranks, the peak of its memory, and a checksum of the weights.
//
//     bench_zero mlp|resnet18 ddp|zero1|zero2 [STEPS] [BATCH]        started once for each rank

#include <ATen/ATen.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "trainer/core/run.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/resnet.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/zero.hpp"

using namespace dtrain::train;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kWarmUp = 20;  // DDP tries bucket sizes in its first steps

template <typename Model>
int train(Context& context, Model model, const at::Tensor& inputs, const std::string& way,
          int steps) {
  Ddp ddp(model.ptr(), context);
  std::shared_ptr<Optimizer> optimizer =
      std::make_shared<Adam>(named_parameters(*model), AdamOptions{});
  if (way != "ddp") {
    optimizer = std::make_shared<ZeroOptimizer>(
        optimizer, context, &ddp, way == "zero2" ? ZeroStage::gradients : ZeroStage::state);
  }
  const at::Tensor labels = at::randint(0, 10, {inputs.size(0)}, at::kLong);
  Clock::time_point began;
  double last_loss = 0;
  for (int step = 0; step < kWarmUp + steps; ++step) {
    if (step == kWarmUp) {
      context.barrier();
      began = Clock::now();
    }
    const at::Tensor loss = at::cross_entropy_loss(ddp(inputs), labels);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    last_loss = loss.item<double>();
  }
  context.barrier();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  double checksum = 0;
  for (const at::Tensor& p : model->parameters())
    checksum += p.sum(at::kDouble).template item<double>();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  if (context.is_first()) {
    std::printf("%.1f samples/s, peak %ld MiB, buckets %.1f MiB, loss %.4f, checksum %.17g\n",
                static_cast<double>(steps * inputs.size(0) * context.world_size()) / seconds,
                usage.ru_maxrss / 1024, static_cast<double>(ddp.peak_bucket_bytes()) / (1 << 20),
                last_loss, checksum);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "mlp";
  const std::string way = argc > 2 ? argv[2] : "ddp";
  const int steps = argc > 3 ? std::atoi(argv[3]) : 40;
  const int batch = argc > 4 ? std::atoi(argv[4]) : 16;
  return run([&] {
    Context context = Context::join();
    at::manual_seed(1);
    if (model == "mlp") {  // 20 million parameters
      return train(context, Mlp(MlpOptions{784, {4096, 4096}, 10}), at::randn({batch, 784}), way,
                   steps);
    }
    return train(context, resnet18(10), at::randn({batch, 3, 32, 32}), way, steps);
  });
}
