#include "trainer/train/profiler.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities() {
  std::set<ActivityType> all{ActivityType::CPU};
#ifdef DTRAIN_CUDA
  all.insert(ActivityType::CUDA);
#endif
  return all;
}

}  // namespace

Profile::Profile() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, activities());
  torch::autograd::profiler::enableProfiler(config, activities());
}

Profile::~Profile() {
  if (!runs_) return;
  try {
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // Nothing was asked for.
  }
}

void Profile::save(const std::filesystem::path& path) {
  runs_ = false;
  const auto result = torch::autograd::profiler::disableProfiler();
  std::error_code error;
  std::filesystem::remove(path, error);
  result->save(path.string());
  if (!std::filesystem::exists(path)) throw Error("cannot write the profile to " + path.string());
}

}  // namespace dtrain::train
