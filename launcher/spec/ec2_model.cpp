#include "launcher/spec/ec2_model.hpp"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::spec {
namespace {

using nlohmann::json;

constexpr std::size_t kMostProblems = 100;  // as a Report keeps
constexpr std::size_t kLongestName = 64;    // of which another is a slip

const char* wanted(Ec2Member::Kind kind) {
  switch (kind) {
    case Ec2Member::Kind::text:
      return "a text";
    case Ec2Member::Kind::whole:
      return "a whole number";
    case Ec2Member::Kind::number:
      return "a number";
    case Ec2Member::Kind::boolean:
      return "true or false";
    case Ec2Member::Kind::structure:
      return "a mapping";
  }
  return "?";
}

// A text that is a number or a truth value is one where that is wanted, and a whole number is the
// text that it was; how any other number or a truth value was written is not known any more.
bool fits(const json& value, Ec2Member::Kind kind) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  switch (kind) {
    case Ec2Member::Kind::text:
      return value.is_string() || value.is_number_integer();
    case Ec2Member::Kind::whole:
      return value.is_number_integer() || number_from<std::int64_t>(text).has_value();
    case Ec2Member::Kind::number:
      return value.is_number() || number_from<double>(text).has_value();
    case Ec2Member::Kind::boolean:
      return value.is_boolean() || text == "true" || text == "false";
    case Ec2Member::Kind::structure:
      return value.is_object();
  }
  return false;
}

class Ec2Checker {
 public:
  void structure(const json& value, std::string_view shape, const Path& path) {
    for (const auto& [name, inner] : value.items()) {
      if (problems_.size() >= kMostProblems) return;
      const Ec2Member* member = find_ec2_member(shape, name);
      if (member != nullptr) {
        any(inner, *member, with(path, name));
        continue;
      }
      std::vector<std::string> names;
      for (const Ec2Member& each : ec2_members(shape)) names.emplace_back(each.name);
      const auto near = name.size() <= kLongestName ? nearest(name, names) : std::nullopt;
      problems_.push_back({with(path, name), "is no key that EC2 has here",
                           near                 ? "did you mean " + *near + "?"
                           : names.size() <= 12 ? "there are: " + join(names, ", ")
                                                : ""});
    }
  }

  std::vector<Problem> take() { return std::move(problems_); }

 private:
  void any(const json& value, const Ec2Member& member, const Path& path) {
    if (value.is_null()) return;
    if (!member.list) return one(value, member, path);
    if (!value.is_array()) {
      problems_.push_back({path, std::string("must be a list, each ") + wanted(member.kind), ""});
      return;
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      one(value[i], member, with(path, "[" + std::to_string(i) + "]"));
    }
  }

  void one(const json& value, const Ec2Member& member, const Path& path) {
    if (!fits(value, member.kind)) {
      const bool was_text = member.kind == Ec2Member::Kind::text && value.is_primitive();
      problems_.push_back({path, std::string("must be ") + wanted(member.kind),
                           was_text && !value.is_null() ? "put quotes around it" : ""});
    } else if (member.kind == Ec2Member::Kind::structure) {
      structure(value, member.inner, path);
    }
  }

  std::vector<Problem> problems_;
};

}  // namespace

bool is_image(std::string_view image) noexcept {
  return image.starts_with("ami-") || image.starts_with("resolve:ssm:") ||
         std::find(kImageAliases.begin(), kImageAliases.end(), image) != kImageAliases.end();
}

std::string image_hint() {
  const std::vector<std::string> names(kImageAliases.begin(), kImageAliases.end());
  return "ami-…, resolve:ssm:NAME, or one of " + join(names, ", ");
}

std::span<const Ec2Member> ec2_members(std::string_view shape) noexcept {
  const auto all = ec2_members();
  const auto begin = std::lower_bound(
      all.begin(), all.end(), shape,
      [](const Ec2Member& member, std::string_view wanted) { return member.shape < wanted; });
  const auto end = std::find_if(begin, all.end(),
                                [&](const Ec2Member& member) { return member.shape != shape; });
  return {begin, end};
}

const Ec2Member* find_ec2_member(std::string_view shape, std::string_view name) noexcept {
  const auto members = ec2_members(shape);
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const Ec2Member& member) { return member.name == name; });
  return found == members.end() ? nullptr : &*found;
}

std::vector<Problem> ec2_problems(const json& value, std::string_view shape, const Path& path) {
  Ec2Checker checker;
  if (value.is_object()) checker.structure(value, shape, path);
  return checker.take();
}

}  // namespace dtrain::spec
