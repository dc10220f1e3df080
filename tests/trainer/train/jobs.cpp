#include "tests/trainer/train/jobs.hpp"

#include <ATen/ATen.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/trainer/support/require.hpp"
#include "tests/trainer/train/small_model.hpp"
#include "trainer/core/run.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/context.hpp"
#include "trainer/train/ddp.hpp"
#include "trainer/train/measures.hpp"
#include "trainer/train/optimizer.hpp"
#include "trainer/train/tensors.hpp"

namespace dtrain::train::test {
namespace {

void write_out(const std::filesystem::path& folder, const std::string& name, int rank,
               const TensorMap& tensors) {
  FileSink sink(folder / (name + "-" + std::to_string(rank) + ".safetensors"));
  write_tensors(sink, tensors);
  sink.finish();
}

// Ranks begin with weights of their own: rank 0's must win.
std::shared_ptr<SmallModel> rank_model(const Context& context, const SmallOptions& options = {}) {
  return make_small_model(100 + static_cast<std::uint64_t>(context.rank()), options);
}

DdpOptions ddp_options() {
  DdpOptions options;
  options.gradient_as_bucket_view = std::getenv("TEST_NO_BUCKET_VIEW") == nullptr;
  // So small that a small model has several buckets.
  options.first_bucket_bytes = 256;
  options.bucket_bytes = 1024;
  return options;
}

int gradients(Context& context, const std::filesystem::path& folder) {
  Ddp ddp(rank_model(context), context, ddp_options());
  // Twice: the second backward runs with buckets that were made anew after the first.
  for (int round = 0; round < 2; ++round) {
    for (const auto& p : ddp.module().parameters()) p.mutable_grad().reset();
    const Examples mine = share_of(context, make_examples(round));
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
    write_out(folder, "gradients" + std::to_string(round), context.rank(),
              gradients_of(ddp.module()));
  }
  return 0;
}

int steps(Context& context, const std::filesystem::path& folder) {
  Ddp ddp(rank_model(context, {.batch_norm = true}), context, ddp_options());
  Adam optimizer(named_parameters(ddp.module()), {.lr = 1e-2});
  for (int step = 0; step < 6; ++step) {
    const Examples mine = share_of(context, make_examples(step));
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  TensorMap parameters;
  for (const auto& p : named_parameters(ddp.module())) parameters.emplace(p.name, p.tensor);
  write_out(folder, "parameters", context.rank(), parameters);
  return 0;
}

int accumulate(Context& context, const std::filesystem::path& folder) {
  Ddp ddp(rank_model(context), context, ddp_options());
  {
    const auto guard = ddp.no_sync();
    const Examples mine = share_of(context, make_examples(0));
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
    write_out(folder, "inside", context.rank(), gradients_of(ddp.module()));
  }
  const Examples mine = share_of(context, make_examples(1));
  at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
  write_out(folder, "after", context.rank(), gradients_of(ddp.module()));
  return 0;
}

int buffers(Context& context, const std::filesystem::path& folder) {
  Ddp ddp(rank_model(context, {.batch_norm = true}), context, ddp_options());
  const auto mark = [&](float value) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : ddp.module().buffers()) at::Tensor(buffer).fill_(value);
  };
  ddp(make_examples(0).inputs).sum().backward();
  ddp.module().eval();  // forward leaves the buffers alone from here on
  mark(static_cast<float>(context.rank() + 5));
  ddp(make_examples(0).inputs);
  write_out(folder, "forward", context.rank(), {{"mean", ddp.module().buffers()[0]}});
  mark(static_cast<float>(context.rank() + 5));
  {
    const at::NoGradGuard no_grad;  // an evaluation talks to nobody
    ddp(make_examples(0).inputs);
  }
  write_out(folder, "evaluation", context.rank(), {{"mean", ddp.module().buffers()[0]}});
  ddp.sync_buffers();
  write_out(folder, "synced", context.rank(), {{"mean", ddp.module().buffers()[0]}});
  return 0;
}

int unused(Context& context, const std::filesystem::path& folder) {
  DdpOptions options = ddp_options();
  options.find_unused_parameters = true;
  Ddp ddp(rank_model(context, {.extra_layer = true}), context, options);
  for (int step = 0; step < 2; ++step) {
    for (const auto& p : ddp.module().parameters()) p.mutable_grad().reset();
    const Examples mine = share_of(context, make_examples(step));
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
  }
  write_out(folder, "gradients", context.rank(), gradients_of(ddp.module()));
  return 0;
}

int mismatch(Context& context, const std::filesystem::path& /*folder*/) {
  const Ddp ddp(rank_model(context, {.hidden = context.rank() == 0 ? 16 : 17}), context);
  return 0;
}

int collectives(Context& context, const std::filesystem::path& /*folder*/) {
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw std::runtime_error(what);
  };
  const int world = context.world_size();
  const auto sum = static_cast<double>(world * (world + 1) / 2);
  require(context.all_reduce_sum(context.rank() + 1.0) == sum, "sum");
  // Above 2^24 a float would lose the one.
  require(context.all_reduce_sum(std::vector{16777217.0, 1.0})[0] == 16777217.0 * world, "double");
  const std::string text = "from rank 1";
  require(context.broadcast(context.rank() == 1 ? text : "", 1) == text, "text");
  require(context.broadcast("").empty(), "empty text");
  const auto all = context.all_gather(at::full({2}, context.rank()));
  for (int rank = 0; rank < world; ++rank) {
    require(all[static_cast<std::size_t>(rank)].eq(rank).all().item<bool>(), "gather");
  }
  context.barrier();
  return 0;
}

// Rank r has r batches: rank 0 none.
int measures(Context& context, const std::filesystem::path& /*folder*/) {
  const auto batch = [](int number) {
    const Examples examples = make_examples(number);
    return Examples{examples.inputs.narrow(1, 0, 3).narrow(0, 0, 5 + number),
                    examples.labels.narrow(0, 0, 5 + number)};
  };
  const auto count = [&](Context& of, const std::vector<int>& batches) {
    WeightedMean mean;
    Accuracy accuracy(2);
    ConfusionMatrix confusion(3);
    for (const int number : batches) {
      const Examples examples = batch(number);
      mean.add(examples.inputs.mean().item<double>(), examples.inputs.size(0));
      accuracy.add(examples.inputs, examples.labels);
      confusion.add(examples.inputs, examples.labels);
    }
    return std::tuple{mean.over(of), accuracy.over(of), confusion.over(of)};
  };
  const std::vector<std::vector<int>> share{{}, {0}, {1, 2}};
  const auto mine = count(context, share[static_cast<std::size_t>(context.rank())]);
  Context alone = Context::join(Environment{}, {});
  const auto all = count(alone, {0, 1, 2});
  const bool same = std::abs(std::get<0>(mine) - std::get<0>(all)) < 1e-12 &&
                    std::get<1>(mine) == std::get<1>(all) &&
                    std::get<2>(mine).equal(std::get<2>(all));
  return same ? 0 : 1;
}

// A rank that does not come, and ends when its own error file says why the others left. Its main
// thread is in one sleep, wherever its stacks are taken; who looks for the file is in none.
[[noreturn]] void hang(const Context& context, const std::filesystem::path& folder) {
  const auto file = folder / ("error-" + std::to_string(context.rank()) + ".json");
  std::thread([file] {
    while (!std::filesystem::exists(file)) ::poll(nullptr, 0, 10);
    std::_Exit(5);
  }).detach();
  std::this_thread::sleep_for(std::chrono::minutes(1));
  std::_Exit(5);
}

int hanging_backward(Context& context, const std::filesystem::path& folder) {
  Ddp ddp(rank_model(context), context, ddp_options());
  const Examples mine = share_of(context, make_examples(0));
  at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
  if (context.rank() == 1 && std::getenv("TEST_DIES") != nullptr) std::_Exit(3);
  if (context.rank() == 1) hang(context, folder);
  ddp(mine.inputs).sum().backward();
  ddp.module().parameters()[0].grad().sum().item<double>();  // a GPU's work is waited for here
  return 0;
}

int hanging_peer(Context& context, const std::filesystem::path& folder) {
  context.set_step(41 + context.rank());
  context.barrier();
  const char* who = std::getenv("TEST_HANGING_RANK");
  if (context.rank() == (who == nullptr ? 1 : std::atoi(who))) hang(context, folder);
  context.barrier();
  return 0;
}

int dead_peer(Context& context, const std::filesystem::path& /*folder*/) {
  if (context.rank() == 1) std::_Exit(3);
  for (int i = 0; i < 100; ++i) context.barrier();
  return 0;
}

// Rank 1 sleeps in one phase of each step, rank 0 waits for it. It goes on until both ranks' sums
// say so, in shares that only a quiet moment of the machine can give, or for a minute.
int slow_rank(Context& context, const std::string& phase,
              const std::function<void(int step)>& together) {
  constexpr double kSleep = 0.02;
  const auto sleep = [&](const char* here) {
    if (context.rank() == 1 && phase == here) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kSleep));
    }
  };
  int step = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 15; ++i) {
      context.set_phase("data");
      sleep("data");
      context.set_phase("compute");
      sleep("compute");
      together(step);
      context.set_step(++step);
    }
    const StepSums mine = context.step_sums().value();
    const double parts = *mine.data + *mine.compute + *mine.wait + mine.communication.value_or(0);
    require(mine.steps == step && std::abs(parts - mine.seconds) < 1e-6, "parts make the whole");
    require(mine.communication.has_value() == (context.transport() == Transport::shared_memory),
            "what a network moves is not told apart from waiting");
    const auto all = context.all_gather(at::tensor(
        {mine.seconds, *mine.data, *mine.compute, *mine.wait}, at::TensorOptions(at::kDouble)));
    const auto share = [&](int rank, int part) {
      const at::Tensor& its = all[static_cast<std::size_t>(rank)];
      return its[part].item<double>() / its[0].item<double>();
    };
    const int slept = phase == "data" ? 1 : 2;
    const double slow = all[1][slept].item<double>();
    require(slow > 0.99 * kSleep * step, "the sleep is where it was");
    if (share(1, slept) > 0.6 && share(1, 3) < 0.3 && share(0, 3) > 0.6) return 0;
  }
  return 1;
}

int slow_data(Context& context, const std::filesystem::path& /*folder*/) {
  return slow_rank(context, "data", [&](int) { context.barrier(); });
}

int slow_compute(Context& context, const std::filesystem::path& /*folder*/) {
  Ddp ddp(rank_model(context), context, ddp_options());
  return slow_rank(context, "compute", [&](int step) {
    const Examples mine = share_of(context, make_examples(step));
    at::cross_entropy_loss(ddp(mine.inputs), mine.labels).backward();
  });
}

}  // namespace

Examples share_of(const Context& context, const Examples& all) {
  const std::int64_t size = all.inputs.size(0) / context.world_size();
  return {all.inputs.narrow(0, context.rank() * size, size),
          all.labels.narrow(0, context.rank() * size, size)};
}

int run_job(const std::string& name, const std::filesystem::path& folder) {
  const std::map<std::string, std::function<int(Context&, const std::filesystem::path&)>> jobs{
      {"gradients", gradients},
      {"steps", steps},
      {"accumulate", accumulate},
      {"buffers", buffers},
      {"unused", unused},
      {"mismatch", mismatch},
      {"collectives", collectives},
      {"dead_peer", dead_peer},
      {"measures", measures},
      {"hanging_peer", hanging_peer},
      {"hanging_backward", hanging_backward},
      {"slow_data", slow_data},
      {"slow_compute", slow_compute}};
  return run([&] {
    Context::Options options;
    if (std::getenv("TEST_SMALL_FILES") != nullptr) {  // memory to share is a file too
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit small{1 << 20, 1 << 20};
      ::setrlimit(RLIMIT_FSIZE, &small);
    }
    if (const char* limit = std::getenv("TEST_TIMEOUT_MS")) {
      options.timeout = std::chrono::milliseconds(std::atoi(limit));
    }
    options.communication_thread = std::getenv("TEST_COMMUNICATION_THREAD") != nullptr;
    Environment environment = read_environment();
    if (std::getenv("TEST_GPU") != nullptr)
      environment.gpus_per_task = 1;  // as srun deals them out
    Context context = Context::join(environment, options);
    here() = context.device();
    for (const auto* more : {&ddp_jobs(), &parity_jobs(), &shared_jobs(), &zero_jobs()}) {
      if (const auto found = more->find(name); found != more->end()) {
        return found->second(context, folder);
      }
    }
    const auto job = jobs.find(name);
    return job == jobs.end() ? run_checkpoint_job(name, context, folder)
                             : job->second(context, folder);
  });
}

}  // namespace dtrain::train::test
