#include "trainer/report/tensorboard_logger.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;

// A reader of event files from the formats' descriptions, with nothing of the writer's.
namespace {

std::uint32_t slow_crc32c(const std::string& bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78U : crc >> 1;
  }
  return ~crc;
}

std::uint32_t slow_mask(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

template <typename T>
T take(std::string& bytes) {
  T value{};
  REQUIRE(bytes.size() >= sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.erase(0, sizeof value);
  return value;
}

std::uint64_t take_varint(std::string& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<std::uint8_t>(bytes);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
}

struct Field {
  std::uint64_t number = 0;
  std::uint64_t whole = 0;
  double real = 0;
  std::string bytes;
};

std::vector<Field> fields_of(std::string message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const std::uint64_t key = take_varint(message);
    Field field;
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.whole = take_varint(message);
        break;
      case 1:
        field.real = take<double>(message);
        break;
      case 2: {
        const std::uint64_t size = take_varint(message);
        REQUIRE(size <= message.size());
        field.bytes = message.substr(0, size);
        message.erase(0, size);
        break;
      }
      case 5:
        field.real = take<float>(message);
        break;
      default:
        FAIL("a wire type that is not used");
    }
    fields.push_back(field);
  }
  return fields;
}

std::vector<std::vector<Field>> events_of(const std::filesystem::path& path) {
  std::vector<std::vector<Field>> events;
  std::string file = test::read_file(path);
  while (!file.empty()) {
    const std::string length = file.substr(0, 8);
    const auto size = take<std::uint64_t>(file);
    CHECK(take<std::uint32_t>(file) == slow_mask(slow_crc32c(length)));
    REQUIRE(size <= file.size());
    const std::string event = file.substr(0, size);
    file.erase(0, size);
    CHECK(take<std::uint32_t>(file) == slow_mask(slow_crc32c(event)));
    events.push_back(fields_of(event));
  }
  return events;
}

const Field& field(const std::vector<Field>& fields, std::uint64_t number) {
  for (const Field& item : fields) {
    if (item.number == number) return item;
  }
  throw std::runtime_error("no field " + std::to_string(number));
}

}  // namespace

TEST_CASE("the sum is CRC-32C") {
  CHECK(slow_crc32c("123456789") == 0xe3069283U);  // the polynomial's known answer
  CHECK(masked_crc32c("123456789") == slow_mask(0xe3069283U));
}

TEST_CASE("scalars are read back from an event file") {
  const test::TemporaryFolder folder;
  TensorBoardLogger board(folder / "run");
  CHECK(!std::filesystem::exists(folder / "run"));
  board.start(199);
  board.log_metrics(300, 2, {{"loss", 0.25}, {"accuracy", 0.5}});
  CHECK(board.path().filename().string().starts_with("events.out.tfevents."));
  const auto events = events_of(board.path());
  REQUIRE(events.size() == 3);
  CHECK(field(events[0], 3).bytes == "brain.Event:2");
  CHECK(field(events[0], 1).real > 1.6e9);  // wall time
  CHECK(field(events[1], 2).whole == 200);
  CHECK(field(fields_of(field(events[1], 7).bytes), 1).whole == 1);
  CHECK(field(events[2], 2).whole == 300);
  std::map<std::string, double> scalars;
  for (const Field& value : fields_of(field(events[2], 5).bytes)) {
    const auto parts = fields_of(value.bytes);
    scalars[field(parts, 1).bytes] = field(parts, 2).real;
  }
  CHECK(scalars == std::map<std::string, double>{{"accuracy", 0.5}, {"epoch", 2}, {"loss", 0.25}});
}

TEST_CASE("hyperparameters are those of TensorBoard's plugin") {
  const test::TemporaryFolder folder;
  TensorBoardLogger board(folder / "run");
  board.start(std::nullopt);
  board.log_hyperparams({{"lr", 0.5}, {"net", {{"name", "vit"}, {"tied", true}}}});
  const auto events = events_of(board.path());
  REQUIRE(events.size() == 2);
  const auto value = fields_of(field(fields_of(field(events[1], 5).bytes), 1).bytes);
  CHECK(field(value, 1).bytes == "_hparams_/session_start_info");
  const auto plugin = fields_of(field(fields_of(field(value, 9).bytes), 1).bytes);
  CHECK(field(plugin, 1).bytes == "hparams");
  std::map<std::string, Field> found;
  for (const Field& entry : fields_of(field(fields_of(field(plugin, 2).bytes), 3).bytes)) {
    if (entry.number != 1) continue;
    const auto parts = fields_of(entry.bytes);
    found[field(parts, 1).bytes] = fields_of(field(parts, 2).bytes).at(0);
  }
  REQUIRE(found.size() == 3);
  CHECK((found.at("lr").number == 2 && found.at("lr").real == 0.5));
  CHECK((found.at("net/name").number == 3 && found.at("net/name").bytes == "vit"));
  CHECK((found.at("net/tied").number == 4 && found.at("net/tied").whole == 1));
}

TEST_CASE("two writers of one folder have a file each") {
  const test::TemporaryFolder folder;
  TensorBoardLogger first(folder.path());
  TensorBoardLogger second(folder.path());
  first.start(std::nullopt);
  second.start(std::nullopt);
  CHECK(first.path() != second.path());
}
