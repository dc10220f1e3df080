#include "trainer/checkpoint/safetensors_header.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostDimensions = 64;

// The events of nlohmann's SAX parser, as the states of one header.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& name) override {
    switch (at_) {
      case At::top:
        if (!names_.insert(name).second) fail("'" + name + "' comes twice");
        if (name == "__metadata__") {
          at_ = At::metadata_value;
        } else {
          entry_ = TensorEntry{};
          entry_.name = name;
          seen_ = 0;
          at_ = At::tensor_value;
        }
        return true;
      case At::metadata:
        if (header_.metadata.contains(name)) fail("metadata '" + name + "' comes twice");
        metadata_key_ = name;
        return true;
      case At::tensor:
        for (unsigned i = 0; i < 3; ++i) {
          if (name != kKeys[i]) continue;
          if ((seen_ & 1U << i) != 0) fail(where() + "'" + name + "' comes twice");
          seen_ |= 1U << i;
          key_ = i;
          return true;
        }
        fail(where() + "unknown key '" + name + "'");
      case At::start:
      case At::metadata_value:
      case At::tensor_value:
      case At::numbers:
      case At::done:
        break;
    }
    unexpected("a key");
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (at_) {
      case At::start:
        at_ = At::top;
        return true;
      case At::metadata_value:
        at_ = At::metadata;
        return true;
      case At::tensor_value:
        at_ = At::tensor;
        return true;
      case At::top:
      case At::metadata:
      case At::tensor:
      case At::numbers:
      case At::done:
        break;
    }
    unexpected("an object");
  }

  bool end_object() override {
    switch (at_) {
      case At::top:
        at_ = At::done;
        return true;
      case At::metadata:
        at_ = At::top;
        return true;
      case At::tensor:
        for (unsigned i = 0; i < 3; ++i) {
          if ((seen_ & 1U << i) == 0) fail(where() + "'" + kKeys[i] + "' is missing");
        }
        header_.tensors.push_back(std::move(entry_));
        at_ = At::top;
        return true;
      case At::start:
      case At::metadata_value:
      case At::tensor_value:
      case At::numbers:
      case At::done:
        break;
    }
    unexpected("the end of an object");
  }

  bool start_array(std::size_t /*elements*/) override {
    if (at_ != At::tensor || key_ == kDType) unexpected("an array");
    at_ = At::numbers;
    numbers_ = 0;
    return true;
  }

  bool end_array() override {
    if (key_ == kOffsets && numbers_ != 2) fail(where() + "data_offsets needs two numbers");
    at_ = At::tensor;
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::metadata) {
      header_.metadata[metadata_key_] = text;
      return true;
    }
    if (at_ != At::tensor || key_ != kDType) unexpected("a string");
    const std::optional<DType> dtype = dtype_from(text);
    if (!dtype) fail(where() + "unknown dtype '" + text + "'");
    entry_.dtype = *dtype;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (at_ != At::numbers) unexpected("a number");
    ++numbers_;
    if (key_ == kShape) {
      if (numbers_ > kMostDimensions) fail(where() + "more than 64 dimensions");
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(where() + "a dimension of " + std::to_string(number));
      }
      entry_.shape.push_back(static_cast<std::int64_t>(number));
    } else if (numbers_ <= 2) {
      (numbers_ == 1 ? entry_.begin : entry_.end) = number;
    } else {
      fail(where() + "data_offsets needs two numbers");
    }
    return true;
  }

  bool number_integer(number_integer_t number) override {
    unexpected("the number " + std::to_string(number));
  }
  bool number_float(number_float_t /*number*/, const string_t& text) override {
    unexpected("the number " + text);
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool /*value*/) override { unexpected("a boolean"); }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    fail("the header is not JSON at its byte " + std::to_string(position));
  }

 private:
  enum class At : std::uint8_t {
    start,
    top,
    metadata_value,
    metadata,
    tensor_value,
    tensor,
    numbers,
    done,
  };
  static constexpr unsigned kDType = 0;
  static constexpr unsigned kShape = 1;
  static constexpr unsigned kOffsets = 2;
  static constexpr const char* kKeys[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] static void fail(const std::string& reason) { throw Error(reason); }
  [[noreturn]] void unexpected(const std::string& what) const {
    fail(where() + "unexpected " + what + " in the header");
  }
  std::string where() const {
    return entry_.name.empty() ? std::string() : "tensor '" + entry_.name + "': ";
  }

  SafetensorsHeader header_;
  std::set<std::string> names_;
  At at_ = At::start;
  TensorEntry entry_;
  unsigned key_ = kDType;
  unsigned seen_ = 0;
  std::size_t numbers_ = 0;
  std::string metadata_key_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text) {
  HeaderReader reader;
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace dtrain::train
