"""A model replaced by its student: the promise holds on fresh rows, and everything bad is an error that says so."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from helpers import solved, ulps
from notsodeep.errors import CertificationError, CheckpointError, InvalidInputError, NotSoDeepWarning
from notsodeep.nn import Replacement, ReplaceOptions
from notsodeep.nn.ladder import thresholds_of
from notsodeep.nn.model import LIMITS

P, CLASSES = 6, 3
X = torch.randn(7000, P, generator=torch.Generator().manual_seed(0))
TRAIN, FRESH, LATER = X[:2000], X[2000:4000], X[4000:]
ALARM = 1e-4  # the level of the test after which a replacement warns
QUICK = ReplaceOptions(steps=120)


def deq(seed: int = 0, **options) -> nsd.nn.DEQ:
    return nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), P, 32, CLASSES, seed=seed, **options)


def replaced(model=None, rows=TRAIN, **options) -> Replacement:
    given = {"disagreement": 0.03, "calibration": FRESH, "options": QUICK, "progress": False} | options
    return nsd.replace(deq() if model is None else model, rows, **given)


@pytest.fixture(scope="module", autouse=True)
def brief() -> Iterator[None]:
    """Scores are learned, and mixed rows solved, in less time than users have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("notsodeep.nn.student.LIMITS", dataclasses.replace(LIMITS, head_steps=80, least_pool=2048))
        yield


@pytest.fixture(scope="module")
def fast() -> Replacement:
    return replaced()


@pytest.fixture
def unseen(fast: Replacement) -> Replacement:
    """Those rows that other tests have sent are forgotten."""
    fast._counts, fast._warned = [(0, 0)], False
    return fast


# -- the promise -----------------------------------------------------------------------------------------
def test_the_certificate_records_what_was_used(fast: Replacement) -> None:
    found = fast.certificate
    assert (found.disagreement, found.confidence, found.tolerance) == (0.03, 0.95, None)
    assert (found.distilled, found.chosen, found.measured) == (1700, 300, 2000)
    assert found.score in ("margin", "softmax margin")
    assert 0.3 < found.coverage < 1.0
    assert found.seen / found.measured < 0.03 < found.student_disagreement
    for word in ("promised", "rests on", "student", "costs", "3.000%"):
        assert word in repr(fast)


def test_fresh_rows_keep_the_promise(fast: Replacement) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        differs = fast(LATER).argmax(1) != deq()(LATER).argmax(1)
    # the promise holds with probability 0.95; beyond it three standard errors of this sample
    assert float(differs.double().mean()) <= 0.03 + 3.0 * (0.03 / len(LATER)) ** 0.5


def test_each_row_is_answered_by_the_student_or_by_the_model(fast: Replacement) -> None:
    outputs, (student, score) = fast(LATER), fast.scored(LATER)
    sure = score >= fast.certificate.threshold
    assert torch.equal(outputs[sure], student[sure])
    torch.testing.assert_close(outputs[~sure], deq()(LATER[~sure]).detach(), rtol=0, atol=solved(1e-5))
    assert abs(float(sure.double().mean()) - fast.certificate.coverage) < 0.05
    assert not outputs.requires_grad
    assert fast(LATER[:0]).shape == (0, CLASSES)


def test_a_stricter_promise_costs_coverage(fast: Replacement) -> None:
    strict = replaced(disagreement=0.005, student=fast.student, options=ReplaceOptions(steps=0))
    assert strict.certificate.coverage < fast.certificate.coverage
    frozen = copy.deepcopy(fast.student).requires_grad_(False)
    same = replaced(disagreement=0.005, student=frozen, options=ReplaceOptions(steps=0))  # taken as it is
    assert same.certificate == strict.certificate
    again = replaced(disagreement=0.005)
    assert torch.equal(again.student.hidden.weight, fast.student.hidden.weight)  # one seed, one student
    assert again.certificate == strict.certificate


def test_a_generous_promise_lets_the_student_answer_everything() -> None:
    """Also where fresh rows are less sure than all that chose the thresholds."""
    found = replaced(rows=3.0 * TRAIN, disagreement=0.6)
    assert found.certificate.coverage == 1.0


def test_thresholds_reach_rows_that_are_much_less_sure() -> None:
    """Rows that trained the model may have scores near eleven where fresh ones go down to zero."""
    surest = SimpleNamespace(rows=torch.linspace(10.0, 11.0, 400)[:, None])
    found = thresholds_of([lambda rows: (rows, rows[:, 0])], [(0.0, 1.0)], surest, surest)
    below = np.sort(found[found < 10.0])
    assert below[0] < 0.0
    assert np.diff(below).max() < 0.05


def test_regression_promises_an_error() -> None:
    model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), P, 32, 2)
    found = replaced(model, tolerance=0.5, disagreement=0.05)
    assert found.certificate.score == "head"
    error = (found(LATER) - model(LATER)).abs().amax(1)
    assert float((error > 0.5).double().mean()) <= 0.05 + 3.0 * (0.05 / len(LATER)) ** 0.5
    assert "off by more than 0.5" in repr(found)


def test_the_surer_half_of_the_rows_differs_less(fast: Replacement) -> None:
    outputs, score = fast.scored(LATER)
    differs = (outputs.argmax(1) != deq()(LATER).argmax(1)).double()
    half = score >= score.median()
    assert 4 * float(differs[half].mean()) < float(differs[~half].mean())


def test_without_calibration_rows_there_is_a_warning() -> None:
    with pytest.warns(NotSoDeepWarning, match="the promise is void; give calibration="):
        found = replaced(calibration=None)
    assert (found.certificate.distilled, found.certificate.chosen, found.certificate.measured) == (1200, 300, 500)


# -- models, students and data of every kind -------------------------------------------------------------
def test_a_digits_deq() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = torch.tensor(images / 16.0 - 0.3, dtype=torch.float32)
    model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), 64, 64, 10, bias=True)
    nsd.nn.fit(model, (rows[:600], labels[:600]), optimiser="adam", lr=0.02, epochs=10)
    found = replaced(model, rows[:1000], calibration=rows[1000:], disagreement=0.02)
    assert found.certificate.coverage > 0.6
    assert found(rows[1000:]).shape == (797, 10)


def test_functions_images_and_numpy_arrays() -> None:
    weights = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))
    images = X[:, :4].reshape(-1, 1, 2, 2).repeat(1, 1, 2, 2)
    found = replaced(lambda x: torch.tanh(x.flatten(1)) @ weights, images[:2000].numpy(), calibration=images[2000:4000])
    assert found(images[:5]).shape == (5, 2)
    with pytest.raises(InvalidInputError, match=r"expected a tensor of shape \(rows, 1, 4, 4\), got \(5, 6\)"):
        found(X[:5])


def test_a_student_of_ones_own_in_double_precision(tmp_path) -> None:
    model = deq(dtype=torch.float64)
    student = nn.Sequential(nn.Linear(P, 40), nn.Tanh(), nn.Linear(40, CLASSES)).double()
    found = replaced(model, student=student)
    assert found.student is student
    assert found(LATER.double()).dtype == torch.float64
    found.save(tmp_path / "fast.safetensors")
    with pytest.raises(CheckpointError, match="give student="):
        Replacement.load(tmp_path / "fast.safetensors", model)
    other = nn.Sequential(nn.Linear(P, 40), nn.Tanh(), nn.Linear(40, CLASSES)).double()
    again = Replacement.load(tmp_path / "fast.safetensors", model, student=other)
    assert torch.equal(again(LATER.double()), found(LATER.double()))


def test_the_model_keeps_its_weights_and_its_mode() -> None:
    model = nn.Sequential(nn.Linear(P, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES)).eval()
    model[1].train()
    before = [p.clone() for p in model.parameters()]
    replaced(model)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert model[1].training
    assert not model[2].training


def test_training_mode_does_not_reach_inside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(P, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))
    found = replaced(model.eval())
    before = found(LATER), model[1].running_mean.clone()
    assert model.train()[1].training
    found.train()
    assert torch.equal(found(LATER), before[0])
    assert torch.equal(model[1].running_mean, before[1])
    assert model[1].training


def test_a_model_whose_last_step_is_not_done_is_refused() -> None:
    """It took the model beyond the limit of its contraction, to which evaluation returns."""
    model = deq().limit_contraction(0.3)
    model(TRAIN[:5]).sum().backward()
    with pytest.raises(InvalidInputError, match="the model is still training"):
        replaced(model)
    assert replaced(model.eval()).certificate.coverage > 0.3


def test_a_replacement_keeps_the_precision_of_its_promise(fast: Replacement) -> None:
    kept = copy.deepcopy(fast)
    for convert in (kept.half, kept.double, lambda: kept.to(torch.bfloat16)):
        with pytest.raises(InvalidInputError, match=r"the promise was measured in torch\.float32"):
            convert()
    assert torch.equal(kept.to("cpu").float()(LATER), fast(LATER))


class InPlace(nn.Module):
    """The first layer overwrites what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rest = nn.Sequential(nn.Linear(P, 32), nn.Tanh(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(nn.functional.relu(x, inplace=True))


def test_a_model_that_works_in_place_gets_copies() -> None:
    model, rows, later = InPlace(), FRESH.clone(), LATER.clone()
    with pytest.warns(NotSoDeepWarning, match="overwrites the rows"):
        found = replaced(model, calibration=rows)
    assert torch.equal(rows, FRESH)
    differs = found(later).argmax(1) != model(LATER.clone()).argmax(1)
    assert torch.equal(later, LATER)
    assert float(differs.double().mean()) <= 0.03 + 3.0 * (0.03 / len(LATER)) ** 0.5
    with pytest.raises(InvalidInputError, match="take inplace=False"):
        replaced(student=InPlace())


class Plain(nn.Module):
    """Outputs of every kind from one linear layer."""

    def __init__(self, form) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inner, self.form = nn.Linear(P, CLASSES), form

    def forward(self, x: Tensor) -> object:
        return self.form(self.inner(x))


@pytest.mark.parametrize(
    ("form", "options", "shape"),
    [
        (lambda y: y.double(), {}, (CLASSES,)),
        (lambda y: (4 * y).long(), {}, (CLASSES,)),
        (lambda y: (y, {"steps": 3}), {}, (CLASSES,)),
        (lambda y: [y], {}, (CLASSES,)),
        (lambda y: y > 0, {"tolerance": 0.5}, (CLASSES,)),
        (lambda y: y[:, 0], {"tolerance": 0.3}, ()),
        (lambda y: y[:, 0].round().long(), {"tolerance": 0.6}, ()),
    ],
    ids=["float64", "long", "tuple", "list", "bool", "scalar", "whole scalar"],
)
def test_outputs_of_every_kind(form, options: dict, shape: tuple[int, ...], tmp_path) -> None:
    model = Plain(form)
    found = replaced(model, disagreement=0.3, options=ReplaceOptions(steps=60, width=32), **options)
    assert found(LATER.double()).shape == (len(LATER), *shape)  # rows of another precision are converted
    assert found(LATER[:3]).dtype == torch.float32
    found.save(tmp_path / "fast.safetensors")
    again = Replacement.load(tmp_path / "fast.safetensors", model)
    assert torch.equal(again(LATER), found(LATER))


def test_another_model_is_refused(fast: Replacement, tmp_path) -> None:
    path = tmp_path / "fast.safetensors"
    fast.save(path)
    shape = r"outputs of shape|does not answer the stored rows"
    for other in (deq(seed=1), nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), P, 32, 7), lambda x: x[:, :CLASSES]):
        with pytest.raises(CheckpointError, match=shape):
            Replacement.load(path, other)
    Replacement.load(path, deq(solver=nsd.nn.SolverOptions(tol=1e-6)))  # its solver may be tightened


def test_calibration_rows_that_were_distilled_are_refused() -> None:
    for rows in (TRAIN, torch.cat([FRESH[:1500], TRAIN[:500]])):
        with pytest.raises(InvalidInputError, match="calibration rows are rows of X"):
            replaced(calibration=rows)
    for rows in (FRESH.repeat(3, 1), FRESH.repeat_interleave(2, 0)):
        with pytest.raises(InvalidInputError, match="calibration rows repeat each other"):
            replaced(calibration=rows)
    signs = torch.sign(X)  # 64 different rows: each calibration row is a row of X, by chance
    assert replaced(rows=signs[:500], calibration=signs[2000:4000], disagreement=0.3).certificate.measured == 2000


@pytest.mark.parametrize("kind", ["list", "pairs", "generator"])
def test_batches_are_data(kind: str) -> None:
    batches = {
        "list": lambda: list(TRAIN.split(300)),
        "pairs": lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(TRAIN, TRAIN[:, 0]), 128),
        "generator": lambda: (part.numpy() for part in TRAIN.split(300)),
    }[kind]()
    brief = ReplaceOptions(steps=2, width=8, mixed=0.0)
    assert replaced(rows=batches, disagreement=0.9, options=brief).certificate.distilled == 1700


def test_a_stream_is_sampled_evenly() -> None:
    from notsodeep.nn.teacher import sampled as sample

    rows = torch.arange(400.0)[:, None]
    counts = torch.zeros(400)
    for seed in range(500):
        kept = sample(rows.split(16), "X", 40, torch.Generator().manual_seed(seed))
        assert len(kept) == 40
        counts[kept[:, 0].long()] += 1
    # each row is held with probability 1/10: 50 times of 500, with a spread of 6.7
    assert float((counts.reshape(4, 100).mean(1) - 50.0).abs().max()) < 5 * 6.7 / 10


def test_a_stream_of_single_rows_takes_seconds() -> None:
    from notsodeep.nn.teacher import sampled as sample

    started = time.process_time()
    assert len(sample(torch.ones(20_000, 2).split(1), "X", 10**6, torch.Generator())) == 20_000
    assert time.process_time() - started < 5.0  # half a minute if each row looks at all before it


@pytest.mark.filterwarnings("ignore")
def test_a_torchdeq_module() -> None:
    torchdeq = pytest.importorskip("torchdeq")

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W, self.U, self.R = nn.Linear(24, 24), nn.Linear(P, 24), nn.Linear(24, CLASSES)
            self.deq = torchdeq.get_deq(f_solver="fixed_point_iter", f_tol=1e-4)

        def forward(self, x: Tensor) -> Tensor:
            z, _ = self.deq(lambda z: torch.tanh(0.5 * self.W(z) + self.U(x)), torch.zeros(len(x), 24))
            return self.R(z[-1])

    torch.manual_seed(0)
    model = Foreign()
    found = replaced(model)
    assert found.certificate.coverage > 0.3
    assert found(LATER).shape == (len(LATER), CLASSES)


# -- many rows, ladders, labels --------------------------------------------------------------------------
def test_predict_gives_what_the_replacement_gives(unseen: Replacement) -> None:
    expected = unseen(LATER)
    close = {"rtol": 0, "atol": solved(1e-5)}  # the model solves other batches
    torch.testing.assert_close(unseen.predict(LATER), expected, **close)
    torch.testing.assert_close(torch.from_numpy(unseen.predict(LATER.numpy(), 100)), expected, **close)
    assert unseen.drift().rows == 3 * len(LATER)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(LATER, LATER[:, 0]), 128)
    parts = list(unseen.predict(loader, 200))
    assert [len(part) for part in parts] == [len(x) for x, _ in loader]
    torch.testing.assert_close(torch.cat(parts), expected, **close)
    assert unseen.predict(LATER[:0]).shape == (0, CLASSES)
    with pytest.raises(InvalidInputError, match="expected a tensor of shape"):
        unseen.predict(LATER[:, :2])
    with pytest.raises(InvalidInputError, match="the rows hold NaN"), pytest.warns(NotSoDeepWarning, match="reached"):
        unseen.predict(torch.nan * LATER[:5])


def test_predict_holds_few_batches_of_single_rows(unseen: Replacement, monkeypatch) -> None:
    monkeypatch.setattr("notsodeep.nn.replacement.LIMITS", dataclasses.replace(LIMITS, waiting=1 << 16))
    taken: list[int] = []
    answers = unseen.predict((taken.append(1) or LATER[len(taken)][None] for _ in iter(int, 1)), 1 << 20)
    assert next(answers).shape == (1, CLASSES)
    assert len(taken) <= 64


def test_predict_asks_the_model_in_full_batches_and_holds_few(fast: Replacement, monkeypatch) -> None:
    sizes: list[int] = []
    counted = Replacement(lambda x: sizes.append(len(x)) or deq()(x), fast.rungs, fast.certificate, (P,), fast._known)
    endless = (LATER[:500] for _ in iter(int, 1))  # a stream without an end
    answers = counted.predict(endless, 256)
    for _ in range(6):
        next(answers)
    assert min(sizes) >= 256
    sizes.clear()
    answers = counted.predict(endless, 10**6)
    monkeypatch.setattr("notsodeep.nn.replacement.LIMITS", dataclasses.replace(LIMITS, waiting=3000 * CLASSES))
    next(answers)  # though there is no full batch for the model yet
    assert len(sizes) == 1


def test_a_ladder_is_climbed(tmp_path) -> None:
    model, agreed = deq(), 0.02
    loose = deq(solver=nsd.nn.SolverOptions(tol=0.05))
    found = replaced(model, ladder=["student", loose, model], disagreement=agreed)
    student, rung = found.certificate.rungs
    assert student.share > 0.2 < rung.share
    assert student.share + rung.share == pytest.approx(found.certificate.coverage)
    differs = found(LATER).argmax(1) != model(LATER).argmax(1)
    assert float(differs.double().mean()) <= agreed + 3.0 * (agreed / len(LATER)) ** 0.5
    _, score = found.scored(LATER)
    second = (score < student.threshold) & (found.rungs[1](LATER)[1] >= rung.threshold)
    torch.testing.assert_close(found(LATER)[second], loose(LATER)[second].detach(), rtol=0, atol=solved(0.05))
    found.save(tmp_path / "fast.safetensors")
    assert torch.equal(Replacement.load(tmp_path / "fast.safetensors", model, [loose])(LATER), found(LATER))
    for others in (None, [deq(seed=3)]):
        with pytest.raises(CheckpointError, match=r"give student=|does not answer the stored rows"):
            Replacement.load(tmp_path / "fast.safetensors", model, others)


def test_auto_ladders_have_looser_solvers(monkeypatch, tmp_path) -> None:
    model = deq(solver=nsd.nn.SolverOptions(tol=1e-4))
    monkeypatch.setattr("notsodeep.nn.ladder._CHEAPER", 1e9)  # whatever they cost here
    found = replaced(model, ladder="auto")
    loose = [rung.student.teacher.model for rung in list(found.rungs)[1:]]
    assert [round(one.solver.tol, 6) for one in loose] == [0.01, 0.001]
    assert all(one.recurrent is model.recurrent for one in loose)
    assert model.solver.tol == 1e-4  # as it was given
    found.save(tmp_path / "fast.safetensors")
    assert torch.equal(Replacement.load(tmp_path / "fast.safetensors", model)(LATER), found(LATER))


def test_networks_that_fail_among_hard_rows_alone_are_measured_there() -> None:
    """A solver that stops for a whole batch may be right on hard rows only where easy ones are beside them."""
    model = deq()

    def sure(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(x[:, :1] > 0.0, model(x), -model(x)), x[:, 0]

    def moody(x: Tensor) -> Tensor:
        """Answer the hardest 4 % of all rows wrongly where the batch has few others than those left by ``sure``."""
        alone = float((x[:, 0] < 0.0).double().mean()) > 0.9
        return torch.where(((x[:, 0] < -1.75) & alone)[:, None], -model(x), model(x))

    found = replaced(model, ladder=[sure, moody, model], disagreement=0.02)
    differs = found.predict(LATER).argmax(1) != model(LATER).argmax(1)
    assert float(differs.double().mean()) <= 0.02 + 3.0 * (0.02 / len(LATER)) ** 0.5
    with pytest.raises(CertificationError, match="answers so many rows differently when its batches change"):
        replaced(moody, ladder=[sure, moody], disagreement=0.02)


def test_rungs_with_scores_of_their_own_and_abstention() -> None:
    model = deq()

    def noisy(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(x[:, :1] > 0, model(x), -model(x)), x[:, 0]

    found = replaced(model, ladder=[noisy, "abstain"], disagreement=0.05)
    assert found.certificate.score == "own"
    assert found.certificate.threshold > -0.2
    outputs = found(LATER)
    answered = LATER[:, 0] >= found.certificate.threshold
    assert bool(outputs[~answered].isnan().all())
    assert not bool(outputs[answered].isnan().any())
    assert "get no answer" in repr(found)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_of_ladders_may_be_no_numbers(value: float) -> None:
    model = deq()

    def own(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(x[:, 1:2] > 1.0, -model(x), model(x)), torch.where(x[:, 1] > 1.0, value, x[:, 0])

    found = replaced(model, ladder=[own, "student", model], disagreement=0.3)
    with pytest.raises(InvalidInputError, match="no row has a finite score"):
        replaced(model, ladder=[lambda x: (model(x), value * torch.ones(len(x))), "abstain"])
    never = LATER[:, 1] > 1.0
    wrong = found(LATER[never]).argmax(1) != model(LATER[never]).argmax(1)
    assert bool(wrong.all()) == (value == torch.inf)


def test_rungs_with_one_number_for_each_row() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.tanh(x[:, 0])

    def near(x: Tensor) -> tuple[Tensor, Tensor]:
        return model(x) + 0.2 * (x[:, 1] > 0), -x[:, 1:2]

    for rung in (near, lambda x: near(x)[0]):
        found = replaced(model, ladder=[rung, "abstain"], tolerance=0.1, disagreement=0.1)
        answered = ~found(LATER).isnan()
        assert 0.3 < float(answered.double().mean()) < 0.7
        off = answered & ~((found(LATER) - model(LATER)).abs() <= 0.1)
        assert float(off.double().mean()) <= 0.1 + 3.0 * (0.1 / len(LATER)) ** 0.5


def test_labels_and_fields() -> None:
    model = deq()
    truth = model(X).argmax(1)
    truth[::7] = 0
    found = replaced(model, labels=truth[2000:4000], disagreement=0.05)
    wrong = [(m(LATER).argmax(1) != truth[4000:]).double().mean() for m in (found, model)]
    assert float(wrong[0] - wrong[1]) <= 0.05 + 3.0 * (0.05 / len(LATER)) ** 0.5
    assert "against labels" in repr(found)
    with pytest.warns(NotSoDeepWarning, match="no calibration rows"):
        assert replaced(model, labels=truth[:2000], disagreement=0.1, calibration=None).certificate.labels

    def field(x: Tensor) -> Tensor:  # 3 classes of 2 x 3 pixels
        return torch.stack([x, x.flip(1), -x], 1).reshape(-1, 3, 2, 3)

    found = replaced(field, tolerance=(None, 0.2), disagreement=0.2)
    off = (found(LATER).argmax(1) != field(LATER).argmax(1)).flatten(1).double().mean(1) > 0.2
    assert float(off.double().mean()) <= 0.2 + 3.0 * (0.2 / len(LATER)) ** 0.5
    numbers = replaced(field, tolerance=(0.3, 0.2), disagreement=0.2)
    assert "in more than 0.2 of the pixels" in repr(numbers)


# -- afterwards ------------------------------------------------------------------------------------------
def test_drift_is_noticed_once(unseen: Replacement) -> None:
    for batch in LATER.split(500):
        unseen(batch)
    assert unseen.drift().p_value > ALARM
    assert unseen.drift().rows == len(LATER)
    with pytest.warns(NotSoDeepWarning, match="the inputs have changed") as caught:
        [unseen(batch) for batch in (0.05 * X).split(500)]
    assert len(caught) == 1
    assert unseen.drift().p_value < ALARM


def test_times_are_measured_in_turns(unseen: Replacement) -> None:
    found = unseen.measure(LATER[:64], repeats=3)
    assert found.ratio == found.model / found.replacement
    assert found.student < found.model
    assert unseen.drift().rows == 0
    with pytest.raises(InvalidInputError, match="got ndarray"):
        unseen.measure(LATER[:64].numpy())


def test_a_replacement_always_evaluates(fast: Replacement) -> None:
    assert not fast.train().training


@pytest.mark.parametrize("kind", ["default", "twin"])
def test_save_and_load(kind: str, fast: Replacement, tmp_path) -> None:
    model, path, like = deq(), tmp_path / "fast.safetensors", None
    if kind == "twin":
        twin = nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2))
        student, like = (nsd.nn.ENN(twin, P, 64, CLASSES, s, kernel="ntk", bias=True) for s in (0, 1))
        fast = replaced(model, student=student, disagreement=0.5)  # so few steps do not bring it far
    fast.save(path)
    again = Replacement.load(path, model, like)
    assert again.certificate == fast.certificate
    assert torch.equal(again(LATER), fast(LATER))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Replacement.load(path, model)
    nsd.nn.save(model, path)
    with pytest.raises(CheckpointError, match="holds a model, not the replacement"):
        Replacement.load(path, model)


def test_torch_export_has_the_score_as_second_output(fast: Replacement) -> None:
    batch = {"x": {0: torch.export.Dim("batch", max=1 << 40)}}  # torch 2.6 does not take all whole numbers
    program = torch.export.export(fast.scored, (LATER,), dynamic_shapes=batch).module()
    for x in (LATER, LATER[:1]):
        torch.testing.assert_close(program(x), fast.scored(x))


@pytest.mark.parametrize("kind", ["margin", pytest.param("softmax margin", marks=pytest.mark.slow), "head"])
def test_onnxruntime_computes_outputs_and_score(kind: str, fast: Replacement, tmp_path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from notsodeep.nn.student import Data, Scored
    from notsodeep.nn.teacher import Agreement

    scored = Scored(fast.student, kind, Data(TRAIN, deq()(TRAIN).detach(), Agreement())).eval()
    chosen = Replacement(deq(), [scored], fast.certificate, fast.shape, None)
    session = runtime.InferenceSession(str(chosen.export_onnx(tmp_path / "student.onnx")))
    for x in (LATER, LATER[:1]):
        found = session.run(["y", "score"], {"x": x.numpy()})
        for one, other in zip(found, scored(x), strict=True):
            np.testing.assert_allclose(
                one, other.detach().numpy(), rtol=ulps(256, torch.float32), atol=ulps(256, np.float32)
            )


# -- refusals --------------------------------------------------------------------------------------------
def neighbourly(x: Tensor) -> Tensor:
    return deq()(x + 2.0 * x[:1])


def as_field(x: Tensor) -> Tensor:
    return x.view(-1, 2, 3)


def changing(x: Tensor) -> Tensor:
    return x[:, : 2 + (len(x) == 1024)]


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (neighbourly, {}, "outputs depend on the batch"),
        (changing, {}, r"outputs of shape \(3,\) for one batch and \(2,\) for another"),
        (lambda x: deq()(x) * torch.nan, {}, "outputs hold NaN or infinity"),
        (lambda x: deq()(x)[:, :1], {}, r"shape \(1,\) for each row.*\(-y, y\) for a single logit"),
        (lambda x: deq()(x) + torch.tensor([1e6, 0.0, 0.0]), {}, "into one class"),
        (lambda x: deq()(x)[:-1], {}, "one row per input"),
        (lambda x: {"logits": deq()(x)}, {}, "must return a dense tensor .* with 'logits' for"),
        (lambda x: x[:, :3].to_sparse(), {}, "must return a dense tensor"),
        (lambda x: x[:, :3].to("meta"), {"tolerance": 0.5}, "must return a dense tensor"),
        (lambda x: x[:, :0], {"tolerance": 0.5}, "hold no numbers"),
        (lambda x: 1 / 0, {}, "fails on rows .* division by zero"),
        (lambda x: deq()(x).argmax(1), {}, "let it return the scores, not the class"),
        (lambda x: deq()(x)[:, :, None], {}, r"fields of classes give tolerance=\(None, share\)"),
        (lambda x, y: x, {}, "takes them joined, and splits them itself"),
        (None, {"disagreement": 0.0}, "disagreement must lie strictly between 0 and 1"),
        (None, {"confidence": 1.0}, "confidence must lie strictly between 0 and 1"),
        (None, {"tolerance": -1.0}, "tolerance must be a positive number"),
        (None, {"tolerance": (None, 2.0)}, "the share of pixels must be a positive number below one"),
        (None, {"ladder": np.eye(2)}, "ladder must be 'auto' or a sequence of functions"),
        (None, {"ladder": ["student", "model"]}, "ladder must be 'auto' or a sequence of functions"),
        (lambda x: deq()(x), {"ladder": "auto"}, "needs a module with a solver"),
        (nn.Linear(P, 3), {"ladder": "auto"}, "finds no solver in Linear"),
        (None, {"ladder": [nn.Linear(P, 2), "abstain"]}, r"1 of the ladder has outputs of shape \(2,\), the model of"),
        (as_field, {"ladder": [lambda x: as_field(x)[:, :, :1], "abstain"], "tolerance": (None, 0.2)}, "rung 1 of the"),
        (None, {"labels": [0, 1]}, "for each of 2,000 rows"),
        (None, {"labels": [7] * 2000}, "numbers of classes"),
        (None, {"labels": [0.5] * 2000}, "numbers of classes"),
        (None, {"labels": [[0]] * 2000}, "labels of these outputs have shape"),
        (None, {"calibration": FRESH[:, :4]}, "calibration rows have shape"),
        (None, {"calibration": torch.full((500, P), torch.nan)}, "calibration holds NaN"),
        (None, {"rows": TRAIN[:, 0]}, "X must have two dimensions"),
        (None, {"rows": TRAIN[:0]}, "there is no data"),
        (None, {"rows": TRAIN[:3]}, "too few to distil"),
        (None, {"rows": iter(())}, "an iterable without a row"),
        (None, {"rows": [TRAIN, TRAIN[:, :2]]}, "batches of X must hold rows of one shape"),
        (None, {"rows": (TRAIN, TRAIN)}, "a tuple of arrays was given"),
        (None, {"rows": torch.utils.data.TensorDataset(TRAIN)}, "a Dataset was given; pass .*DataLoader"),
        (lambda x: nn.functional.embedding(x, x), {}, r"fails on rows .* with x.long\(\)"),
        (None, {"calibration": {"x": FRESH}}, "a dict of arrays was given"),
        (None, {"student": nn.Linear(P, 2)}, r"outputs of shape \(3,\) for each row as the model does, got \(2,\)"),
        (None, {"student": nn.Linear(4, 3)}, r"the student fails on rows of shape \(2, 6\)"),
        (None, {"ladder": [nn.Linear(4, 3), "abstain"]}, "rung 1 of the ladder fails on rows of shape"),
        (None, {"student": nn.Linear(P, 3).requires_grad_(False)}, "nothing to train"),
        ("model", {}, "model must be"),
    ],
)  # fmt: skip
def test_bad_input_is_named(model, options: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        replaced(model, **options)


@pytest.mark.parametrize("bad", [{"steps": -1}, {"width": 0}, {"lr": -1.0}, {"mixed": float("nan")}])
def test_bad_options_are_named(bad: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        ReplaceOptions(**bad)


def test_too_few_rows_and_weak_students_promise_nothing() -> None:
    with pytest.raises(CertificationError, match="at least 1,497 measured rows") as few:
        nsd.replace(deq(), X[:20])
    assert few.value.rows == 5988
    with pytest.raises(CertificationError, match="at least 985 measured rows"):  # 598 are enough without labels
        replaced(labels=[0] * 600, calibration=FRESH[:600], disagreement=0.005)
    with pytest.raises(CertificationError, match="take a better student") as weak:
        replaced(student=nn.Linear(P, CLASSES), options=ReplaceOptions(steps=1, lr=0.0), disagreement=0.005)
    assert weak.value.disagreement > 0.005  # what was asked for
    assert weak.value.coverage < 0.05


class OfTheBatch(nn.Module):
    """Subtracts the mean of whatever rows come together, as a normalisation by the statistics of a batch does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + 30.0 * x.mean(0).square().sum() * torch.tensor([1.0, 0.0])


@pytest.mark.parametrize("where", ["student", "rung", "model"])
def test_networks_whose_answers_depend_on_the_batch_are_refused(where):
    """Once 2 % were promised, and 67 % of the rows got another answer when they came alone."""
    torch.manual_seed(0)
    X, model = torch.randn(1200, 5), nn.Linear(5, 2)
    odd, given = OfTheBatch(model), {"disagreement": 0.1, "calibration": X[600:], "progress": False}
    given["options"] = nsd.nn.ReplaceOptions(steps=0)
    calls = {
        "student": lambda: nsd.replace(model, X[:600], student=odd, **given),
        "rung": lambda: nsd.replace(model, X[:600], ladder=[odd, model], **given),
        "model": lambda: nsd.replace(odd, X[:600], student=model, **given),
    }
    with pytest.raises(InvalidInputError, match=r"depend on the batch: .* get another"):
        calls[where]()


def test_the_autocast_of_the_measurement_is_kept(tmp_path):
    """Once a replacement cast to another type wherever it was called, and two thirds of the promises broke."""
    torch.manual_seed(0)
    X, model = torch.randn(1200, 5), nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 2))
    given = {"tolerance": 1e-3, "disagreement": 0.1, "calibration": X[600:], "progress": False}
    given |= {"student": copy.deepcopy(model), "options": nsd.nn.ReplaceOptions(steps=0)}
    cast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    plain, wanted = nsd.replace(model, X[:600], **given), model(X).detach()
    with cast():
        other, rounded = nsd.replace(model, X[:600], **given), model(X).detach()
        assert torch.equal(plain(X), wanted)
        assert torch.equal(plain.predict(X), wanted)
    assert not torch.equal(rounded, wanted)
    other.save(tmp_path / "other")
    for fast in (other, nsd.nn.Replacement.load(tmp_path / "other", model, copy.deepcopy(model))):
        assert float((fast(X) - rounded).abs().max()) <= float((rounded - wanted).abs().max())
        assert not torch.equal(fast(X).float(), wanted)
