#include "trainer/train/processor.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace dtrain::train {
namespace {

#if defined(__x86_64__) && defined(__linux__)
bool has_tiles() {
  constexpr unsigned kTiles = 1U << 24;  // CPUID.7.0:EDX, AMX-TILE
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0;
}

bool product_works() {
  const pid_t pid = ::fork();
  if (pid < 0) return true;  // nothing is known
  if (pid == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGILL, SIG_DFL);
    ::alarm(10);  // it must not hang the parent, whatever happens
    at::set_num_threads(1);  // a pool, if there is one, has no threads here
    const at::Tensor ones = at::ones({64, 64}, at::kBFloat16);
    at::matmul(ones, ones);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return !(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
}
#endif

std::atomic<bool> must_tell{false};

}  // namespace

void prepare_processor([[maybe_unused]] bool tells) {
#if defined(__x86_64__) && defined(__linux__)
  static const bool once = [tells] {
    if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || !has_tiles() || product_works()) {
      return true;
    }
    ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
    must_tell = tells;
    return true;
  }();
  static_cast<void>(once);
#endif
}

void tell_of_processor() {
  if (!must_tell.exchange(false)) return;
  std::fprintf(stderr,
               "warning: this machine's AMX does not work with LibTorch: doing without it "
               "(ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)\n");
}

}  // namespace dtrain::train
