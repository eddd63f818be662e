"""Experiments: the runner's promises, the batched training against torch's optimisers, and every quick figure."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from study_tables import accuracy_table
from typer.testing import CliRunner

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep import experiments
from notsodeep.cli import app
from notsodeep.errors import ConvergenceError, DataError, InvalidInputError
from notsodeep.experiments import accuracy, distilling, equivalents_error, readouts, runner
from notsodeep.experiments.kernel_figures import histograms, sample, thumbnail
from notsodeep.experiments.readouts import train_readouts
from notsodeep.experiments.runner import Experiment, Point, Setup, TimeUp, draw, read_document, run
from notsodeep.plots.figures.accuracy import REPORTED, accuracy_curves
from notsodeep.plots.style import INK

# ---- the runner ------------------------------------------------------------------------------------------------


class Counting:
    """An experiment of squares that counts what it computes."""

    def __init__(self, scale: int = 1, fail_at: int | None = None) -> None:
        self.calls: list[int] = []
        self.scale, self.fail_at = scale, fail_at

    def point(self, i: int) -> Point:
        def compute() -> dict[str, int]:
            self.calls.append(i)
            if i == self.fail_at:
                raise RuntimeError("interrupted")
            return {"square": self.scale * i * i}

        return Point(f"p{i}", {"i": i, "scale": self.scale, "pair": (i, i)}, compute)

    def experiment(self) -> Experiment:
        return Experiment("squares", lambda setup: [self.point(i) for i in range(4)], plot)


def plot(document: dict) -> dict[str, Figure]:
    figure = Figure()
    figure.subplots().plot([p["numbers"]["square"] for p in document["points"].values()])
    return {"": figure}


def test_finished_points_are_not_repeated(tmp_path):
    first, second = Counting(fail_at=2), Counting()
    with pytest.raises(RuntimeError, match="interrupted"):
        run(first.experiment(), Setup(), tmp_path)
    assert list(read_document(tmp_path / "quick.json")["points"]) == ["p0", "p1"]
    document = run(second.experiment(), Setup(), tmp_path)
    assert second.calls == [2, 3]
    assert [p["numbers"]["square"] for p in document["points"].values()] == [0, 1, 4, 9]
    assert document == read_document(tmp_path / "quick.json")


def test_other_settings_are_computed_anew(tmp_path):
    run(Counting().experiment(), Setup(), tmp_path)
    changed = Counting(scale=3)
    document = run(changed.experiment(), Setup(), tmp_path)
    assert changed.calls == [0, 1, 2, 3]
    assert document["points"]["p3"]["numbers"] == {"square": 27}


def test_quick_and_full_are_kept_apart(tmp_path):
    run(Counting().experiment(), Setup(quick=True), tmp_path)
    full = Counting()
    document = run(full.experiment(), Setup(quick=False), tmp_path)
    assert full.calls == [0, 1, 2, 3]
    assert document["command"] == "notsodeep reproduce squares"
    assert {f.name for f in tmp_path.iterdir()} == {
        f"{s}.{e}" for s in ("quick", "full") for e in ("json", "png", "svg")
    }


def test_the_deadline_stops_between_points(tmp_path):
    late = Counting()
    document = run(late.experiment(), Setup(deadline=-1.0), tmp_path)
    assert late.calls == []
    assert document["points"] == {}
    assert list(tmp_path.iterdir()) == []


def test_a_point_that_runs_out_of_time_leaves_the_others(tmp_path):
    counting = Counting()
    points = [counting.point(1), Point("slow", {}, expired), counting.point(2)]
    document = run(counting.experiment(), Setup(), tmp_path, points=points)
    assert list(document["points"]) == ["p1"]


def expired() -> dict[str, int]:
    raise TimeUp


def test_figures_are_drawn_from_the_document_alone(tmp_path):
    experiment = Counting().experiment()
    run(experiment, Setup(), tmp_path)
    before = (tmp_path / "quick.svg").read_bytes()
    for name in ("quick.png", "quick.svg"):
        (tmp_path / name).unlink()
    idle = Counting(fail_at=0)
    draw(idle.experiment(), tmp_path / "quick.json")
    assert idle.calls == []
    assert (tmp_path / "quick.png").stat().st_size > 1000
    assert len((tmp_path / "quick.svg").read_bytes()) == len(before)


def test_figures_that_a_stopped_run_did_not_write_are_drawn_by_the_next(tmp_path, monkeypatch):
    experiment = dataclasses.replace(Counting().experiment(), draw=lambda document: {"a": Figure(), "b": Figure()})
    with monkeypatch.context() as patch:
        patch.setattr(runner, "atomic", refused)
        with pytest.raises(OSError, match="full"):
            run(experiment, Setup(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick.json", "quick_a.svg"]
    run(experiment, Setup(), tmp_path)
    names = {f"quick_{one}.{kind}" for one in "ab" for kind in ("svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == names | {"quick.json"}
    (tmp_path / "quick_b.png").unlink()
    run(experiment, Setup(), tmp_path)
    assert (tmp_path / "quick_b.png").exists()


def refused(path: Path) -> Any:
    raise OSError(f"no room for {path}: the disk is full")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"points": []}', '{"points": [], "experiment": "a"}'])
def test_damaged_documents_are_named(tmp_path, text):
    (tmp_path / "quick.json").write_text(text)
    with pytest.raises(DataError, match=r"quick\.json.*move it away"):
        run(Counting().experiment(), Setup(), tmp_path)
    assert (tmp_path / "quick.json").read_text() == text


def test_nan_never_reaches_the_disk(tmp_path):
    bad = [Point("nan", {}, lambda: {"square": float("nan")})]
    with pytest.raises(ValueError, match="JSON"):
        run(Counting().experiment(), Setup(), tmp_path, points=bad)
    assert list(tmp_path.iterdir()) == []


def test_every_point_says_what_made_it(tmp_path):
    made = run(Counting().experiment(), Setup(), tmp_path)["points"]["p0"]["made_with"]
    assert made["torch"] == torch.__version__
    assert {"notsodeep", "python", "numpy", "scipy", "device"} <= set(made)


# ---- batched readouts ------------------------------------------------------------------------------------------


def reference(F: torch.Tensor, y: torch.Tensor, way: str, lr: float, seed: int, epochs: int) -> torch.Tensor:
    """The same training by torch's own optimiser and autograd, one network at a time."""
    weight = torch.zeros(3, F.shape[1], dtype=F.dtype, requires_grad=True)
    kind: Callable = torch.optim.SGD if way == "sgd" else torch.optim.Adam
    torch_optimiser = kind([weight], lr=lr)
    for epoch in range(epochs):
        order = torch.randperm(len(F), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        for rows in order.split(16):
            torch_optimiser.zero_grad()
            torch.nn.functional.cross_entropy(F[rows] @ weight.T, y[rows]).backward()
            torch_optimiser.step()
    return weight.detach().T


def test_batched_training_equals_torch_optimisers():
    generator = torch.Generator().manual_seed(0)
    F = torch.randn(4, 50, 7, generator=generator, dtype=torch.float64)  # the last batch of an epoch has two rows
    y = torch.randint(0, 3, (50,), generator=generator)
    optimisers, seeds = {"sgd": 0.7, "adam": 0.01}, [0, 1, 0, 5]
    found = train_readouts(F, y, 3, optimisers, seeds, epochs=3, batch_size=16)
    assert found.shape == (4, 2, 7, 3)
    for i, seed in enumerate(seeds):
        for j, optimiser in enumerate(optimisers.items()):
            expected = reference(F[i], y, *optimiser, seed, epochs=3)
            torch.testing.assert_close(found[i, j], expected, rtol=0.0, atol=tolerance())


def test_divergence_is_reported():
    F = torch.full((1, 8, 2), 1e30)
    with pytest.raises(ConvergenceError, match="lower the learning rate"):
        train_readouts(F, torch.zeros(8, dtype=torch.long), 2, {"sgd": 1e30}, [0], epochs=2)


@pytest.mark.parametrize(("method", "lr"), [("newton", 1.0), ("sgd", 0.0), ("adam", float("nan"))])
def test_optimisers_are_checked(method, lr):
    with pytest.raises(InvalidInputError, match="positive learning rate"):
        train_readouts(torch.zeros(1, 8, 2), torch.zeros(8, dtype=torch.long), 2, {method: lr}, [0])


def test_sizes_are_checked():
    with pytest.raises(InvalidInputError, match="as many seeds"):
        train_readouts(torch.zeros(2, 8, 2), torch.zeros(8, dtype=torch.long), 2, {"sgd": 1.0}, [0])


# ---- samples ---------------------------------------------------------------------------------------------------


def test_samples_are_ordered_by_class():
    for name, n, p in (("mixture", 60, 40), ("digits", 100, 64)):
        drawn = sample(name, n, p)
        assert drawn.X.shape == (n, p)
        assert (np.diff(drawn.y) >= 0).all()
    assert (drawn.X**2).sum(1).mean() == pytest.approx(1.0, abs=1e-5)  # float32 data
    with pytest.raises(InvalidInputError, match="64 features"):
        sample("digits", 100, 784)
    with pytest.raises(InvalidInputError, match="kernel figures know"):
        sample("letters", 10, 10)


def test_histograms_count_all_but_the_largest():
    values = np.arange(100.0, 0.0, -1.0)
    found = histograms({"a": values, "b": values - 0.25})
    assert found["largest"]["a"] == list(range(100, 88, -1))
    assert sum(found["counts"]["a"]) == 88
    assert sum(found["counts"]["b"]) == 88
    assert found["edges"] == sorted(found["edges"])


def test_thumbnails_keep_corners():
    image = thumbnail(np.arange(10000.0).reshape(100, 100), size=10)
    assert (len(image), image[0][0], image[-1][-1]) == (10, 0.0, 9999.0)


# ---- every figure, quick ---------------------------------------------------------------------------------------


WHOLE = ("distil", "plain_depth", "sphere")
PARTS = {
    "accuracy": ("digits/32", "digits/512"),
    "eigenvalues": ("mixture/tanh", "digits/tanh", "digits_unit/tanh", "digits/tanh/0.25"),
    "equivalents_error": [f"{activation}/{p}" for activation in ("tanh", "relu") for p in (80, 320)],
    "kernels": ("mixture/relu", "digits/tanh", "digits/tanh/hard_tanh"),
}
"""Points of studies whose claims are checked below: all of them only by the slow tests."""


def reproduce(names: tuple[str, ...], folder: Path) -> dict[str, dict]:
    """What `notsodeep reproduce NAME --quick` writes, for each name."""
    found: dict[str, dict] = {}
    for name in names:
        result = CliRunner().invoke(app, ["reproduce", name, "--quick", "--output", str(folder), "--json"])
        assert result.exit_code == 0, result.output
        said = json.loads(result.stdout)
        found |= said if name == "all" else {name: said}
    for name, document in found.items():
        figures = [f for f in (folder / name).iterdir() if f.name != "quick.json"]
        assert {f.suffix for f in figures} == {".png", ".svg"}
        assert all(f.name.startswith("quick") for f in figures)
        assert read_document(folder / name / "quick.json") == document
        again = experiments.reproduce(name, quick=True, folder=folder, progress=False)
        assert again == document  # the times of the points included: nothing was computed twice
    return found


@pytest.fixture(scope="module", params=["some points", pytest.param("every study", marks=pytest.mark.slow)])
def documents(request, tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("results")
    if request.param == "every study":
        return reproduce(("all",), folder)
    return reproduce(WHOLE, folder) | {name: some_points(name, folder / name) for name in PARTS}


def some_points(name: str, folder: Path) -> dict:
    module = importlib.import_module(f"notsodeep.experiments.{experiments.STUDIES[name].module}")
    (experiment,) = (found for found in module.EXPERIMENTS if found.name == name)
    chosen = [point for point in experiment.points(Setup()) if point.key in PARTS[name]]
    assert len(chosen) == len(PARTS[name])
    document = run(experiment, Setup(), folder, points=chosen)
    assert {f.suffix for f in folder.iterdir()} == {".json", ".png", ".svg"}
    return document


def test_every_study_is_reproduced(documents):
    assert set(documents) in ({*WHOLE, *PARTS}, set(experiments.names()))


def test_errors_fall_with_n(documents):
    curves = equivalents_error.kept_curves(documents["equivalents_error"])
    slopes = {kernel: {a: curve.slope for a, curve in by.items()} for kernel, by in curves.items()}
    for kernel, by_activation in slopes.items():
        assert {"tanh", "relu"} <= set(by_activation)
        if "own" not in kernel:
            assert all(-0.9 < slope < -0.2 for slope in by_activation.values())  # n^(-1/2) in the limit; n <= 400 here
    for kernel in ("ck", "ntk", "ntk_frozen"):
        for activation in {"tanh", "arctan"} & set(slopes[kernel]):
            assert slopes[f"{kernel}/own"][activation] < slopes[kernel][activation] - 0.4


def test_equivalents_have_the_exact_spectrum(documents):
    for point in documents["eigenvalues"]["points"].values():
        numbers = point["numbers"]
        distances = numbers["distances"]
        assert distances["empirical tau0"]["ck_relative"] < 0.12
        assert (
            distances["own norms"]["ck"]
            < (1.01 if "unit" in point["settings"]["data"] else 0.3) * distances["empirical tau0"]["ck"]
        )
        if "mean_square" in point["settings"]:
            continue
        exact, approximate = (np.array(v) for v in numbers["spectrum"]["largest"].values())
        np.testing.assert_allclose(exact, approximate, rtol=0.12)  # as above
        assert numbers["distances"]["empirical tau0"]["lambda"] == pytest.approx(
            point["settings"]["sigma_a2"] * numbers["distances"]["empirical tau0"]["ck"]
        )


def test_twins_are_nearer_than_plain_networks(documents):
    for point in documents["kernels"]["points"].values():
        gap = point["numbers"]["distances"]
        assert gap["twin"]["ck_relative"] < 0.01  # the mixture of theory, section 6
        assert gap["plain"]["ck_relative"] > 4 * gap["twin"]["ck_relative"]
        left, right = (np.array(v) for v in point["numbers"]["images"].values())
        assert left.shape == right.shape == (80, 80)
        assert np.abs(left - right).max() < 0.05 * np.abs(left).max()
    for key in [key for key in documents["kernels"]["points"] if key.endswith("/hard_tanh")]:
        cheap, close = (documents["kernels"]["points"][k]["numbers"] for k in (key, key.removesuffix("/hard_tanh")))
        assert (cheap["family"], close["family"]) == ("hard_tanh", "skip")
        assert 10 * close["distances"]["twin"]["ck"] < cheap["distances"]["twin"]["ck"]


def test_sphere(documents):
    for point in documents["sphere"]["points"].values():
        gap = point["numbers"]["distances"]
        assert gap["quadratic"]["relative"] < 1e-3  # the quadratic twin is one in high dimension
        error = point["numbers"]["largest_off_diagonal_error"]
        assert error["hermite"] < tolerance() < error["quadratic"]


def test_accuracies_of_twin_and_deq_meet(documents):
    for activation in ("tanh", "relu"):
        by_model = accuracy_curves(documents["accuracy"], "digits", activation, "sgd")
        gaps = {name: np.abs(by_model[name][1] - by_model["DEQ"][1]) for name in ("twin", "plain")}
        assert gaps["twin"][-1] < 0.01  # 397 test rows, three seeds: one standard error is about 0.006
        assert gaps["twin"][-1] < gaps["twin"][0]
        assert by_model["DEQ"][1][-1] > 0.8
    assert (gaps["plain"] > gaps["twin"]).all()  # ReLU


def test_depth_slows_plain_networks(documents):
    for activation in ("tanh", "relu"):
        found = {k: v[0] for k, v in documents["plain_depth"]["points"][f"digits/{activation}/256"]["numbers"].items()}
        assert abs(found["twin"] - found["DEQ"]) < 0.02  # 397 test rows: one of them is 0.0025
        assert found["1 layer"] > found["3 layers"]
        assert found["1 layer"] > found["1 layer, 0.2"]
        assert ("1 raw layer" in found) == (activation == "relu")


def test_students_of_a_trained_deq(documents):
    """Every start, depth and way, three seeds; students fitted to the DEQ agree with it more than others do."""
    rows = documents["distil"]["points"]["digits/relu"]["numbers"]["rows"]
    assert len(rows) == 3 * (1 + 2 * 2 * 3)
    deqs = [row for row in rows if row["start"] == "deq"]
    assert all(row["agreement"] == 1.0 and row["accuracy"] > 0.8 for row in deqs)
    agreement = {way: np.mean([r["agreement"] for r in rows if r["way"] == way]) for way in distilling.WAYS}
    assert agreement["distilled"] > agreement["fresh readout"]
    assert agreement["distilled"] > 0.9
    assert max(row["milliseconds"] for row in rows if row["depth"] == 2) < min(row["milliseconds"] for row in deqs)


def test_networks_that_do_not_fit_together_are_trained_in_turns(monkeypatch):
    data = nsd.datasets.digits().standardised()
    networks = ["DEQ", "twin", "orthogonal twin", "2 layers"]
    at_once = accuracy.accuracy_by_depth(data, "relu", 24, networks, epochs=3, seeds=(0, 1))
    monkeypatch.setattr(readouts, "_CPU_BYTES", 3 * 4 * 24 * (len(data.X_train) + len(data.X_test)))
    assert accuracy.accuracy_by_depth(data, "relu", 24, networks, epochs=3, seeds=(0, 1)) == at_once
    monkeypatch.setattr(readouts, "_CPU_BYTES", 1)
    assert accuracy.accuracy_by_depth(data, "relu", 24, networks, epochs=3, seeds=(0, 1)) == at_once


def test_noise_makes_data_harder_and_stays_standardised():
    data = nsd.datasets.digits().standardised()
    blurred = accuracy.noisy(data, 3.0, seed=1)
    assert np.isclose((blurred.X_train.astype(np.float64) ** 2).sum(1).mean(), 1.0, rtol=ulps(64, np.float32), atol=0)
    overlap = float((blurred.X_train * data.X_train).sum(1).mean())  # 1 / sqrt(1 + 9) of the signal is left
    assert abs(overlap - 10**-0.5) < 0.01
    assert np.array_equal(accuracy.noisy(data, 3.0, seed=1).X_test, blurred.X_test)


def test_unknown_names():
    with pytest.raises(InvalidInputError, match="known: equivalents_error"):
        experiments.reproduce("figure 9")


def test_a_run_stops_at_its_limit_and_goes_on(tmp_path):
    assert experiments.reproduce("sphere", folder=tmp_path, time_limit=0.0)["points"] == {}
    stored = experiments.reproduce("sphere", folder=tmp_path)["points"]
    assert experiments.reproduce("sphere", folder=tmp_path, time_limit=0.0)["points"] == stored


def test_a_table_of_accuracies_beside_the_published_ones(tmp_path):
    points = accuracy.accuracy_points(Setup(), ["digits"], [16], seeds=1, epochs=1)
    document = run(accuracy.EXPERIMENTS[0], Setup(), tmp_path, points=points)
    stored = document["points"]["digits/16"]
    assert stored["settings"]["seeds"] == [0]
    heads, rows = accuracy_table(document, {"digits": {"relu": REPORTED["mnist"]["relu"]}})
    mean = 100 * stored["numbers"]["accuracies"]["relu"]["sgd"]["twin"]["accuracy"][0]
    relu = dict(zip(heads, rows[1], strict=True))
    assert (relu["data"], relu["activation"], relu["width"]) == ("digits", "ReLU", "16")
    assert relu["twin"] == f"{mean:.2f} ± 0.00"
    assert relu["published (DEQ, twin, plain)"] == "93.7, 93.4, 91.8"
    assert rows[0][8] == "-"


def test_every_study_is_listed_with_what_it_shows_and_how_long_it_takes():
    files = {p.stem for p in Path(experiments.__file__).parent.glob("*.py") if "\nEXPERIMENTS = " in p.read_text()}
    modules = {stem: importlib.import_module(f"notsodeep.experiments.{stem}") for stem in files}
    held = {(found.name, stem) for stem, module in modules.items() for found in module.EXPERIMENTS}
    assert {(name, study.module) for name, study in experiments.STUDIES.items()} == held
    said = CliRunner().invoke(app, ["reproduce"], env={"COLUMNS": "200"}).stdout
    for name, study in experiments.STUDIES.items():
        assert name in said
        assert study.shows in said
        assert study.quick in said


def test_figures_follow_the_colour_scheme(tmp_path):
    run(Counting().experiment(), Setup(), tmp_path)
    text = (tmp_path / "quick.svg").read_text()
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert INK not in text.split("</style>")[1]
