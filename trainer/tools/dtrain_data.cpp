// dtrain-data: looks into data sets, checks them, and makes some.

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/core/run.hpp"
#include "trainer/data/open.hpp"
#include "trainer/data/shards.hpp"
#include "trainer/data/synthetic.hpp"

namespace {

namespace dt = dtrain::train;
using nlohmann::json;

constexpr int kMostProblems = 100;  // that are listed; all are counted

struct Options {
  std::string folder;
  bool as_json = false;
  int threads = 0;  // 0: all cores
  std::string format;
  dt::Synthetic what;
  std::int64_t test = 100;
  std::string image = "jpeg";
  std::int64_t samples_per_shard = 1000;
  std::vector<std::string> classes;
};

struct Report {
  json document;
  std::int64_t bad = 0;
};

std::string class_name(const dt::ImageSource& images, std::int64_t label) {
  const auto& names = images.classes();
  return label < static_cast<std::int64_t>(names.size()) ? names[static_cast<std::size_t>(label)]
                                                         : std::to_string(label);
}

// Reads labels, and, to verify, decodes every image.
Report look_at(const dt::ImageSource& images, bool decode, int threads) {
  std::mutex mutex;
  std::map<std::int64_t, std::int64_t> labels;
  std::map<std::string, std::int64_t> shapes;
  std::vector<std::pair<std::int64_t, std::string>> problems;
  std::int64_t bad = 0;
  std::atomic<std::int64_t> next{0};
  constexpr std::int64_t kPiece = 64;
  const auto work = [&] {
    std::vector<std::uint8_t> scratch;
    for (;;) {
      const std::int64_t begin = next.fetch_add(kPiece);
      if (begin >= images.size()) return;
      for (std::int64_t i = begin; i < std::min(begin + kPiece, images.size()); ++i) {
        try {
          std::string shape;
          // Looking takes the first image's shape for granted where all are in memory alike.
          if (decode || i == 0) {
            const dt::ImageView view = images.image(i, scratch);
            shape = std::to_string(view.channels) + "x" + std::to_string(view.rows) + "x" +
                    std::to_string(view.columns);
          }
          const std::int64_t label = images.label(i);
          const std::lock_guard lock(mutex);
          ++labels[label];
          if (!shape.empty()) ++shapes[shape];
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          ++bad;
          if (static_cast<int>(problems.size()) < kMostProblems) {
            problems.emplace_back(i, error.what());
          }
        }
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back(work);
  }
  std::sort(problems.begin(), problems.end());
  json by_class = json::object();
  for (const auto& [label, count] : labels) by_class[class_name(images, label)] = count;
  json errors = json::array();
  for (const auto& [sample, text] : problems) {
    errors.push_back({{"sample", sample}, {"error", text}});
  }
  return {{{"path", images.name()},
           {"samples", images.size()},
           {"shapes", shapes},
           {"samples_by_class", by_class},
           {"bad", bad},
           {"errors", errors}},
          bad};
}

void print(const std::string& split, const json& report, bool decoded) {
  std::printf("%s: %lld samples in %s\n", split.c_str(),
              static_cast<long long>(report["samples"].get<std::int64_t>()),
              report["path"].get<std::string>().c_str());
  for (const auto& [shape, count] : report["shapes"].items()) {
    if (decoded) {
      std::printf("  %lld of %s\n", static_cast<long long>(count.get<std::int64_t>()),
                  shape.c_str());
    } else {
      std::printf("  the first is %s (channels x rows x columns)\n", shape.c_str());
    }
  }
  std::printf("  %zu classes\n", report["samples_by_class"].size());
  for (const auto& [name, count] : report["samples_by_class"].items()) {
    std::printf("    %-24s %lld\n", name.c_str(),
                static_cast<long long>(count.get<std::int64_t>()));
  }
  for (const json& error : report["errors"]) {
    std::printf("  sample %lld: %s\n", static_cast<long long>(error["sample"].get<std::int64_t>()),
                error["error"].get<std::string>().c_str());
  }
  if (report["bad"] > 0) {
    std::printf("  %lld samples are bad\n",
                static_cast<long long>(report["bad"].get<std::int64_t>()));
  }
}

int look(const Options& options, bool decode) {
  const auto format = dt::detect_format(options.folder);
  if (!format) throw dt::Error(options.folder + ": no data set is found there");
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  json document = {{"format", to_string(*format)}, {"splits", json::object()}};
  std::int64_t bad = 0;
  if (!options.as_json) std::printf("%s\n", to_string(*format).c_str());
  for (const auto& [split, name] :
       {std::pair{dt::Split::train, "train"}, std::pair{dt::Split::test, "test"}}) {
    if (split == dt::Split::test && !dt::has_test_split(options.folder, *format)) continue;
    const dt::Images images = dt::open_images(options.folder, *format, split);
    const Report report = look_at(*images, decode, threads);
    bad += report.bad;
    document["splits"][name] = report.document;
    if (!options.as_json) print(name, report.document, decode);
  }
  if (options.as_json) {
    std::printf("%s\n", document.dump(1, ' ', false, json::error_handler_t::replace).c_str());
  } else if (decode && bad == 0) {
    std::printf("every sample is good\n");
  }
  return bad == 0 ? 0 : 1;
}

int make(Options options) {
  const dt::ImageFile file = options.image == "png" ? dt::ImageFile::png : dt::ImageFile::jpeg;
  dt::Synthetic& what = options.what;
  if (options.format == "idx") {
    what.channels = 1;
    what.rows = what.columns = 28;
    dt::write_idx(options.folder, what, options.test);
  } else if (options.format == "cifar10") {
    dt::write_cifar10(options.folder, what, options.test);
  } else if (options.format == "cifar100") {
    what.classes = 100;
    dt::write_cifar100(options.folder, what, options.test);
  } else {
    const std::filesystem::path folder = options.folder;
    dt::Synthetic test = what;
    test.samples = options.test;
    test.seed += 1;
    for (const auto& [split, name] : {std::pair{what, "train"}, std::pair{test, "test"}}) {
      if (split.samples == 0) continue;
      if (options.format == "folder") {
        dt::write_image_folder(folder / name, split, file);
      } else {
        dt::write_shards(folder / name, split, file, options.samples_per_shard);
      }
    }
  }
  std::printf("wrote %lld samples to %s\n", static_cast<long long>(what.samples),
              options.folder.c_str());
  return 0;
}

int index(const Options& options) {
  const dt::ShardIndex index = dt::write_shard_index(options.folder, options.classes);
  std::int64_t samples = 0;
  for (const auto& shard : index.shards) samples += shard.samples;
  std::printf("%zu shards, %lld samples\n", index.shards.size(), static_cast<long long>(samples));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Looks into data sets, checks them, and makes some.");
  app.require_subcommand(1);
  const auto folder = [&](CLI::App* verb) {
    verb->add_option("folder", o.folder, "Folder of the data set")->required();
    return verb;
  };
  CLI::App* inspect = folder(app.add_subcommand("inspect", "Format, splits, shapes and classes"));
  CLI::App* verify = folder(app.add_subcommand(
      "verify", "Decodes every sample and names the bad ones; exit code 1 if there are any"));
  for (CLI::App* verb : {inspect, verify}) {
    verb->add_flag("--json", o.as_json, "One JSON document");
    verb->add_option("--threads", o.threads, "0: all cores")->check(CLI::NonNegativeNumber);
  }
  CLI::App* create = app.add_subcommand("make", "Writes a made-up data set");
  create->add_option("format", o.format)
      ->check(CLI::IsMember({"idx", "cifar10", "cifar100", "folder", "shards"}))
      ->required();
  folder(create);
  create->add_option("--samples", o.what.samples)->capture_default_str();
  create->add_option("--test", o.test, "Samples of the test split")->capture_default_str();
  create->add_option("--classes", o.what.classes)->capture_default_str();
  create->add_option("--rows", o.what.rows, "Of folder and shards")->capture_default_str();
  create->add_option("--columns", o.what.columns, "Of folder and shards")->capture_default_str();
  create->add_option("--seed", o.what.seed)->capture_default_str();
  create->add_option("--image", o.image, "Of folder and shards")
      ->check(CLI::IsMember({"jpeg", "png"}))
      ->capture_default_str();
  create->add_option("--samples-per-shard", o.samples_per_shard)->capture_default_str();
  CLI::App* write_index =
      folder(app.add_subcommand("index", "Writes shards.json for a folder of tar shards"));
  write_index->add_option("--classes", o.classes, "Names of the classes, by label");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return dt::run([&] {
    if (*inspect) return look(o, false);
    if (*verify) return look(o, true);
    return *create ? make(o) : index(o);
  });
}
