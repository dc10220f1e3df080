// Times all-reduce of f32 on one host: Gloo over loopback, beside shared memory with the tensors
// elsewhere (staged) and in the shared heap (in place). Not a test: scripts/bench runs it.
//
//     bench_all_reduce [RANKS…]      default: 2 4

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "trainer/comm/allocator.hpp"
#include "trainer/comm/backend.hpp"

namespace {

using namespace dtrain::train::comm;
using Clock = std::chrono::steady_clock;

at::Tensor make_tensor(std::int64_t bytes, bool shared) {
  std::optional<SharedTensors> guard;
  if (shared) guard.emplace();
  at::Tensor tensor = at::empty({bytes / 4}, at::kFloat);
  tensor.fill_(1e-3);
  return tensor;
}

// Seconds of one call: the median of rounds, of which each is as long as its slowest rank's.
double time_of(c10d::Backend& backend, const at::Tensor& tensor, int rounds, int calls) {
  std::vector<at::Tensor> tensors{tensor};
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    backend.barrier(c10d::BarrierOptions())->wait();
    const Clock::time_point began = Clock::now();
    for (int call = 0; call < calls; ++call) {
      backend.allreduce(tensors, c10d::AllreduceOptions())->wait();
    }
    times.push_back(std::chrono::duration<double>(Clock::now() - began).count() / calls);
    tensor.fill_(1e-3);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void run_rank(int rank, int ranks, const std::string& folder) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(folder + "/store", ranks);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(2));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, ranks, options);
  const SharedBackend shared =
      make_shared_backend(c10::make_intrusive<c10d::PrefixStore>("shared", store), rank, ranks, {});
  if (!shared.backend) throw std::runtime_error(shared.problem);
  const bool threaded = std::getenv("BENCH_THREAD") != nullptr;
  const SharedBackend other =
      make_shared_backend(c10::make_intrusive<c10d::PrefixStore>("other", store), rank, ranks,
                          {.name = "other", .thread = threaded});
  if (rank == 0) {
    std::printf("%d ranks\n%10s %12s %12s %12s %9s %9s\n", ranks, "bytes", "Gloo ms", "staged ms",
                "in place ms", "staged x", "in place x");
  }
  for (std::int64_t bytes = 4 << 10; bytes <= (256 << 20); bytes *= 4) {
    const at::Tensor elsewhere = make_tensor(bytes, false);
    const at::Tensor inside = make_tensor(bytes, true);
    const int rounds = bytes >= (16 << 20) ? 5 : 7;
    const int calls = static_cast<int>(std::clamp<std::int64_t>((16 << 20) / bytes, 1, 200));
    time_of(*shared.backend, elsewhere, 1, 1);  // touches the memory
    time_of(*shared.backend, inside, 1, 1);
    time_of(*gloo, elsewhere, 1, 1);
    std::vector<double> a, b, c;
    for (int pair = 0; pair < 3; ++pair) {
      a.push_back(time_of(*gloo, elsewhere, rounds, std::min(calls, 50)));
      b.push_back(time_of(*other.backend, elsewhere, rounds, calls));
      c.push_back(time_of(*other.backend, inside, rounds, calls));
    }
    for (auto* times : {&a, &b, &c}) std::sort(times->begin(), times->end());
    if (rank == 0) {
      std::printf("%10lld %12.4f %12.4f %12.4f %9.1f %9.1f\n", static_cast<long long>(bytes),
                  a[1] * 1e3, b[1] * 1e3, c[1] * 1e3, a[1] / b[1], a[1] / c[1]);
      std::fflush(stdout);
    }
  }
  shared.group->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> counts;
  for (int i = 1; i < argc; ++i) counts.push_back(std::atoi(argv[i]));
  if (counts.empty()) counts = {2, 4};
  int failed = 0;
  for (const int ranks : counts) {
    char folder[] = "/tmp/bench-all-reduce-XXXXXX";
    if (::mkdtemp(folder) == nullptr) return 1;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        try {
          run_rank(rank, ranks, folder);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          std::_Exit(1);
        }
        std::_Exit(0);
      }
      pids.push_back(pid);
    }
    for (const pid_t pid : pids) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      if (status != 0) failed = 1;
    }
    std::filesystem::remove_all(folder);
  }
  return failed;
}
