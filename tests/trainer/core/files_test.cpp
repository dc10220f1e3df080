#include "trainer/core/files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/base64.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/metrics.hpp"
#include "trainer/core/run.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::read_file;
using test::write_file;

TEST_CASE("SHA-256 of a sink, of its file and of the standard's example agree") {
  const test::TemporaryFolder folder;
  FileSink sink(folder / "f");
  sink.write(std::string_view("a"));
  sink.write(std::string_view("bc"));
  sink.finish();
  CHECK(sink.size() == 3);
  CHECK(sink.sha256() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of_file(folder / "f") == sink.sha256());
  CHECK(contains(message_of<Error>([&] { FileSink again(folder / "f"); }), "File exists"));
}

TEST_CASE("an atomic write replaces the whole file and leaves no temporary") {
  const test::TemporaryFolder folder;
  write_file(folder / "f", "a much longer old content");
  write_atomically(folder / "f", "new");
  CHECK(read_file(folder / "f") == "new");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("reading is bounded and names the file") {
  const test::TemporaryFolder folder;
  write_file(folder / "f", "12345");
  CHECK(read_text(folder / "f", 5) == "12345");
  CHECK(contains(message_of<Error>([&] { read_text(folder / "f", 4); }), "larger than the 4"));
  CHECK(contains(message_of<Error>([&] { read_text(folder / "none", 4); }), "none: No such file"));
}

TEST_CASE("a file's bytes, or a part of them") {
  const test::TemporaryFolder folder;
  write_file(folder / "f", "12345");
  std::vector<std::byte> bytes(100);
  read_bytes(folder / "f", 5, bytes);
  REQUIRE(bytes.size() == 5);
  CHECK(bytes[4] == std::byte{'5'});
  CHECK(contains(message_of<Error>([&] { read_bytes(folder / "f", 4, bytes); }), "than the 4"));
  CHECK_THROWS_AS(read_bytes(folder.path(), 4, bytes), Error);
  const FileDescriptor file = open_file(folder / "f", O_RDONLY);
  CHECK(size_of(file, folder / "f") == 5);
  bytes.resize(2);
  read_at(file, 3, bytes, folder / "f");
  CHECK(bytes[0] == std::byte{'4'});
  CHECK(contains(message_of<Error>([&] { read_at(file, 4, bytes, folder / "f"); }),
                 "f: ends at byte 5, 1 more were expected"));
}

TEST_CASE("a mapped file") {
  const test::TemporaryFolder folder;
  write_file(folder / "f", "xyz");
  write_file(folder / "empty", "");
  MappedFile moved = MappedFile(folder / "f");
  CHECK(moved.bytes().size() == 3);
  CHECK(moved.bytes()[2] == std::byte{'z'});
  CHECK(MappedFile(folder / "empty").bytes().empty());
  CHECK_THROWS_AS(MappedFile(folder.path()), Error);
}

TEST_CASE("base64 there and back") {
  for (const std::string text : {"", "a", "ab", "abc", "abcd"}) {
    const std::string coded = to_base64(std::as_bytes(std::span(text.data(), text.size())));
    const auto bytes = from_base64(coded);
    CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == text);
  }
  CHECK(to_base64(std::as_bytes(std::span("ab", 2))) == "YWI=");
  CHECK_THROWS_AS(from_base64("YWI"), Error);
  CHECK_THROWS_AS(from_base64("****"), Error);
}

TEST_CASE("metrics that are not finite travel as strings") {
  const double inf = std::numeric_limits<double>::infinity();
  const auto json = metrics_to_json({{"a", 0.5}, {"b", std::nan("")}, {"c", inf}, {"d", -inf}});
  CHECK(json.dump() == R"({"a":0.5,"b":"nan","c":"inf","d":"-inf"})");
  const Metrics back = metrics_from_json(json);
  CHECK(back.at("a") == 0.5);
  CHECK(std::isnan(back.at("b")));
  CHECK(back.at("d") == -inf);
  CHECK_THROWS_AS(metrics_from_json(nlohmann::json::parse(R"({"a":"much"})")), Error);
}

TEST_CASE("the error file is torchrun's JSON, whatever bytes the message has") {
  const test::TemporaryFolder folder;
  CHECK(write_error_file(folder / "e.json", "lost \xff it"));
  const auto document = nlohmann::json::parse(read_file(folder / "e.json"));
  CHECK(contains(document["message"]["message"].get<std::string>(), "lost "));
  CHECK(std::stoll(document["message"]["extraInfo"]["timestamp"].get<std::string>()) > 1600000000);
  CHECK_FALSE(write_error_file(folder / "no/such/folder/e.json", "x"));
}

TEST_CASE("run gives back the body's code") {
  CHECK(run([] { return 7; }) == 7);
}

TEST_CASE("what is still held back is written when an exception ends the process") {
  const test::TemporaryFolder folder;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const AtFailure alive([&] { FileSink(folder / "alive").finish(); });
    static std::optional<AtFailure> held;  // as a session is: no destructor of it runs
    run([&]() -> int {
      {
        const AtFailure over([&] { FileSink(folder / "over").finish(); });
      }
      held.emplace([&] { FileSink(folder / "held").finish(); });
      throw Error("as the test asks for");
    });
    ::_exit(9);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
  CHECK(std::filesystem::exists(folder / "held"));
  CHECK(std::filesystem::exists(folder / "alive"));
  CHECK(!std::filesystem::exists(folder / "over"));
}
