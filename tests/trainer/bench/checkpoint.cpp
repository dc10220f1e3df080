// How long a checkpoint of about 600 MB (parameters and Adam's state) stops a training, against
// torch::save of the same tensors, and how much slower steps are beside the writing. Prints one
// JSON object. bench_checkpoint [FOLDER] [MILLIONS OF PARAMETERS]

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/run.hpp"
#include "trainer/train/session.hpp"
#include "trainer/train/tensors.hpp"

using namespace dtrain::train;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A step's worth of work that is not memory alone.
double one_step(const at::Tensor& a, const at::Tensor& b) {
  const auto start = Clock::now();
  for (int i = 0; i < 4; ++i) a.matmul(b);
  return milliseconds_since(start);
}

int bench(const std::filesystem::path& folder, std::int64_t millions) {
  torch::nn::Sequential model;
  for (std::int64_t i = 0; i < millions; ++i) model->push_back(torch::nn::Linear(1000, 1000));
  Context context = Context::join(Environment{}, {});
  Adam optimizer(named_parameters(*model), {});
  for (const auto& p : model->parameters()) p.mutable_grad() = at::ones_like(p);
  optimizer.step();

  Session::Options options;
  options.storage = folder / "ours";
  options.retention.num_to_keep = 1;
  options.print_metrics = false;
  Session session(context, options);
  const auto reserve = Clock::now();
  session.resume(*model, optimizer);
  const double reserved = milliseconds_since(reserve);

  const at::Tensor a = at::randn({512, 512});
  std::vector<double> alone;
  for (int i = 0; i < 40; ++i) alone.push_back(one_step(a, a));
  std::vector<double> blocked;
  std::vector<double> beside;
  std::vector<double> written;
  for (int i = 0; i < 6; ++i) {
    const auto start = Clock::now();
    session.report(Place{i, 0, 0}, {}, *model, optimizer);
    blocked.push_back(std::chrono::duration<double, std::milli>(session.blocked().last).count());
    const auto before = session.last_checkpoint();
    while (session.last_checkpoint() == before) beside.push_back(one_step(a, a));
    written.push_back(milliseconds_since(start));
    session.finish();
  }

  TensorMap all = state_dict(*model);
  for (const auto& [name, tensor] : optimizer.state()) all.emplace("optimizer/" + name, tensor);
  double bytes = 0;
  for (const auto& [name, tensor] : all) bytes += static_cast<double>(tensor.nbytes());
  std::vector<double> saved;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    torch::serialize::OutputArchive archive;
    for (auto& [name, tensor] : all) {
      std::string key = name;
      std::replace(key.begin(), key.end(), '.', '_');
      archive.write(key, tensor, true);
    }
    archive.save_to((folder / "torch.pt").string());
    saved.push_back(milliseconds_since(start));
  }
  const nlohmann::json result = {{"megabytes", bytes / 1e6},
                                 {"reserve_ms", reserved},
                                 {"blocked_first_ms", blocked.front()},
                                 {"blocked_ms", median({blocked.begin() + 1, blocked.end()})},
                                 {"written_ms", median(written)},
                                 {"torch_save_ms", median(saved)},
                                 {"step_alone_ms", median(alone)},
                                 {"step_beside_ms", median(beside)}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run([&] {
    const test::TemporaryFolder temporary;
    const std::filesystem::path folder = argc > 1 ? argv[1] : temporary.path().string();
    return bench(folder, argc > 2 ? std::atoll(argv[2]) : 50);
  });
}
