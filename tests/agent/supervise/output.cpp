#include "agent/supervise/output.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher/core/files.hpp"
#include "launcher/core/kept_log.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using supervise::Output;

namespace {

// Takes notes until so many streams have ended; returns all.
std::vector<Output::Note> until_ended(Output& output, int streams) {
  std::vector<Output::Note> all;
  while (streams > 0) {
    pollfd polled{output.notify_fd(), POLLIN, 0};
    REQUIRE(::poll(&polled, 1, 20000) == 1);
    for (Output::Note& note : output.take_notes()) {
      all.push_back(note);
      if (note.what == Output::Note::What::ended) --streams;
    }
  }
  return all;
}

UniqueFd file_at(const fs::path& path, int more = 0) {
  return open_file(path, O_WRONLY | O_CREAT | O_TRUNC | more);
}

}  // namespace

TEST_CASE("bytes of several pipes end up in their files") {
  const dtrain::testing::TemporaryFolder folder;
  Output output;
  auto first = supervise::make_output_pipe();
  auto second = supervise::make_output_pipe();
  CHECK(output.add(std::move(first.reader), file_at(folder / "1")) == 0);
  CHECK(output.add(std::move(second.reader), file_at(folder / "2")) == 1);
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string line = std::string(static_cast<std::size_t>(i), 'a') + "\n";
    write_all(first.writer.get(), line);
    expected += line;
  }
  write_all(second.writer.get(), "no newline");
  first.writer.reset();
  second.writer.reset();
  CHECK(until_ended(output, 2).size() == 2);
  CHECK(read_file(folder / "1") == expected);
  CHECK(read_file(folder / "2") == "no newline");
  CHECK(output.dropped_bytes() == 0);
}

TEST_CASE("what cannot be written is counted, told once, and the writer goes on") {
  Output output;
  auto pipe = supervise::make_output_pipe();
  // A file that says ENOSPC to every byte.
  output.add(std::move(pipe.reader), open_file("/dev/full", O_WRONLY));
  write_all(pipe.writer.get(), std::string(5 << 20, 'x'));
  pipe.writer.reset();
  const auto notes = until_ended(output, 1);
  REQUIRE(notes.size() >= 2);
  CHECK(notes[0].what == Output::Note::What::dropping);
  CHECK(notes[0].reason == "No space left on device");
  CHECK(output.dropped_bytes() == 5 << 20);
}

TEST_CASE("where bytes are missing stands how many, and nothing else is missing") {
  const dtrain::testing::TemporaryFolder folder;
  rlimit limits{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limits) == 0);
  const rlim_t room = 1 << 20;
  rlimit small = limits;
  small.rlim_cur = room;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  Output output;
  auto pipe = supervise::make_output_pipe();
  output.add(std::move(pipe.reader), file_at(folder / "f"));
  std::string written;
  const auto write_line = [&] {
    const std::string line = std::to_string(1000000 + written.size()).substr(1) + "\n";
    write_all(pipe.writer.get(), line);
    written += line;
  };
  while (written.size() < 2 * room) write_line();
  pollfd polled{output.notify_fd(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20000) == 1);
  CHECK(output.take_notes().front().reason == "File too large");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limits) == 0);
  while (read_file(folder / "f").size() == room) write_line();
  for (int i = 0; i < 1000; ++i) write_line();
  pipe.writer.reset();
  until_ended(output, 1);

  const std::string mark = "\n" + missing_mark(output.dropped_bytes(), "File too large") + "\n";
  const std::string kept = read_file(folder / "f");
  CHECK(kept.substr(0, room) == written.substr(0, room));
  CHECK(kept.substr(room, mark.size()) == mark);
  CHECK(kept.substr(room + mark.size()) == written.substr(room + output.dropped_bytes()));
}

TEST_CASE("bytes that are missing at the end are told there, if there is room then") {
  const dtrain::testing::TemporaryFolder folder;
  rlimit limits{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limits) == 0);
  rlimit none = limits;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  Output output;
  auto pipe = supervise::make_output_pipe();
  output.add(std::move(pipe.reader), file_at(folder / "f"));
  write_all(pipe.writer.get(), "lost\n");
  pollfd polled{output.notify_fd(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20000) == 1);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limits) == 0);
  pipe.writer.reset();
  until_ended(output, 1);
  CHECK(read_file(folder / "f") == missing_mark(5, "File too large") + "\n");
}

TEST_CASE("it can be taken down while pipes are open") {
  const dtrain::testing::TemporaryFolder folder;
  auto pipe = supervise::make_output_pipe();
  {
    Output output;
    output.add(std::move(pipe.reader), file_at(folder / "f"));
  }
  ::signal(SIGPIPE, SIG_IGN);
  CHECK(::write(pipe.writer.get(), "x", 1) < 0);  // nobody reads any more
}

TEST_CASE("bytes on their way to a slow file are told from a pipe that is only held open") {
  const dtrain::testing::TemporaryFolder folder;
  // A file whose writes hang until somebody reads: a full pipe.
  int slow[2];
  REQUIRE(::pipe2(slow, O_CLOEXEC) == 0);
  const UniqueFd reader(slow[0]);
  auto pipe = supervise::make_output_pipe();
  Output output;
  output.add(std::move(pipe.reader), UniqueFd(slow[1]));
  CHECK_FALSE(output.busy());
  const std::string much(300000, 'x');
  write_all(pipe.writer.get(), much);
  CHECK(output.busy());
  std::string got;
  std::vector<char> buffer(65536);
  while (got.size() < much.size()) {
    const ssize_t some = ::read(reader.get(), buffer.data(), buffer.size());
    REQUIRE(some > 0);
    got.append(buffer.data(), static_cast<std::size_t>(some));
    if (got.size() < 200000) CHECK(output.busy());
  }
  // The write that has returned is noticed; the writer still holds its end.
  const auto until = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
  while (output.busy()) REQUIRE(std::chrono::steady_clock::now() < until);
  CHECK(output.take_notes().empty());
  pipe.writer.reset();
  until_ended(output, 1);
  CHECK_FALSE(output.busy());
}
