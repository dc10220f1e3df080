#include "trainer/report/tensorboard_logger.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"
#include "trainer/report/line_file.hpp"

namespace dtrain::train {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <typename Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// Protocol buffers' wire format: a key of field and type, then the value.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string real(int field, double value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 1) + little_endian(value);
}
std::string real(int field, float value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 5) + little_endian(value);
}
std::string bytes(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78U : 0);
    table[i] = value;
  }
  return table;
}

FileDescriptor new_file(const std::filesystem::path& folder, std::filesystem::path& path) {
  std::filesystem::create_directories(folder);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const std::string seconds = std::to_string(static_cast<long long>(now_seconds()));
  for (int i = 0;; ++i) {
    path = folder / ("events.out.tfevents." + seconds + "." + host + "." +
                     std::to_string(::getpid()) + "." + std::to_string(i));
    if (!std::filesystem::exists(path)) break;
  }
  return open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
}

// SessionStartInfo.hparams: a map of google.protobuf.Value.
void add_hyperparameters(const nlohmann::json& values, const std::string& prefix,
                         std::string& entries) {
  for (const auto& [key, value] : values.items()) {
    if (value.is_object()) {
      add_hyperparameters(value, prefix + key + "/", entries);
      continue;
    }
    std::string its;
    if (value.is_boolean()) {
      its = number(4, value.get<bool>() ? 1 : 0);
    } else if (value.is_number()) {
      its = real(2, value.get<double>());
    } else {
      its = bytes(3, value.is_string() ? value.get<std::string>() : value.dump());
    }
    entries += bytes(1, bytes(1, prefix + key) + bytes(2, its));
  }
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view text) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_table();
  std::uint32_t crc = 0xffffffffU;
  for (const char c : text) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(c)) & 0xff];
  crc ^= 0xffffffffU;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

void TensorBoardLogger::start(std::optional<std::int64_t> resumed_step) {
  file_ = new_file(folder_, path_);
  write_event(0, bytes(3, "brain.Event:2"));  // Event.file_version
  if (!resumed_step) return;
  // Event.session_log { status: START }: TensorBoard drops older events from the event's step on.
  // The checkpoint's own step has been seen before it was saved.
  write_event(*resumed_step + 1, bytes(7, number(1, 1)));
}

void TensorBoardLogger::log_hyperparams(const nlohmann::json& hyperparameters) {
  std::string entries;
  add_hyperparameters(hyperparameters, "", entries);
  // HParamsPluginData { version, session_start_info { hparams, start_time_secs } }
  const std::string start = bytes(3, entries + real(5, now_seconds()));
  const std::string plugin = bytes(1, "hparams") + bytes(2, number(1, 0) + start);
  // Summary.value { tag, metadata { plugin_data } }
  write_event(
      0, bytes(5, bytes(1, bytes(1, "_hparams_/session_start_info") + bytes(9, bytes(1, plugin)))));
}

void TensorBoardLogger::log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                                    const Metrics& metrics) {
  std::string summary;
  const auto add = [&summary](const std::string& name, double value) {
    summary += bytes(1, bytes(1, name) + real(2, static_cast<float>(value)));
  };
  for (const auto& [name, value] : metrics)
    add(name, value);  // Summary.value { tag, simple_value }
  if (epoch && !metrics.contains("epoch")) add("epoch", static_cast<double>(*epoch));
  write_event(step, bytes(5, summary));  // Event.summary
}

// A TFRecord: length, its sum, the bytes, their sum.
void TensorBoardLogger::write_event(std::int64_t step, const std::string& content) {
  const std::string event =
      real(1, now_seconds()) + number(2, static_cast<std::uint64_t>(step)) + content;
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  const std::string record =
      length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event));
  append_whole(file_.get(), record, path_);
}

}  // namespace dtrain::train
