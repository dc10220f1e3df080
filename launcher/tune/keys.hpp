#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/tune/problem.hpp"

// Inside of launcher/tune: reads an object's keys into what stands there already, so that an absent
// key leaves its default, and says what is wrong with each.
namespace dtrain::tune {

class Keys {
 public:
  Keys(const nlohmann::json& object, Path path, Problems& problems);

  const nlohmann::json* find(const std::string& key);  // null: absent
  // Bounds of numbers are inclusive; `above`: the lower one is not.
  void number(const std::string& key, double& to, double min, double max, bool above = false);
  template <typename Number>
  void whole(const std::string& key, Number& to, std::int64_t min, std::int64_t max) {
    if (const auto number = whole_of(key, min, max)) to = *number;
  }
  void flag(const std::string& key, bool& to);
  void text(const std::string& key, std::string& to);
  // The enumerator whose name it is, of `names` in their order.
  template <typename Enum, typename Names>
  void one_of(const std::string& key, Enum& to, const Names& names) {
    auto index = static_cast<std::size_t>(to);
    index_of(key, index, {names.begin(), names.end()});
    to = static_cast<Enum>(index);
  }
  // Every key that was not asked for is a problem.
  void finish();

  void wrong(const std::string& key, const std::string& message, const std::string& hint = {});
  Path path(const std::string& key) const { return with(path_, key); }
  Problems& problems() const { return problems_; }

 private:
  std::optional<std::int64_t> whole_of(const std::string& key, std::int64_t min, std::int64_t max);
  void index_of(const std::string& key, std::size_t& to, const std::vector<std::string>& names);

  const nlohmann::json* object_ = nullptr;
  Path path_;
  Problems& problems_;
  std::vector<std::string> known_;
};

// "tpe" stands for {algorithm: tpe}.
nlohmann::json spelled_out(const nlohmann::json& json);

// A value for a message: printable and cut.
std::string shown(const nlohmann::json& value);

}  // namespace dtrain::tune
