#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/files/sealed.hpp"

using namespace dtrain;

namespace {

const std::vector<std::string> kBlocks{"the first", std::string(70000, 'x'), "b", "b"};

std::string sealed(const std::string& key) {
  std::string out;
  Sealer sealer(key, [&](std::string_view bytes) { out += bytes; });
  for (const std::string& block : kBlocks) sealer.add(block);
  sealer.finish();
  return out;
}

std::vector<std::string> unsealed(const std::string& key, std::string_view bytes) {
  Unsealer unsealer(key, 70000, [&](char* to, std::size_t size) {
    if (bytes.size() < size) throw Error(ErrorCode::invalid, "it ends");
    std::memcpy(to, bytes.data(), size);
    bytes.remove_prefix(size);
  });
  std::vector<std::string> blocks;
  while (auto block = unsealer.next()) blocks.push_back(std::move(*block));
  return blocks;
}

}  // namespace

TEST_CASE("sealed: who has the key reads it, and it says nothing to others") {
  const std::string key = make_seal_key();
  const std::string bytes = sealed(key);
  CHECK(unsealed(key, bytes) == kBlocks);
  CHECK(bytes.find("the first") == std::string::npos);
  CHECK(bytes.find("xxxx") == std::string::npos);
  CHECK_THROWS_AS(unsealed(make_seal_key(), bytes), Error);
  CHECK_THROWS_AS(unsealed("short", bytes), Error);
}

TEST_CASE("sealed: changed, cut, or in another order it is refused") {
  const std::string key = make_seal_key();
  std::string bytes = sealed(key);
  const std::size_t last = 4 + 1 + 16;  // of a block of one byte
  const std::size_t end = 4 + 16;
  SUBCASE("a bit of a block") {
    bytes[10] = static_cast<char>(bytes[10] ^ 1);
  }
  SUBCASE("a bit of a length") {
    bytes[3] = static_cast<char>(bytes[3] ^ 1);
  }
  SUBCASE("cut between blocks") {
    bytes.resize(bytes.size() - end);
  }
  SUBCASE("cut between blocks, with an end of another place") {
    const std::string its_end = bytes.substr(bytes.size() - end);
    bytes.resize(bytes.size() - end - last);
    bytes += its_end;
  }
  SUBCASE("one block twice") {
    const std::string twice = bytes.substr(bytes.size() - end - 2 * last, last);
    bytes.replace(bytes.size() - end - last, last, twice);
  }
  CHECK_THROWS_AS(unsealed(key, bytes), Error);
}
