#include "trainer/train/one_thread.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace dtrain::train {
namespace {

// The functions of OpenMP and of MKL that LibTorch itself calls, which set the calling thread's
// number. A build without one of them has no such teams.
void set_number(const char* name) {
  if (void* const found = dlsym(RTLD_DEFAULT, name)) reinterpret_cast<void (*)(int)>(found)(1);
}

}  // namespace

void keep_to_one_thread() {
  thread_local bool kept = false;
  if (kept) return;
  kept = true;
  at::get_num_threads();  // a thread's first use of ATen sets its number, so it must lie behind us
  set_number("omp_set_num_threads");
  set_number("MKL_Set_Num_Threads_Local");  // in small letters it is Fortran's, of a pointer
}

}  // namespace dtrain::train
