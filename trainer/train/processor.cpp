#include "trainer/train/processor.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace dtrain::train {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Tile registers (CPUID.7.0:EDX, AMX-TILE) of which nothing says how large they are (CPUID.1DH:EAX,
// the highest palette): oneDNN takes its sizes from there, and would set up none.
bool has_tiles_of_no_size() {
  constexpr unsigned kTiles = 1U << 24;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0) return false;
  return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) == 0 || a == 0;
}
#endif

std::atomic<bool> must_tell{false};

}  // namespace

void prepare_processor([[maybe_unused]] bool tells) {
#if defined(__x86_64__) && defined(__linux__)
  static const bool once = [tells] {
    if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || !has_tiles_of_no_size()) return true;
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
