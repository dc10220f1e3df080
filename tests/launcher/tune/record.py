"""Records what others' programs decide and find, for the tests of launcher/tune.

    python3 -m venv .deps/tune
    .deps/tune/bin/pip install optuna==5.0.0 scipy==1.17.1 'ray[tune]==2.60.0'
    .deps/tune/bin/python tests/launcher/tune/record.py [asha median pbt sobol tpe]

writes recorded/NAME.json beside this file. Values are rounded so that each side reads the same
double. A recording is made anew only for another version of the program that it is of. `trainings`,
which tpe looks up, is none of them: it is 900 trainings of examples/tune_mnist, by dtrain, and takes
some ten minutes.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent / "recorded"


def write(name, data):
    HERE.mkdir(exist_ok=True)
    text = json.dumps(data, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text.replace('{"case"', '\n{"case"') + "\n")


class Trial:
    """As much of a trial as Ray's rules look at."""

    def __init__(self, number):
        self.trial_id = number
        self.finished = False

    def is_finished(self):
        return self.finished


def curves(rng, trials, longest):
    """Reports of trials that run side by side: (trial, time, value), times growing for each."""
    at = [0] * trials
    level = [rng.random() for _ in range(trials)]
    skip = rng.choice([1, 1, 3])
    running = list(range(trials))
    while running:
        trial = rng.choice(running[: rng.randint(2, 8)])
        at[trial] += rng.randint(1, skip)
        if at[trial] > longest:
            running.remove(trial)
            continue
        value = level[trial] * (1 - math.exp(-at[trial] / 5)) + rng.gauss(0, 0.1)
        yield trial, at[trial], round(value, 4), running


def asha():
    import ray
    from ray.tune.schedulers.async_hyperband import _Bracket
    cases = []
    settings = [(1, 100, 4, 0), (1, 81, 3, 0), (1, 81, 3, 1), (2, 50, 2, 0), (1, 27, 3, 2),
                (5, 100, 2.5, 0), (3, 40, 1.5, 1), (1, 16, 2, 3)]
    for case in range(24):
        rng = random.Random(case)
        grace, max_t, factor, bracket_number = settings[case % len(settings)]
        last = case % 3 != 0
        bracket = _Bracket(grace, max_t, factor, bracket_number, stop_last_trials=last)
        reports = []
        for trial, time, value, running in curves(rng, 24, max_t - 1):
            decision = bracket.on_result(Trial(trial), time, value)
            reports.append([trial, time, value, int(decision == "STOP")])
            if decision == "STOP":
                running.remove(trial)
        rungs = [[float(milestone), len(recorded),
                  None if not recorded else float(bracket.cutoff(recorded))]
                 for milestone, recorded in reversed(bracket._rungs)]
        cases.append({"case": case, "grace_period": grace, "max_t": max_t,
                      "reduction_factor": factor, "bracket": bracket_number,
                      "stop_last_trials": last, "reports": reports, "rungs": rungs})
    write("asha", {"of": f"ray {ray.__version__}", "cases": cases})


def median():
    import ray
    from ray.tune.schedulers.median_stopping_rule import MedianStoppingRule

    class Controller:
        def get_live_trials(self):
            return []

    cases = []
    for case in range(24):
        rng = random.Random(1000 + case)
        mode = rng.choice(["min", "max"])
        grace = rng.choice([0, 1, 3, 5.5])
        least = rng.choice([1, 3, 5])
        rule = MedianStoppingRule(time_attr="t", metric="m", mode=mode, grace_period=grace,
                                  min_samples_required=least)
        trials = [Trial(number) for number in range(16)]
        reports = []
        for trial, time, value, running in curves(rng, len(trials), 20):
            decision = rule.on_trial_result(Controller(), trials[trial], {"t": time, "m": value})
            reports.append([trial, time, value, int(decision == "STOP")])
            if decision == "STOP":
                running.remove(trial)
        cases.append({"case": case, "mode": mode, "grace_period": grace,
                      "min_samples_required": least, "reports": reports})
    write("median", {"of": f"ray {ray.__version__}", "cases": cases})


def pbt():
    """Which trials are the lower and the upper ones."""
    import ray
    from ray.tune.schedulers.pbt import PopulationBasedTraining
    cases = []
    for case in range(60):
        rng = random.Random(2000 + case)
        fraction = rng.choice([0.1, 0.25, 0.34, 0.5])
        rule = PopulationBasedTraining(time_attr="t", metric="m", mode="max",
                                       quantile_fraction=fraction,
                                       hyperparam_mutations={"lr": [1, 2]})
        scores = [round(rng.choice([rng.random(), 0.5]), 3) for _ in range(rng.randint(0, 12))]

        class State:
            def __init__(self, score):
                self.last_score = score

        trials = [Trial(number) for number in range(len(scores))]
        rule._trial_state = {trial: State(score) for trial, score in zip(trials, scores)}
        lower, upper = rule._quantiles()
        cases.append({"case": case, "quantile_fraction": fraction, "scores": scores,
                      "lower": [t.trial_id for t in lower], "upper": [t.trial_id for t in upper]})
    write("pbt", {"of": f"ray {ray.__version__}", "cases": cases})


def sobol():
    import numpy
    import scipy
    from scipy.stats import qmc
    plain = qmc.Sobol(128, scramble=False)
    whole = 2 ** 30
    points = [[int(x * whole) for x in row] for row in plain.random(64)]
    plain.fast_forward(10_000 - 64)
    late = [[int(x * whole) for x in row] for row in plain.random(4)]

    # The bits that SciPy draws, and what it makes of them.
    bits = numpy.random.default_rng(7).spawn(1)[0]  # as SciPy does with what it is given
    shift = bits.integers(0, 2, size=(5, 30), dtype=numpy.uint32)
    matrices = bits.integers(0, 2, size=(5, 30, 30), dtype=numpy.uint32)
    scrambled = qmc.Sobol(5, rng=numpy.random.default_rng(7))
    write("sobol", {
        "of": f"scipy {scipy.__version__}", "points": points, "from_10000": late,
        "shift_bits": ["".join(map(str, row)) for row in shift.tolist()],
        "matrix_bits": [["".join(map(str, row)) for row in matrix]
                        for matrix in matrices.tolist()],
        "scrambled": [[int(x * whole) for x in row] for row in scrambled.random(64)]})


def sobol_table():
    """Prints launcher/tune/sobol_table.cpp's rows."""
    import numpy
    import scipy.stats
    table = numpy.load(os.path.join(os.path.dirname(scipy.stats.__file__),
                                    "_sobol_direction_numbers.npz"))
    for row in range(128):
        poly = int(table["poly"][row])
        degree = max(1, poly.bit_length() - 1)
        first = ", ".join(str(int(v)) for v in table["vinit"][row][:degree])
        print(f"    {{{poly}, {{{first}}}}},")


def branin(trial):
    x = trial.suggest_float("x", -5, 10)
    y = trial.suggest_float("y", 0, 15)
    return ((y - 5.1 / (4 * math.pi ** 2) * x * x + 5 / math.pi * x - 6) ** 2
            + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def hartmann6(trial):
    x = [trial.suggest_float(f"x{i}", 0, 1) for i in range(6)]
    alpha = [1.0, 1.2, 3.0, 3.2]
    a = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14],
         [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    p = [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
         [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]
    return -sum(alpha[i] * math.exp(-sum(a[i][j] * (x[j] - p[i][j] * 1e-4) ** 2
                                         for j in range(6))) for i in range(4))


def rosenbrock(trial):
    """With a parameter that is only there for one of two kinds, and wins when it is found."""
    x = trial.suggest_float("x", -2, 2)
    y = trial.suggest_float("y", -1, 3)
    value = (1 - x) ** 2 + 100 * (y - x * x) ** 2
    if trial.suggest_categorical("kind", ["flat", "tilted"]) == "flat":
        return value + 2
    z = trial.suggest_float("z", -1, 1)
    return value + 10 * (z - 0.5) ** 2


MOMENTA, BATCHES, WIDTHS = [0.0, 0.5, 0.9, 0.95], [32, 64, 128], [64, 128, 256]
RATES = 25  # from 1e-4 to 1, six to a decade


def trainings():
    """The accuracy of a perceptron on FashionMNIST for each rate, momentum, batch and width."""
    build = Path(__file__).resolve().parents[3] / "build"
    dtrain = build / "cli" / "dtrain"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        cluster, search = Path(folder) / "cluster.yaml", Path(folder) / "search.yaml"
        cluster.write_text("cluster_name: trainings\nprovider: {type: local}\n")
        search.write_text(json.dumps({
            "name": "trainings", "command": [str(build / "examples" / "tune_mnist" / "tune_mnist")],
            "metric": "accuracy", "mode": "max", "num_samples": 1, "checkpoint": {"num_to_keep": 1},
            "space": {"lr": {"grid_search": [10 ** (i / 6 - 4) for i in range(RATES)]},
                      "momentum": {"grid_search": MOMENTA}, "batch": {"grid_search": BATCHES},
                      "hidden": {"grid_search": WIDTHS}, "images": 2000, "epochs": 3}}))
        run = lambda *words: subprocess.run([dtrain, *words], env=environment, check=True, text=True,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout
        run("up", cluster)
        try:
            run("tune", search)
            result = json.loads(run("tune", "result", "--json"))
        finally:
            run("down", "-y")
    table = {}
    for trial in result["trials"]:
        assert trial["state"] == "complete", trial
        at = trial["params"]
        rate = round((math.log10(at["lr"]) + 4) * 6)
        table.setdefault(f"{at['momentum']:g} {at['batch']} {at['hidden']}", [None] * RATES)[rate] = trial["value"]
    write("trainings", {"of": "examples/tune_mnist, 2,000 images, 3 epochs", "accuracy": table})


def perceptron(trial):
    """The error of recorded trainings, of that with the nearest rate."""
    if not TRAININGS:
        TRAININGS.update(json.loads((HERE / "trainings.json").read_text())["accuracy"])
    rate = round((math.log10(trial.suggest_float("lr", 1e-4, 1, log=True)) + 4) * 6)
    momentum = trial.suggest_categorical("momentum", MOMENTA)
    batch = trial.suggest_categorical("batch", BATCHES)
    hidden = trial.suggest_categorical("hidden", WIDTHS)
    return 1 - TRAININGS[f"{momentum:g} {batch} {hidden}"][rate]


TRAININGS = {}


def tpe():
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    best = {}
    for objective in [branin, hartmann6, rosenbrock, perceptron]:
        best[objective.__name__] = []
        for seed in range(SEEDS):
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
            study.optimize(objective, n_trials=100)
            best[objective.__name__].append(study.best_value)
    write("tpe", {"of": f"optuna {optuna.__version__}", "trials": 100, "best": best})


SEEDS = 30

if __name__ == "__main__":
    for name in sys.argv[1:] or ["asha", "median", "pbt", "sobol", "tpe"]:
        globals()[name]()
