#pragma once

#include <set>
#include <string>
#include <string_view>

#include "launcher/spec/job_spec.hpp"
#include "launcher/tune/problem.hpp"
#include "launcher/tune/space.hpp"

// Where a trial's parameters stand in its job: {name} in the command and in values of env, where
// `name` is a parameter of the space, and {name:text} with what stands there in trials that do not
// have it. All other braces stay as they are, and so does ${name}, which is a shell's.
namespace dtrain::tune {

// As a word of a command: a text as it is, numbers so that they are read back as they are, true and
// false, lists as JSON.
std::string word_of(const nlohmann::json& value);

// `quoted`: each value as one word of a shell. Throws Error(invalid) for a parameter that the
// trial does not have and that has no other text there.
std::string filled(std::string_view text, const SearchSpace& space, const Params& params,
                   bool quoted);

// What cannot be replaced in every trial: a parameter that may be absent and has no other text, a
// {word} that is nearly a parameter's name, a group of parameters.
void check_placeholders(const JobSpec& job, const SearchSpace& space, Problems& problems);

// The parameters whose {name} stand there.
std::set<std::string> placeholders_of(const JobSpec& job, const SearchSpace& space);

// `job` with these parameters in it.
JobSpec trial_job(const JobSpec& job, const SearchSpace& space, const Params& params);

}  // namespace dtrain::tune
