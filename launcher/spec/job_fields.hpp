#pragma once

#include "launcher/spec/job_spec.hpp"
#include "launcher/spec/values.hpp"
#include "launcher/wire/fields.hpp"

// How what jobs and messages about them have in common is written and read.
namespace dtrain {

void fields(wire::Is<JobContent> auto& m, auto&& f) {
  using wire::or_default;
  f("workdir_tree", or_default(m.workdir_tree), "bundle_tree", or_default(m.bundle_tree), "program",
    or_default(m.program), "glibc", or_default(m.glibc), "glibc_of", or_default(m.glibc_of),
    "profiler_tree", or_default(m.profiler_tree), "size", or_default(m.size));
}

}  // namespace dtrain

namespace dtrain::wire {

template <>
inline constexpr auto kReader<OnHeadLost> = parse_on_head_lost;

}  // namespace dtrain::wire
