#pragma once

#include <optional>
#include <string>

#include "launcher/files/beneath.hpp"
#include "launcher/files/record.hpp"

namespace dtrain::sync {

// True when what is at `path` is what is expected.
bool is_as_expected(Beneath& files, const std::string& path, const Expect& expect);

// Does one operation, whether or not it was done before. Gives the reason why it was left, if
// somebody else's doing stands in its way. `stage` is the staging folder's descriptor, `temporary`
// the beginning of names for files that must be copied because they go to another file system.
// Throws Error when the operating system refuses: Error(denied) where it is this path alone.
std::optional<std::string> perform(Beneath& files, int stage, const std::string& temporary,
                                   const Operation& operation);

// Removes what an operation that was cut may have left beside its path.
void remove_temporary(Beneath& files, const std::string& temporary, const Operation& operation);

}  // namespace dtrain::sync
