#include "launcher/wire/json.hpp"

#include <doctest/doctest.h>

using namespace dtrain;
using nlohmann::json;

namespace {

template <typename Body>
std::string refused_body(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    return error.message();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("parse_json is bounded in size and depth, and in what it says") {
  CHECK(wire::parse_json("{\"a\":[1]}", "it")["a"][0] == 1);
  CHECK(refused_body([] { wire::parse_json("12345", "it", 4); }) == "it is larger than 4 bytes");
  CHECK(wire::parse_json("[[[]]]", "it", 100, 3).is_array());
  CHECK(refused_body([] { wire::parse_json("[[[]]]", "it", 100, 2); }) ==
        "it is nested deeper than 2 levels");
  CHECK(wire::parse_json(R"(["[[[\"[["])", "it", 100, 1).is_array());
  CHECK(refused_body([] { wire::parse_json(std::string(1 << 20, '['), "it"); }).find("deeper") !=
        std::string::npos);
  const std::string huge = refused_body([] { wire::parse_json(std::string(1 << 20, 'x'), "it"); });
  CHECK(huge.find("it is not JSON") == 0);
  CHECK(huge.size() < 1000);
  CHECK(refused_body([] { wire::parse_json("\"\xff\"", "it"); }).find("it is not JSON") == 0);
  CHECK(refused_body([] { wire::parse_json("", "it"); }).find("it is not JSON") == 0);
  CHECK(refused_body([] { wire::parse_json("1e999", "it"); }).find("it is not JSON") == 0);
  CHECK(refused_body([] { wire::parse_json("\"\\", "it"); }).find("it is not JSON") == 0);
}

TEST_CASE("dump never throws") {
  CHECK(wire::dump(json("a\xff")) == "\"a\xEF\xBF\xBD\"");
}

TEST_CASE("readers name the key, what was wanted and what was found") {
  const json object = json::parse(
      R"({"s":"x","i":5,"big":18446744073709551615,"n":1.5,"b":true,"l":["a","b"],"mixed":["a",1]})");
  CHECK(wire::get_string(object, "s") == "x");
  CHECK(wire::get_string(object, "gone", "else") == "else");
  CHECK(refused_body([&] { wire::get_string(object, "i"); }) ==
        "\"i\" must be a string, not number");
  CHECK(refused_body([&] { wire::get_string(object, "i", "else"); }) != "not refused");
  CHECK(refused_body([&] { wire::get_string(object, "gone"); }) == "\"gone\" is missing");
  CHECK(refused_body([&] { wire::get_string(json(3), "s"); }).find("an object with \"s\"") == 0);
  CHECK(wire::get_int(object, "i", 5, 5) == 5);
  CHECK(wire::get_int(object, "gone", 0, 9, 7) == 7);
  CHECK(refused_body([&] { wire::get_int(object, "i", 6, 9); }) ==
        "\"i\" must be from 6 to 9, not 5");
  CHECK(refused_body([&] { wire::get_int(object, "big", 0, INT64_MAX); }) != "not refused");
  CHECK(refused_body([&] { wire::get_int(object, "n", 0, 9); }) != "not refused");
  CHECK(wire::get_bool(object, "b", false));
  CHECK(refused_body([&] { wire::get_bool(object, "i", false); }) != "not refused");
  CHECK(wire::get_strings(object, "l") == std::vector<std::string>{"a", "b"});
  CHECK(refused_body([&] { wire::get_strings(object, "mixed"); }) != "not refused");
}

TEST_CASE("an error is the same error on the other side") {
  Error error(ErrorCode::not_found, "no job x");
  error.while_doing("reading").while_doing("looking").with_hint("try y").at({"f.yaml", 3, 4});
  const Error other = wire::error_from_json(json::parse(wire::error_to_json(error).dump()));
  CHECK(other.code() == error.code());
  CHECK(std::string(other.what()) == error.what());
  CHECK(other.context() == error.context());
  CHECK(other.hint() == error.hint());
  REQUIRE(other.location().has_value());
  CHECK(other.location()->str() == "f.yaml:3:4");
  const Error plain = wire::error_from_json(wire::error_to_json(Error(ErrorCode::io, "x")));
  CHECK_FALSE(plain.location().has_value());
}
