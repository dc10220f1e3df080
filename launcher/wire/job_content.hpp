#pragma once

#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/fields.hpp"

// For the messages that carry what a job's content is.
namespace dtrain::wire {

template <>
inline constexpr auto kReader<JobContent> = job_content_from_json;

}  // namespace dtrain::wire
