#include "trainer/checkpoint/safetensors.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

namespace {

std::string length_of(std::uint64_t size) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(size >> (8 * i) & 0xff);
  return text;
}

std::string file_of(const std::string& header, std::size_t data) {
  return length_of(header.size()) + header + std::string(data, '\x01');
}

// Why a file with this content is refused; empty if it is not.
std::string refusal_of(const std::string& content) {
  const TemporaryFolder folder;
  write_file(folder / "f.safetensors", content);
  const std::string message =
      message_of<Error>([&] { SafetensorsFile file(folder / "f.safetensors"); });
  if (!message.empty()) CHECK(contains(message, "f.safetensors: not a valid safetensors file: "));
  return message;
}

std::string refusal(const std::string& header, std::size_t data = 0) {
  return refusal_of(file_of(header, data));
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TEST_CASE("what is written is read back, aligned and in a fixed order") {
  const TemporaryFolder folder;
  const std::vector<std::uint8_t> small{1, 2, 3};
  const std::vector<float> weights{0.5F, -1.5F, 2.5F, 3.5F};
  const std::vector<std::int64_t> steps{7};
  const std::vector<std::byte> none;
  FileSink sink(folder / "f");
  write_safetensors(sink,
                    {{"small", DType::u8, {3}, bytes_of(small)},
                     {"w", DType::f32, {2, 2}, bytes_of(weights)},
                     {"empty", DType::f32, {0, 5}, none},
                     {"scalar", DType::i64, {}, bytes_of(steps)}},
                    {{"format", "pt"}});
  sink.finish();

  const SafetensorsFile file(folder / "f");
  CHECK(file.tensors().size() == 4);
  CHECK(file.metadata().at("format") == "pt");
  REQUIRE(file.find("w") != nullptr);
  const TensorEntry& w = *file.find("w");
  CHECK(w.shape == std::vector<std::int64_t>{2, 2});
  CHECK(std::memcmp(file.bytes(w).data(), weights.data(), 16) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(file.bytes(w).data()) % 4 == 0);
  CHECK(file.find("scalar")->shape.empty());
  CHECK(reinterpret_cast<std::uintptr_t>(file.bytes(*file.find("scalar")).data()) % 8 == 0);
  CHECK(file.bytes(*file.find("empty")).empty());
  CHECK(file.find("none") == nullptr);

  FileSink again(folder / "again");
  write_safetensors(again,
                    {{"scalar", DType::i64, {}, bytes_of(steps)},
                     {"empty", DType::f32, {0, 5}, none},
                     {"w", DType::f32, {2, 2}, bytes_of(weights)},
                     {"small", DType::u8, {3}, bytes_of(small)}},
                    {{"format", "pt"}});
  again.finish();
  CHECK(read_file(folder / "again") == read_file(folder / "f"));
}

TEST_CASE("a file that another library wrote") {
  // As safetensors' own documentation shows it: header padded with spaces, offsets from its end.
  const std::string header = R"({"a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},)"
                             R"("__metadata__":{"k":"v"}}   )";
  const TemporaryFolder folder;
  write_file(folder / "f", file_of(header, 4));
  const SafetensorsFile file(folder / "f");
  CHECK(file.find("a")->dtype == DType::f16);
  CHECK(file.bytes(*file.find("a")).size() == 4);
}

TEST_CASE("writing what cannot be read is refused") {
  const TemporaryFolder folder;
  const std::vector<float> two{1, 2};
  const auto write = [&](std::vector<TensorSource> tensors) {
    static int number = 0;
    FileSink sink(folder / std::to_string(number++));
    return message_of<Error>([&] { write_safetensors(sink, std::move(tensors)); });
  };
  CHECK(contains(write({{"a", DType::f32, {3}, bytes_of(two)}}), "'a' has 8 bytes"));
  CHECK(contains(
      write({{"a", DType::f32, {2}, bytes_of(two)}, {"a", DType::f32, {2}, bytes_of(two)}}),
      "'a' is given twice"));
  CHECK(contains(write({{"__metadata__", DType::f32, {2}, bytes_of(two)}}), "reserved"));
}

TEST_CASE("hostile headers: lengths") {
  CHECK(contains(refusal_of(""), "0 bytes, too short"));
  CHECK(contains(refusal_of("1234567"), "7 bytes, too short"));
  CHECK(contains(refusal_of(length_of(100) + "{}"), "a header of 100 bytes in a file of 10"));
  CHECK(contains(refusal_of(length_of(~0ULL) + "{}"), "more than the 100000000"));
  CHECK(contains(refusal_of(length_of(100'000'001) + "{}"), "more than the 100000000"));
  CHECK(contains(refusal_of(length_of(0)), "does not begin with '{'"));
  CHECK(contains(refusal("[]"), "does not begin with '{'"));
  CHECK(contains(refusal(" {}"), "does not begin with '{'"));
}

TEST_CASE("hostile headers: JSON") {
  CHECK(contains(refusal("{"), "not JSON"));
  CHECK(contains(refusal("{}x"), "not JSON"));
  CHECK(contains(refusal(R"({"a)"
                         "\xff"
                         R"(":1})"),
                 "not JSON"));
  CHECK(contains(refusal(R"({"a":1})"), "unexpected a number"));
  CHECK(contains(refusal(R"({"a":null})"), "unexpected null"));
  CHECK(contains(refusal(R"({"a":[]})"), "unexpected an array"));
  CHECK(contains(refusal(R"({"a":{}})"), "'dtype' is missing"));
  CHECK(contains(refusal(R"({"a":{"dtype":{}}})"), "unexpected an object"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "'dtype' comes twice"));
  CHECK(contains(refusal(R"({"a":{"color":"F32"}})"), "unknown key 'color'"));
  CHECK(contains(refusal(R"({"__metadata__":{"k":1}})"), "unexpected a number"));
  CHECK(contains(refusal(R"({"__metadata__":{"k":"1","k":"2"}})"), "metadata 'k' comes twice"));
  CHECK(contains(refusal("{" + tensor("a", "F32", "[0]", "[0,0]") + "," +
                         tensor("a", "F32", "[0]", "[0,0]") + "}"),
                 "'a' comes twice"));
  const std::string deep = R"({"a":{"dtype":"F32","shape":)" + std::string(1'000'000, '[');
  CHECK(contains(refusal(deep), "unexpected an array"));
}

TEST_CASE("hostile headers: types and shapes") {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t data) {
    return refusal("{" + tensor("a", dtype, shape, offsets) + "}", data);
  };
  CHECK(one("F32", "[2]", "[0,8]", 8).empty());
  CHECK(contains(one("F31", "[2]", "[0,8]", 8), "tensor 'a': unknown dtype 'F31'"));
  CHECK(contains(one("F32", "[3]", "[0,8]", 8), "its shape needs 12 bytes, its offsets give 8"));
  CHECK(contains(one("F32", "[-2]", "[0,8]", 8), "unexpected the number -2"));
  CHECK(contains(one("F32", "[2.0]", "[0,8]", 8), "unexpected the number 2.0"));
  CHECK(contains(one("F32", "[\"2\"]", "[0,8]", 8), "unexpected a string"));
  CHECK(contains(one("F32", "[18446744073709551615]", "[0,8]", 8), "a dimension of 1844"));
  CHECK(contains(one("F32", "[4611686018427387904,4]", "[0,0]", 0), "its shape needs too many"));
  // 2^62 * 4 wraps to 0 in 64 bits.
  CHECK(contains(one("U8", "[4294967296,4294967296]", "[0,0]", 0), "its shape needs too many"));
  std::string dimensions = "[1";
  for (int i = 0; i < 64; ++i) dimensions += ",1";
  CHECK(contains(one("U8", dimensions + "]", "[0,1]", 1), "more than 64 dimensions"));
}

TEST_CASE("hostile headers: offsets") {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return refusal("{" + tensor("a", "U8", "[4]", a) + "," + tensor("b", "U8", "[4]", b) + "}",
                   data);
  };
  CHECK(two("[0,4]", "[4,8]", 8).empty());
  CHECK(two("[4,8]", "[0,4]", 8).empty());
  CHECK(contains(two("[0,4]", "[2,6]", 6), "'b': overlaps"));
  CHECK(contains(two("[0,4]", "[0,4]", 4), "overlaps"));
  CHECK(contains(two("[0,4]", "[5,9]", 9), "'b': leaves a gap before it, from offset 4"));
  CHECK(contains(two("[0,4]", "[4,8]", 9), "tensors take 8 bytes of data, the file has 9"));
  CHECK(contains(two("[0,4]", "[4,8]", 7), "are not within the 7 bytes"));
  CHECK(contains(two("[4,0]", "[4,8]", 8), "offsets 4 to 0"));
  CHECK(contains(two("[0,4]", "[18446744073709551612,4]", 8), "are not within"));
  CHECK(contains(two("[0]", "[4,8]", 8), "data_offsets needs two numbers"));
  CHECK(contains(two("[0,4,8]", "[4,8]", 8), "data_offsets needs two numbers"));
}

TEST_CASE("a large tensor is written in pieces, between which the file can be given up") {
  const test::TemporaryFolder folder;
  const std::vector<std::byte> bytes(2 * kWritePiece + 8, std::byte{7});
  const std::vector<TensorSource> tensors{
      {"w", DType::u8, {static_cast<std::int64_t>(bytes.size())}, bytes}};
  int pieces = 0;
  {
    FileSink sink(folder / "whole");
    write_safetensors(sink, tensors, {}, [&] { ++pieces; });
    sink.finish();
  }
  CHECK(pieces == 3);
  const SafetensorsFile file(folder / "whole");
  CHECK(std::ranges::equal(file.bytes(*file.find("w")), bytes));
  FileSink sink(folder / "given up");
  CHECK(test::message_of<Error>([&] {
          write_safetensors(sink, tensors, {}, [&] {
            if (--pieces == 1) throw Error("enough");
          });
        }) == "enough");
  CHECK(std::filesystem::file_size(folder / "given up") < 2 * kWritePiece);
}
