#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/spec/checks.hpp"

// Which keys EC2's API takes, by its own model: what a node_config of provider aws may say. The
// table is written by scripts/ec2_model.
namespace dtrain::spec {

struct Ec2Member {
  enum class Kind : std::uint8_t { text, whole, number, boolean, structure };

  std::string_view shape;  // whose member it is
  std::string_view name;   // as in YAML: "SecurityGroupIds"
  std::string_view wire;   // as it is sent: "SecurityGroupId"
  Kind kind = Kind::text;  // of each, where it is a list
  bool list = false;
  std::string_view inner;  // of a structure: its shape
};

inline constexpr const char* kRunInstances = "RunInstancesRequest";  // a node_config
inline constexpr const char* kIpPermission = "IpPermission";         // of a security group

// What ImageId may be besides EC2's own: images that are looked for.
inline constexpr std::array<std::string_view, 3> kImageAliases{"latest_dlami", "latest_ubuntu",
                                                               "latest_amazon_linux"};
// Of what there is: "ami-…", what SSM has, or an alias.
bool is_image(std::string_view image) noexcept;
std::string image_hint();  // for one that is none

// Sorted by shape and name.
std::span<const Ec2Member> ec2_members() noexcept;
std::span<const Ec2Member> ec2_members(std::string_view shape) noexcept;
const Ec2Member* find_ec2_member(std::string_view shape, std::string_view name) noexcept;

// What is wrong with a value of this shape, at paths below `path`: keys that there are none of,
// with the nearest that there is, and values of another kind. null is as good as absent.
std::vector<Problem> ec2_problems(const nlohmann::json& value, std::string_view shape,
                                  const Path& path);

}  // namespace dtrain::spec
