#pragma once

#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <boost/describe/class.hpp>
#include <boost/describe/enum.hpp>
#include <boost/describe/enum_from_string.hpp>
#include <boost/describe/enum_to_string.hpp>
#include <boost/describe/members.hpp>
#include <boost/mp11/algorithm.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/interface.hpp"
#include "launcher/wire/json.hpp"

// A message is read and written by one list of its fields: BOOST_DESCRIBE_STRUCT where the keys are
// its members' names and nothing more is to be said of them, else `fields(message, f)` in its
// namespace, which gives f keys and members by turns. Reading throws Error(invalid) that names the
// key; what a newer version adds is passed over.
namespace dtrain::wire {

// Whether M, which is const where it is written, is that message.
template <typename M, typename Wanted>
concept Is = std::is_same_v<std::remove_const_t<M>, Wanted>;

enum class Presence : std::uint8_t {
  required,
  or_default,  // absent, or null where it may be empty: as it was made
  if_set,      // the same, and not written while it is empty, zero or false
};
// Of a value, or of each in a list.
struct Rule {
  std::int64_t min = 0;  // min > max: from 0, a std::int64_t from -1 ("not known"), to its largest
  std::int64_t max = -1;
  bool any_id = false;  // an id becomes no part of a path here: it need not be a valid_name()
};
inline constexpr Rule kAnyInt{INT_MIN, INT_MAX};

template <typename T>
struct Field {
  T& value;
  Presence presence = Presence::required;
  Rule rule;
};

template <typename T>
Field<T> within(T& value, std::int64_t min, std::int64_t max = INT_MAX) {
  return {value, Presence::required, {min, max}};
}
template <typename T>
Field<T> or_default(T& value, Rule rule = {}) {
  return {value, Presence::or_default, rule};
}
template <typename T>
Field<T> if_set(T& value, Rule rule = {}) {
  return {value, Presence::if_set, rule};
}
template <typename T>
Field<T> any_id(T& value, Presence presence = Presence::required) {
  return {value, presence, {0, -1, true}};
}

// Specialized for a type that has a reader of its own, from its JSON, an enum from its text, an
// amount from its number; to_json(), for an enum to_string(), writes it.
template <typename T>
inline constexpr std::nullptr_t kReader{};

template <typename M>
requires boost::describe::has_describe_members<std::remove_const_t<M>>::value void fields(
    M& m, auto&& f) {
  using Members =
      boost::describe::describe_members<std::remove_const_t<M>, boost::describe::mod_public>;
  [&]<template <typename...> typename List, typename... Each>(List<Each...>) {
    (f(Each::name, m.*Each::pointer), ...);
  }(Members());
}

BOOST_DESCRIBE_STRUCT(Interface, (), (name, address))

// ---- How values are written and read.

template <typename T, template <typename...> typename Template>
inline constexpr bool kIsA = false;
template <typename... Args, template <typename...> typename Template>
inline constexpr bool kIsA<Template<Args...>, Template> = true;
template <typename T>
inline constexpr bool kIsDuration = false;
template <typename Rep, typename Period>
inline constexpr bool kIsDuration<std::chrono::duration<Rep, Period>> = true;
template <typename T>
inline constexpr bool kIsAmount = std::is_same_v<decltype(kReader<T>), T (*const)(double)>;
template <typename T>
inline constexpr bool kHasReader = !std::is_same_v<decltype(kReader<T>), const std::nullptr_t>;
template <typename T>
concept IsMessage = requires(T& m) {
  fields(m, [](auto&&...) {});
};

template <typename M>
nlohmann::json written(const M& message);
template <typename M>
void read(const nlohmann::json& object, M& message);

template <typename T>
nlohmann::json to_value(const T& value) {
  if constexpr (kHasReader<T> && std::is_enum_v<T>) {
    return to_string(value);
  } else if constexpr (kHasReader<T>) {
    return to_json(value);
  } else if constexpr (kIsA<T, Id>) {
    return value.str();
  } else if constexpr (std::is_same_v<T, fs::path>) {
    return value.string();
  } else if constexpr (kIsA<T, std::optional>) {
    return value ? to_value(*value) : nlohmann::json();
  } else if constexpr (kIsDuration<T>) {
    return value.count();
  } else if constexpr (std::is_same_v<T, WallTime>) {
    return to_millis(value);
  } else if constexpr (std::is_same_v<T, Error>) {
    return error_to_json(value).at("error");
  } else if constexpr (std::is_enum_v<T>) {
    return boost::describe::enum_to_string(value, "");
  } else if constexpr (kIsA<T, std::vector>) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& item : value) list.push_back(to_value(item));
    return list;
  } else if constexpr (IsMessage<const T>) {
    return written(value);
  } else {  // text, a number, true or false, JSON, an object of those
    return value;
  }
}

template <typename T>
T from_value(const nlohmann::json& value, const char* key, const Rule& rule = {}) {
  [[maybe_unused]] const auto whole = [&](std::int64_t min, std::int64_t max) {
    return rule.min > rule.max ? as_int(value, key, min, max)
                               : as_int(value, key, rule.min, rule.max);
  };
  if constexpr (kHasReader<T> && (std::is_enum_v<T> || kIsAmount<T>)) {
    const auto text = [&] {
      if constexpr (kIsAmount<T>) {
        return as_number(value, key);
      } else {
        return as_string(value, key);
      }
    }();
    try {
      return kReader<T>(text);
    } catch (const Error& error) {
      throw Error(error.code(), std::string("\"") + key + "\": " + error.message())
          .with_hint(error.hint());
    }
  } else if constexpr (kHasReader<T>) {
    if (!kIsA<T, std::vector> && !value.is_object()) wrong_type(key, "an object", value);
    return kReader<T>(value);
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, fs::path>) {
    return as_string(value, key);
  } else if constexpr (std::is_same_v<T, bool>) {
    return as_bool(value, key);
  } else if constexpr (std::is_floating_point_v<T>) {
    return as_number(value, key);
  } else if constexpr (std::is_integral_v<T>) {
    constexpr bool kSigned64 = std::is_same_v<T, std::int64_t>;
    return static_cast<T>(whole(kSigned64 ? -1 : 0, sizeof(T) < 8 ? INT_MAX : INT64_MAX));
  } else if constexpr (kIsDuration<T>) {
    return T(whole(0, INT_MAX));
  } else if constexpr (std::is_same_v<T, WallTime>) {
    return from_millis(whole(0, INT64_MAX / 1000000));  // that WallTime holds: to the year 2262
  } else if constexpr (kIsA<T, Id>) {
    T id(as_string(value, key));
    if (!rule.any_id && !valid_name(id.str())) {
      throw Error(ErrorCode::invalid, std::string("\"") + key + "\" is not a name");
    }
    return id;
  } else if constexpr (std::is_same_v<T, Error>) {
    return error_from_body(value);
  } else if constexpr (kIsA<T, std::optional>) {
    if (value.is_null()) return std::nullopt;
    return from_value<typename T::value_type>(value, key, rule);
  } else if constexpr (std::is_enum_v<T>) {
    T found{};
    const std::string name = as_string(value, key);
    if (boost::describe::enum_from_string(name.c_str(), found)) return found;
    std::string names;
    boost::mp11::mp_for_each<boost::describe::describe_enumerators<T>>(
        [&](auto each) { names += (names.empty() ? "" : ", ") + std::string(each.name); });
    throw Error(ErrorCode::invalid, std::string("\"") + key + "\" must be one of " + names +
                                        ", not " + printable(name.substr(0, 80), false));
  } else if constexpr (kIsA<T, std::vector>) {
    if (!value.is_array()) wrong_type(key, "a list", value);
    T list;
    for (const nlohmann::json& item : value) {
      list.push_back(from_value<typename T::value_type>(item, key, rule));
    }
    return list;
  } else if constexpr (IsMessage<T>) {
    T message;
    try {
      if (!value.is_object()) wrong_type(key, "an object", value);
      read(value, message);
    } catch (Error& error) {
      error.while_doing(std::string("reading \"") + key + "\"");
      throw;
    }
    return message;
  } else if constexpr (std::is_same_v<T, nlohmann::json>) {
    if (!value.is_object()) wrong_type(key, "an object", value);
    return value;
  } else {
    static_assert(std::is_same_v<typename T::key_type, std::string>);
    if (!value.is_object()) wrong_type(key, "an object", value);
    T map;
    for (const auto& [name, item] : value.items()) {
      map[name] = from_value<typename T::mapped_type>(item, key, rule);
    }
    return map;
  }
}

// ---- Messages.

struct FieldWriter {
  nlohmann::json& object;

  template <typename T, typename... Rest>
  void operator()(const char* key, const T& value, const Rest&... rest) const {
    if constexpr (kIsA<T, Field>) {
      if (value.presence != Presence::if_set || is_set(value.value)) {
        object[key] = to_value(value.value);
      }
    } else {
      object[key] = to_value(value);
    }
    if constexpr (sizeof...(Rest) > 0) (*this)(rest...);
  }

  template <typename T>
  static bool is_set(const T& value) {
    if constexpr (requires { value.empty(); }) {
      return !value.empty();
    } else if constexpr (std::is_constructible_v<bool, const T&>) {
      return static_cast<bool>(value);
    } else if constexpr (requires { value != T(); }) {
      return value != T();
    } else {
      return true;
    }
  }
};

struct FieldReader {
  const nlohmann::json& object;

  template <typename T, typename... Rest>
  void operator()(const char* key, T&& to, Rest&&... rest) const {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (!kIsA<Plain, Field>) {
      to = from_value<Plain>(member(object, key), key);
    } else if (to.presence == Presence::required || !object.is_object() || object.contains(key)) {
      using Value = std::remove_reference_t<decltype(to.value)>;
      const nlohmann::json& found = member(object, key);
      if constexpr (kIsA<Value, std::optional>) {
        if (!found.is_null() || to.presence != Presence::or_default) {
          to.value = from_value<typename Value::value_type>(found, key, to.rule);
        }
      } else {
        to.value = from_value<Value>(found, key, to.rule);
      }
    }
    if constexpr (sizeof...(Rest) > 0) (*this)(std::forward<Rest>(rest)...);
  }
};

template <typename M>
nlohmann::json written(const M& message) {
  nlohmann::json object = nlohmann::json::object();
  fields(message, FieldWriter{object});
  return object;
}

template <typename M>
void read(const nlohmann::json& object, M& message) {
  fields(message, FieldReader{object});
}

// ---- One of several messages: a field names it, in the order of the variant.

template <typename Variant>
using MessageNames = std::array<const char*, std::variant_size_v<Variant>>;

template <typename Variant>
nlohmann::json written_as(const char* key, const MessageNames<Variant>& names,
                          const Variant& message) {
  nlohmann::json object = std::visit([](const auto& each) { return written(each); }, message);
  object[key] = names[message.index()];
  return object;
}

// `unknown` begins what is said of a name that is none of these.
template <typename Variant>
Variant read_as(const char* key, const MessageNames<Variant>& names, const nlohmann::json& object,
                const std::string& unknown) {
  const std::string name = get_string(object, key);
  Variant message;
  const bool known = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return ((name == names[I] && (read(object, message.template emplace<I>()), true)) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
  if (!known) {
    throw Error(ErrorCode::invalid, unknown + printable(name.substr(0, 80), false));
  }
  return message;
}

}  // namespace dtrain::wire

namespace dtrain {

// An attempt, by its job and its number.
void fields(wire::Is<std::pair<JobId, int>> auto& m, auto&& f) {
  f("job", m.first, "attempt", wire::within(m.second, 1));
}

}  // namespace dtrain
