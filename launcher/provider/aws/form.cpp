#include "launcher/provider/aws/form.hpp"

#include <nlohmann/json.hpp>

#include "launcher/spec/ec2_model.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;
using spec::Ec2Member;

void flatten_structure(const json& value, std::string_view shape, const std::string& prefix,
                       Form& form);

void flatten_one(const json& value, const Ec2Member& member, const std::string& name, Form& form) {
  if (member.kind == Ec2Member::Kind::structure) {
    flatten_structure(value, member.inner, name + ".", form);
  } else {
    form.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

void flatten_structure(const json& value, std::string_view shape, const std::string& prefix,
                       Form& form) {
  for (const auto& [key, inner] : value.items()) {
    if (inner.is_null()) continue;
    const Ec2Member& member = *spec::find_ec2_member(shape, key);
    const std::string name = prefix + std::string(member.wire);
    if (!member.list) {
      flatten_one(inner, member, name, form);
      continue;
    }
    for (std::size_t i = 0; i < inner.size(); ++i) {
      flatten_one(inner[i], member, name + "." + std::to_string(i + 1), form);
    }
  }
}

}  // namespace

void flatten(const json& value, std::string_view shape, const std::string& prefix, Form& form) {
  const auto problems = spec::ec2_problems(value, shape, {});
  if (!problems.empty()) throw Error(problems.front().error());
  flatten_structure(value, shape, prefix, form);
}

}  // namespace dtrain::aws
