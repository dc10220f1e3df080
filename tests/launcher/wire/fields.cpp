#include "launcher/wire/fields.hpp"

#include <doctest/doctest.h>

using namespace dtrain;
using namespace dtrain::wire;
using nlohmann::json;

namespace said {

enum class Mood : std::uint8_t { calm, loud };
BOOST_DESCRIBE_ENUM(Mood, calm, loud)

struct Plain {
  std::string text;
  std::int64_t bytes = 0;
  NodeId node{"node-1"};
  Mood mood = Mood::calm;
  std::optional<int> port;
  std::vector<Interface> interfaces;
  std::map<std::string, std::string> env;
};
BOOST_DESCRIBE_STRUCT(Plain, (), (text, bytes, node, mood, port, interfaces, env))

struct Ruled {
  int attempt = 1;
  int rows = 24;
  std::vector<int> pids;
  std::optional<std::chrono::seconds> grace;
  bool lasting = false;
  JobId job;
};
void fields(Is<Ruled> auto& m, auto&& f) {
  f("attempt", within(m.attempt, 1), "rows", or_default(m.rows, {1, 100}), "pids",
    if_set(m.pids, {2, 9}), "grace_s", if_set(m.grace), "lasting", if_set(m.lasting), "job",
    any_id(m.job));
}

using Either = std::variant<Plain, Ruled>;

}  // namespace said

namespace {

constexpr MessageNames<said::Either> kNames{"plain", "ruled"};

json plain() {
  return {{"text", "x"},
          {"bytes", -1},
          {"node", "node-2"},
          {"mood", "loud"},
          {"port", nullptr},
          {"interfaces", json::array({json{{"name", "eth0"}, {"address", "10.0.0.1"}}})},
          {"env", {{"A", "b"}}}};
}

template <typename M>
json written_again(const json& object) {
  M message;
  read(object, message);
  return written(message);
}

// What is said of `object` with `key` changed, or absent where `value` is not given.
template <typename M>
std::string refused_fields(json object, const char* key, const std::optional<json>& value) {
  if (value) {
    object[key] = *value;
  } else {
    object.erase(key);
  }
  try {
    written_again<M>(object);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    return error.what();
  }
  return "not refused";
}

}  // namespace

TEST_CASE("a described message has all its members, by their names") {
  CHECK(written_again<said::Plain>(plain()) == plain());
  json more = plain();
  more["added_later"] = 1;
  CHECK(written_again<said::Plain>(more) == plain());
  const json all = plain();
  for (const auto& field : all.items()) {
    CHECK(refused_fields<said::Plain>(all, field.key().c_str(), std::nullopt) ==
          "\"" + field.key() + "\" is missing");
  }
  CHECK(refused_fields<said::Plain>(plain(), "text", 1) == "\"text\" must be a string, not number");
  CHECK(refused_fields<said::Plain>(plain(), "bytes", -2)
            .starts_with("\"bytes\" must be from -1 to"));
  CHECK(refused_fields<said::Plain>(plain(), "node", "../x") == "\"node\" is not a name");
  CHECK(refused_fields<said::Plain>(plain(), "mood", "sad") ==
        "\"mood\" must be one of calm, loud, not sad");
  CHECK(refused_fields<said::Plain>(plain(), "port", -1).starts_with("\"port\" must be from 0 to"));
  CHECK(refused_fields<said::Plain>(plain(), "env", json{{"A", 1}}) ==
        "\"env\" must be a string, not number");
  CHECK(refused_fields<said::Plain>(plain(), "interfaces", "x") ==
        "\"interfaces\" must be a list, not string");
  CHECK(refused_fields<said::Plain>(plain(), "interfaces", json::array({json{{"name", "eth0"}}})) ==
        "\"address\" is missing, while reading \"interfaces\"");
}

TEST_CASE("a field may be absent, be left out, and have bounds") {
  const json least = {{"attempt", 1}, {"rows", 24}, {"job", "../any"}};
  CHECK(written_again<said::Ruled>({{"attempt", 1}, {"job", "../any"}}) == least);
  json most = least;
  most["pids"] = json{2, 9};
  most["grace_s"] = 0;
  most["lasting"] = true;
  CHECK(written_again<said::Ruled>(most) == most);
  CHECK(refused_fields<said::Ruled>(least, "attempt", 0)
            .starts_with("\"attempt\" must be from 1 to"));
  CHECK(refused_fields<said::Ruled>(least, "rows", 101) ==
        "\"rows\" must be from 1 to 100, not 101");
  CHECK(refused_fields<said::Ruled>(least, "pids", json{2, 10}) ==
        "\"pids\" must be from 2 to 9, not 10");
  CHECK(refused_fields<said::Ruled>(least, "grace_s", json()) ==
        "\"grace_s\" must be a whole number, not null");
}

TEST_CASE("one of several messages goes by its name") {
  json ruled = {{"type", "ruled"}, {"attempt", 3}, {"rows", 5}, {"job", "j"}};
  const auto message = read_as<said::Either>("type", kNames, ruled, "unknown message ");
  CHECK(std::get<said::Ruled>(message).attempt == 3);
  CHECK(written_as("type", kNames, message) == ruled);
  ruled["type"] = "dance";
  CHECK_THROWS_WITH_AS(read_as<said::Either>("type", kNames, ruled, "unknown message "),
                       "unknown message dance", Error);
}
