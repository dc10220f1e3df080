#pragma once

#include <chrono>

#include "launcher/cluster/up_way.hpp"

namespace dtrain {

// Pure. What the head is about to do with its machines of this cluster: those that are there, then
// those that it would ask for, which have no name yet; what an `up` has made is in no row. What is
// there beside those that are to stand ready may be needed by jobs, and stays, as far as there may
// be so many.
std::vector<NodePlan> plan_asked(const wire::WantedMachines& wanted, std::vector<Machine> there);

// Where the head asks for machines, for a dry run: how many of which type it is to keep, in
// run.report.asked, with why none can be had; what it would do, behind the others of
// run.report.plan.
void plan_machines(UpRun& run);
// The same of those alone that it has asked for, where `up` makes others.
void plan_growth(UpRun& run);
// The same, where it asks for what jobs need beside those that `up` makes; tells it so. That it
// cannot is told of. False: a type can never be had, or somebody counts on a bound of which the
// head does not know.
bool tell_growth(UpRun& run, const fs::path& socket);
// Pure. The pause between looks at machines that may take days to come, after one of so long: about
// a tenth of the whole time until then, and no more than 15 s. Where the head is in an allocation
// each look is a step of that Slurm job, which may have only so many.
std::chrono::milliseconds next_glance(std::chrono::milliseconds pause);
// Tells it so, and waits until their nodes are ready, and with `replace` until those of another
// launch configuration have gone; or until so many of all nodes are ready as min_nodes says; or it
// is stopped, whereby the head goes on. What came of it is in run.report.asked.
void keep_machines(UpRun& run, const fs::path& socket);

}  // namespace dtrain
