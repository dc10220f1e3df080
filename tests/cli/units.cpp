#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/follow.hpp"
#include "cli/jobs.hpp"
#include "cli/lines.hpp"
#include "cli/pull.hpp"
#include "cli/pulled_logs.hpp"
#include "cli/render.hpp"
#include "launcher/core/error.hpp"
#include "launcher/spec/yaml.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::cli;
using nlohmann::json;

namespace {

struct Heard {
  std::vector<std::pair<std::string, bool>> lines;
  auto sink() {
    return [this](std::string_view line, bool whole) { lines.emplace_back(line, whole); };
  }
};

json job(const std::string& id, const std::string& state) {
  return {{"job", id}, {"name", id.substr(0, id.rfind('-'))}, {"state", state}};
}

ErrorCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("lines: pieces become whole lines, whatever the cuts") {
  const std::string text = "one\n\ntwo two\nlast";
  for (std::size_t cut = 1; cut <= text.size(); ++cut) {
    Heard heard;
    LineAssembler lines;
    for (std::size_t at = 0; at < text.size(); at += cut) {
      lines.feed(text.substr(at, cut), heard.sink());
    }
    CHECK(lines.pending() == "last");
    lines.finish(heard.sink());
    CHECK(heard.lines == std::vector<std::pair<std::string, bool>>{
                             {"one", true}, {"", true}, {"two two", true}, {"last", false}});
  }
}

TEST_CASE("lines: a line without an end is held up to the limit, and nothing of it is lost") {
  Heard heard;
  LineAssembler lines(8);
  lines.feed("0123456789", heard.sink());
  lines.feed("abcdefghijk\nnext\n", heard.sink());
  std::string all;
  for (const auto& [line, whole] : heard.lines) {
    CHECK(line.size() <= 8);
    all += line;
    if (whole) all += '\n';
  }
  CHECK(all == "0123456789abcdefghijk\nnext\n");
  CHECK(lines.pending().empty());
}

TEST_CASE("progress bars: what a terminal would show") {
  CHECK(after_returns("10%\r20%\r30%") == "30%");
  CHECK(after_returns("10%\r20%\r") == "20%");
  CHECK(after_returns("plain") == "plain");
  CHECK(after_returns("\r\r") == "");
}

TEST_CASE("table: columns line up, control characters cannot get out, no trailing spaces") {
  CHECK(table({"A", "LONGER"}, {{"x", "y"}, {"long cell", ""}}, false) ==
        "A          LONGER\nx          y\nlong cell\n");
  CHECK(table({}, {{"\x1b[31mred", "b"}}, false) == "\\x1b[31mred  b\n");
  CHECK(table({}, {{"é", "b"}, {"ab", "c"}}, false) == "é   b\nab  c\n");
  CHECK(table({"A"}, {{Cell("x", Color::red)}}, true) == "\x1b[2mA\x1b[0m\n\x1b[31mx\x1b[0m\n");
}

TEST_CASE("fit: cut at a code point") {
  CHECK(fit("short", 5) == "short");
  CHECK(fit("éééééé", 4) == "ééé…");
  CHECK(fit("abc", 0) == "");
}

TEST_CASE("an error is three lines at most") {
  Error error(ErrorCode::failed, "it broke");
  error.while_doing("turning the key").while_doing("going home").with_hint("walk");
  CHECK(error_text(error, false, false) ==
        "dtrain: it broke\n  while turning the key, while going home\n  try: walk\n");
  CHECK(error_text(error, false, true).find("code: failed") != std::string::npos);
  const SpecError spec({Error(ErrorCode::invalid, "a").at({"f.yaml", 1, 2}),
                        Error(ErrorCode::invalid, "b").at({"f.yaml", 3, 4})});
  CHECK(error_text(spec, false, false) == "dtrain: f.yaml:1:2: a\ndtrain: f.yaml:3:4: b\n");
  const json as_json = error_json(spec);
  CHECK(as_json["error"]["problems"].size() == 2);
  CHECK(as_json["error"]["problems"][1]["location"]["line"] == 3);
}

TEST_CASE("exit codes by the kind of error") {
  CHECK(exit_code_for(Error(ErrorCode::usage, "")) == 2);
  CHECK(exit_code_for(Error(ErrorCode::invalid, "")) == 2);
  CHECK(exit_code_for(Error(ErrorCode::not_found, "")) == 2);
  CHECK(exit_code_for(Error(ErrorCode::unreachable, "")) == 4);
  CHECK(exit_code_for(Error(ErrorCode::conflict, "")) == 1);
}

TEST_CASE("which job is meant") {
  const json jobs = {job("mnist-bbbbbb", "running"), job("mnist-aaaaaa", "failed"),
                     job("env-cccccc", "succeeded")};
  const auto id = [&](const std::string& reference, DefaultJob fallback) {
    return resolve_job(jobs, reference, fallback)["job"].get<std::string>();
  };
  CHECK(id("", DefaultJob::newest) == "mnist-bbbbbb");
  CHECK(id("", DefaultJob::only_running) == "mnist-bbbbbb");
  CHECK(id("env", DefaultJob::newest) == "env-cccccc");
  CHECK(id("mnist-a", DefaultJob::newest) == "mnist-aaaaaa");
  CHECK(id("mnist-aaaaaa", DefaultJob::newest) == "mnist-aaaaaa");
  CHECK(code_of([&] { id("mni", DefaultJob::newest); }) == ErrorCode::usage);
  CHECK(code_of([&] { id("", DefaultJob::only_one); }) == ErrorCode::usage);
  CHECK(code_of([&] { id("nothing", DefaultJob::newest); }) == ErrorCode::not_found);
  CHECK(code_of([&] { resolve_job(json::array(), "", DefaultJob::newest); }) ==
        ErrorCode::not_found);
  const json done = json::array({job("env-cccccc", "succeeded")});
  CHECK(code_of([&] { resolve_job(done, "", DefaultJob::only_running); }) == ErrorCode::not_found);
  CHECK(resolve_job(done, "", DefaultJob::only_one)["job"] == "env-cccccc");
  // A trial is meant by its id alone.
  json trial = job("mnist-3-dddddd", "running");
  trial["trial"] = 3;
  const json with_trial = {trial, done[0]};
  CHECK(resolve_job(with_trial, "", DefaultJob::newest)["job"] == "env-cccccc");
  CHECK(resolve_job(with_trial, "mnist-3", DefaultJob::newest)["job"] == "mnist-3-dddddd");
  CHECK(code_of([&] { resolve_job(json::array({trial}), "", DefaultJob::newest); }) ==
        ErrorCode::not_found);
}

TEST_CASE("a job by its name: an id first, then the newest of the name, then beginnings of ids") {
  const auto named = [](const std::string& name, const std::string& id) {
    json each = job(id, "failed");
    each["name"] = name;
    return each;
  };
  const json jobs = {named("mnist-large", "mnist-large-bbbbbb"), named("mnist", "mnist-cccccc"),
                     named("mnist", "mnist-aaaaaa"), named("mnist-aaaaaa", "mnist-aaaaaa-dddddd")};
  const auto id = [&](const std::string& reference) {
    return resolve_job(jobs, reference, DefaultJob::only_one)["job"].get<std::string>();
  };
  CHECK(id("mnist") == "mnist-cccccc");
  CHECK(id("mnist-aaaaaa") == "mnist-aaaaaa");
  CHECK(id("mnist-aaaaaa-") == "mnist-aaaaaa-dddddd");
  CHECK(id("mnist-l") == "mnist-large-bbbbbb");
  CHECK(code_of([&] { id("mnist-a"); }) == ErrorCode::usage);
  // What is to be stopped is what runs, though another of the name came later and has ended.
  json running = jobs;
  running[2]["state"] = "running";
  const auto stopped = [&] {
    return resolve_job(running, "mnist", DefaultJob::only_running)["job"].get<std::string>();
  };
  CHECK(stopped() == "mnist-aaaaaa");
  running[1]["state"] = "queued";
  CHECK(stopped() == "mnist-cccccc");
  CHECK(meant_by_name(jobs, "mnist", "mnist-cccccc") ==
        "mnist means mnist-cccccc, the newest of that name; older: mnist-aaaaaa");
  CHECK(meant_by_name(jobs, "mnist", "mnist-aaaaaa") ==
        "mnist means mnist-aaaaaa, which runs; others of that name: mnist-cccccc");
  CHECK(meant_by_name(jobs, "mnist-large", "mnist-large-bbbbbb") == "");
  CHECK(meant_by_name(jobs, "mnist-aaaaaa", "mnist-aaaaaa") == "");
}

TEST_CASE("numbers and metrics as people read them") {
  CHECK(number(json(0.421299)) == "0.4213");
  CHECK(number(json(470)) == "470");
  CHECK(number(json("nan")) == "nan");
  CHECK(metrics_line({{"b", 1}, {"a", 0.5}}) == "a 0.5  b 1");
}

TEST_CASE("pull: nothing is written outside of the folder") {
  CHECK(safe_below("/d", "logs/0.out") == "/d/logs/0.out");
  for (const char* bad : {"../x", "/etc/passwd", "a/../../x", "a//b/..", "", "a/", "./a"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(safe_below("/d", bad), Error);
  }
}

TEST_CASE("pull: goes on where it stopped, and checks the sum of the whole") {
  const testing::TemporaryFolder folder;
  const std::string content = "0123456789";
  // printf 0123456789 | sha256sum
  RemoteFile file{"x", content.size(),
                  "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"};
  const fs::path target = folder.path() / "deep" / "x";
  Incoming(file, target).take("0123");  // and then it breaks off
  CHECK(!fs::exists(target));
  Incoming rest(file, target);
  CHECK(!rest.already_here());
  CHECK(rest.offset() == 4);
  rest.take("456789");
  REQUIRE(rest.whole());
  CHECK(rest.how() == Pulled::resumed);
  Arrivals arrivals;
  arrivals.add(rest);
  arrivals.name_all();
  CHECK(read_file(target) == content);
  CHECK(!fs::exists(rest.part()));
  CHECK(Incoming(file, target).already_here());

  // All of it is here, but for its name.
  fs::rename(target, rest.part());
  Incoming named(file, target);
  CHECK(!named.wants_bytes());
  CHECK(named.whole());

  // A part of something else.
  write_file_atomic(rest.part(), "xxxx");
  Incoming other(file, target);
  CHECK(other.offset() == 4);
  other.take("456789");
  CHECK(!other.whole());
  other.start_over();
  CHECK(other.offset() == 0);
  other.take(content);
  CHECK(other.whole());
  CHECK(other.how() == Pulled::whole);
}

TEST_CASE("pull: what has no sum is kept and continued for its own job alone") {
  const testing::TemporaryFolder folder;
  const fs::path target = folder / "0.out";
  const RemoteFile log{"0.out", 4, std::nullopt};
  Incoming(log, target, "a-aaaaaa").take("aa");  // and then it breaks off
  CHECK(Incoming(log, target, "a-aaaaaa").offset() == 2);
  CHECK(Incoming(log, target, "b-bbbbbb").offset() == 0);

  const fs::path pulled = folder / "pulled";
  PulledLogs first(pulled, "a-aaaaaa");
  first.begin();
  CHECK(!first.has("0.out"));
  first.add({"0.out", "0.err"});
  PulledLogs again(pulled, "a-aaaaaa");
  again.begin();
  CHECK(again.has("0.out"));
  CHECK(again.has("0.err"));
  // Another job's count no more as soon as one of this may have its name.
  PulledLogs other(pulled, "b-bbbbbb");
  CHECK(!other.has("0.out"));
  CHECK(PulledLogs(pulled, "a-aaaaaa").has("0.out"));
  other.begin();
  CHECK(!PulledLogs(pulled, "a-aaaaaa").has("0.out"));
  other.add({"0.err"});
  CHECK(PulledLogs(pulled, "b-bbbbbb").has("0.err"));
  CHECK(!PulledLogs(pulled, "b-bbbbbb").has("0.out"));
  write_file_atomic(pulled / PulledLogs::kName, "not ours");
  CHECK(!PulledLogs(pulled, "b-bbbbbb").has("0.err"));
}

TEST_CASE("pull: many files get their names at once, an empty one too") {
  const testing::TemporaryFolder folder;
  Arrivals arrivals;
  for (int i = 0; i < 3; ++i) {
    const std::string content(static_cast<std::size_t>(i), 'x');
    const std::string name = std::to_string(i);
    Incoming file({name, content.size(), std::nullopt}, folder.path() / name / "file");
    if (!content.empty()) file.take(content);
    REQUIRE(file.whole());
    arrivals.add(file);
    CHECK(!fs::exists(folder.path() / name / "file"));
  }
  arrivals.name_all();
  for (int i = 0; i < 3; ++i) {
    CHECK(read_file(folder.path() / std::to_string(i) / "file").size() ==
          static_cast<std::size_t>(i));
  }
}

TEST_CASE("pull: lines stand where a log's bytes are not kept any more") {
  const testing::TemporaryFolder folder;
  const fs::path target = folder / "0.out";
  const auto mark = [](int bytes) {
    return "[dtrain: " + std::to_string(bytes) +
           " bytes of output are missing here: released, as log_limit says]\n";
  };
  const RemoteFile cut{"0.out", 20, std::nullopt, 10};
  {
    Incoming log(cut, target);
    CHECK(log.offset() == 10);
    log.take("kept\nx");
    log.gap(2);  // that went while the bytes before it were on their way
    log.take("y\n");
    CHECK(log.released() == 12);
  }
  // What came of it is of no use later.
  Incoming log(cut, target);
  log.take("kept\nkept\n");
  REQUIRE(log.whole());
  CHECK(log.how() == Pulled::whole);
  CHECK(log.released() == 10);
  Arrivals arrivals;
  arrivals.add(log);
  arrivals.name_all();
  CHECK(read_file(target) == mark(10) + "kept\nkept\n");
  CHECK(Incoming(cut, target).already_here());
  CHECK_FALSE(Incoming({"0.out", 30, std::nullopt, 20}, target).already_here());
  // One that was whole when it was begun.
  const fs::path other = folder / "1.out";
  write_file_atomic(folder / "1.out.part", "half");
  Incoming rest({"1.out", 10, std::nullopt}, other);
  CHECK(rest.offset() == 4);
  rest.gap(4);
  rest.take("z\n");
  CHECK(rest.whole());
  CHECK(read_file(rest.part()) == "half\n" + mark(4) + "z\n");
}

TEST_CASE("following: another reason to wait is news, what runs down or moves a little is not") {
  const std::string slurm = "waits for gpu-1: waits in partition gpu: Priority";
  CHECK(other_wait("asks for 1 machine of type gpu", slurm));
  CHECK(other_wait(slurm, "waits for gpu-1: it joins"));
  CHECK_FALSE(other_wait("waits for gpu-1, gpu-2: it joins", "waits for gpu-2: it joins"));
  CHECK(other_wait(slurm, "waits for gpu-1: waits in partition gpu: Resources"));
  CHECK_FALSE(other_wait(slurm, slurm));
  CHECK(other_wait(slurm, slurm + ", starts about 14:20"));
  CHECK_FALSE(other_wait(slurm + ", starts about 14:20", slurm));
  CHECK_FALSE(other_wait(slurm + ", starts about 13:55", slurm + ", starts about 14:04"));
  CHECK(other_wait(slurm + ", starts about 14:20", slurm + ", starts about 14:30"));
  CHECK(other_wait(slurm + ", starts about 14:20", slurm + ", starts about 2026-11-26 14:20"));
  CHECK_FALSE(other_wait(slurm + ", starts about 2026-11-26 14:20",
                         slurm + ", starts about 2026-11-26 14:29"));
  CHECK_FALSE(other_wait("waits until the lease of a lost node has run out (25 s)",
                         "waits until the lease of a lost node has run out (24 s)"));
  CHECK(other_wait("waits behind a-x2b7kd (priority 0)", "waits behind b-x2b7kd (priority 0)"));
}
