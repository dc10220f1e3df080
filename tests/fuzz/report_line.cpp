// Any line from a rank is either a report, unchanged by a second reading, or a refusal of bounded
// length.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json report = dtrain::wire::parse_report(line);
    const std::string again = dtrain::wire::dump(report);
    // Written out it may be longer (escapes), and then too long; else it must be the same report.
    if (again.size() < dtrain::wire::kReportLimit && dtrain::wire::parse_report(again) != report) {
      std::abort();
    }
  } catch (const dtrain::Error& error) {
    if (error.code() != dtrain::ErrorCode::invalid || error.message().size() > 1000) std::abort();
  }
  return 0;
}
