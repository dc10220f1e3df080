#include "agent/supervise/rank_launcher.hpp"

#include <utility>

#include "agent/supervise/srun_launcher.hpp"

namespace dtrain::supervise {
namespace {

// Nobody has.
class DirectLauncher final : public RankLauncher {
 public:
  void begin() override {}
  bool ready() const override { return true; }
  const Environment& environment(int) const override { return nothing_; }
  void rank_ended(int, const ProcessExit&) override {}
  bool busy() const override { return false; }
  void end() override {}
  void over() override {}
  void on_child() override {}
  std::vector<pid_t> children() const override { return {}; }

 private:
  const Environment nothing_ = {};
};

}  // namespace

std::unique_ptr<RankLauncher> make_launcher(boost::asio::io_context& io,
                                            const wire::AttemptSpec& spec,
                                            const paths::AttemptRoot& root, const fs::path& program,
                                            RankLauncher::Hooks hooks) {
  if (!spec.srun) return std::make_unique<DirectLauncher>();
  return std::make_unique<SrunLauncher>(io, spec, root, program, std::move(hooks));
}

}  // namespace dtrain::supervise
