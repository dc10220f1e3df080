#include "examples/common/flags.hpp"

#include <CLI/CLI.hpp>

std::optional<int> read_flags(int argc, char** argv, const std::string& description, Flags& flags) {
  CLI::App app(description);
  app.add_option("--data", flags.data, "Folder with the data set")->capture_default_str();
  app.add_option("--limit", flags.limit,
                 "Use only the first N images for training, and for testing")
      ->check(CLI::PositiveNumber);
  app.add_option("--epochs", flags.epochs, "Times over the data")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size-per-worker", flags.batch_size_per_worker, "Images a rank and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", flags.lr, "Learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Of the first weights and the order of the images")
      ->capture_default_str();
  app.add_option("--num-threads", flags.num_threads,
                 "Threads of each rank; 0: OMP_NUM_THREADS, else all cores")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--checkpoint-every", flags.checkpoint_every,
                 "Steps between checkpoints; 0: at the end of each epoch only")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--storage", flags.storage,
                 "Folder for checkpoints when dtrain does not start the program; a run with the "
                 "same folder goes on from its newest one");
  app.add_option("--workers", flags.workers, "Threads of each rank that make batches")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--precision", flags.precision, "bf16 computes forward passes in 16 bits")
      ->check(CLI::IsMember({"32", "bf16"}))
      ->capture_default_str();
  std::string bad_samples = "error";
  app.add_option(
         "--bad-samples", bad_samples,
         "What a picture that cannot be read does: it is an error, or is left out, told and "
         "counted")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  app.add_option("--tensorboard", flags.tensorboard, "Folder for TensorBoard's event files");
  app.add_option("--metrics-file", flags.metrics_file, "File for metrics, a JSON line each");
  try {
    app.parse(argc, argv);
    flags.skip_bad_samples = bad_samples == "skip";
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
}
